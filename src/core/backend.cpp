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

// These are here because a build without CUDA knows the names too.
const char* cuda::load_name(Load load) {
  return load == Load::kAuto ? "auto" : load == Load::kBlocks ? "blocks" : "tokens";
}
const char* cuda::ring_name(Ring ring) {
  return ring == Ring::kAuto ? "auto" : ring == Ring::kFull ? "full" : "short";
}

const char* cuda::engine_name(Engine engine) {
  return engine == Engine::kAuto ? "auto" : engine == Engine::kDecode ? "decode" : "prefill";
}

}  // namespace tamis
