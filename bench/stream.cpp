#include "stream.h"

#include <string>

#include "tamis/attention.h"

namespace tamis::bench {

// The names are those of the CPU kernels, so the machine is asked once, in one place.
const StreamIsa& best_stream() {
  const std::string best = cpu_isas().front();
#if defined(__x86_64__)
  if (best == kStreamAvx512.name) return kStreamAvx512;
  if (best == kStreamAvx2.name) return kStreamAvx2;
#endif
  return kStreamPlain;
}

}  // namespace tamis::bench
