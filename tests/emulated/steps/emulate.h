// A device step on the host: the kernels' own code, thread by thread.
#pragma once

#include "index/device.h"
#include "kernels/cuda/decode/launch.h"
#include "kernels/cuda/prefill/launch.h"
#include "plan/device.h"

namespace tamis::testing {

// Each returns what went wrong in the machine: a deadlock, a barrier or an instruction used against its
// rules.
// threads: of a CTA; 0: as a launch chooses.
std::string emulate_normalize(const index::NormalizeArgs& args, const index::NormalizeShared& shared,
                              uint64_t seed, int threads = 0);
std::string emulate_schedule(const ScheduleArgs& args, uint64_t seed);

// BF16, head sizes up to 128: one kernel of each kind of feeding is enough here.
std::string emulate_decode(const cuda::DecodeKey& key, const cuda::DecodeArgs& args,
                           const cuda::DecodeGrid& grid, uint64_t seed);

// `without_maps`: tensor maps are made here. ctas: that stay.
std::string emulate_prefill(const cuda::PrefillKey& key, const cuda::PrefillArgs& without_maps,
                            const cuda::SideShape& side, int ctas, uint64_t seed);

}  // namespace tamis::testing
