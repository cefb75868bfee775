#include "emulated/emulate.h"

#include "core/device.cuh"  // the one of this folder
#include "index/builder.cuh"

namespace tamis::testing {
namespace {

template <bool kListsShared, bool kOneQuery, bool kPlain>
void build(const index::NormalizeArgs& args, char* memory) {
  for (int32_t b = 0; b < args.out.bundles; ++b) {
    blockIdx.x = static_cast<unsigned>(b);
    index::Shared shared;
    std::memset(static_cast<void*>(&shared), 0x5A, sizeof shared);
    index::Builder<kListsShared, kOneQuery, kPlain>(args, shared, memory).build();
  }
}

}  // namespace

void emulate_normalize(const index::NormalizeArgs& args, const index::NormalizeShared& shared, char* memory) {
  const bool one = args.candidates.query_block == 1;
  if (index::is_plain(args, shared))
    return one ? build<true, true, true>(args, memory) : build<true, false, true>(args, memory);
  if (shared.lists)
    return one ? build<true, true, false>(args, memory) : build<true, false, false>(args, memory);
  return one ? build<false, true, false>(args, memory) : build<false, false, false>(args, memory);
}

}  // namespace tamis::testing
