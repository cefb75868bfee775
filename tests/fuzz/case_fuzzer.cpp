// Feeds arbitrary bytes to the container and case readers. Seeds: corpus/, made by make_corpus.py.
//
// Beside not crashing, what an accepted file yields must hold together: every view aligned, dense and
// readable to its last byte.
#include <cstdint>
#include <cstdlib>

#include "tamis/io.h"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

void read_through(const tamis::TensorView& view) {
  require(view.rank >= 0 && view.rank <= tamis::kMaxRank);
  require(reinterpret_cast<uintptr_t>(view.data) % 64 == 0);
  int64_t step = 1;
  for (int axis = view.rank - 1; axis >= 0; --axis) {
    require(view.shape[axis] >= 0 && view.stride[axis] == step);
    step *= view.shape[axis];
  }
  const auto* bytes = static_cast<const volatile unsigned char*>(view.data);
  for (int64_t i = 0; i < view.elements() * tamis::dtype_bytes(view.dtype); ++i) (void)bytes[i];
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const tamis::Result<tamis::io::TensorFile> file = tamis::io::parse_tensors(data, size);
  require(file.ok() || file.status().code() == tamis::Code::kIoError);
  if (file.ok()) {
    for (const auto& [name, view] : file->tensors) read_through(view);
  }
  const tamis::Result<tamis::io::Case> c = tamis::io::parse_case(data, size);
  require(file.ok() == (c.status().code() != tamis::Code::kIoError));
  require(c.ok() != (c.status().message().size() > 0));
  if (c.ok()) require(tamis::count_query_blocks(c->problem) >= 0);
  return 0;
}
