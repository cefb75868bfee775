// What this library is and what it can run on.
#include "capi/guard.h"
#include "capi/numbers.h"
#include "capi/structs.h"
#include "tamis/attention.h"
#include "tamis/device.h"
#include "tamis/tamis_c.h"
#include "tamis/version.h"

namespace tamis::capi {
namespace {

Status isas_c(const char** names, int64_t capacity, int64_t* count) {
  static const std::vector<std::string> kept =
      cpu_isas();  // the machine does not change; callers keep pointers
  const int64_t have = static_cast<int64_t>(kept.size());
  if (count == nullptr) return invalid("count", "is NULL");
  if (capacity < 0) return invalid("capacity", capacity, " is negative");
  if (names == nullptr && capacity > 0) return invalid("names", "is NULL");
  for (int64_t i = 0; i < have && i < capacity; ++i) names[i] = kept[i].c_str();
  *count = have;
  return {};
}

Status cuda_c(int32_t device, tamis_cuda_info* out) {
  TAMIS_RETURN_IF_ERROR(check_struct("info", out));
  tamis_cuda_info info{};
  info.built_with_cuda = built_with_cuda();
  const Result<std::vector<CudaDevice>> devices = cuda_devices();
  if (devices.ok()) info.devices = static_cast<int32_t>(devices->size());
  const bool found = device >= 0 && device < info.devices;
  if (found) {
    const CudaDevice& d = (*devices)[device];
    info.major = d.major;
    info.minor = d.minor;
    info.multiprocessors = d.multiprocessors;
    info.driver = d.driver;
    info.runtime = d.runtime;
    info.memory_bytes = d.memory_bytes;
  }
  write_struct(info, out);
  if (!devices.ok()) return devices.status();
  if (found) return {};
  return {Code::kInvalidArgument,
          text("device: ", device, " is outside [0, ", info.devices, ")"),
          {.value = device, .limit = info.devices}};
}

}  // namespace
}  // namespace tamis::capi

extern "C" {

int32_t tamis_abi_version(void) { return TAMIS_ABI_VERSION; }

const char* tamis_version(void) { return TAMIS_VERSION; }

const char* tamis_code_name(int32_t code) {
  if (code < TAMIS_OK || code > TAMIS_DEVICE_ERROR) return "unknown";
  return tamis::code_name(static_cast<tamis::Code>(code));
}

int32_t tamis_cpu_isas(const char** names, int64_t capacity, int64_t* count, tamis_error* error) {
  return tamis::capi::guarded(error, [&] { return tamis::capi::isas_c(names, capacity, count); });
}

int32_t tamis_cuda_status(int32_t device, tamis_cuda_info* info, tamis_error* error) {
  return tamis::capi::guarded(error, [&] { return tamis::capi::cuda_c(device, info); });
}

}  // extern "C"
