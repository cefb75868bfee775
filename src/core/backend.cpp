#include "tamis/cuda.h"
#include "tamis/device.h"

namespace tamis {

const char* backend_name(Backend backend) {
  switch (backend) {
    case Backend::kReference:
      return "reference";
    case Backend::kCpu:
      return "cpu";
    case Backend::kCuda:
      return "cuda";
  }
  return "unknown";
}

// Here, because a build without CUDA knows the names too.
const char* cuda::load_name(Load load) {
  return load == Load::kAuto ? "auto" : load == Load::kBlocks ? "blocks" : "tokens";
}

}  // namespace tamis
