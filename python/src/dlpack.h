// The part of the DLPack ABI (https://dmlc.github.io/dlpack/latest/c_api.html, version 1.3) that arrays are
// read through. Layouts and numbers are the specification's.
#pragma once

#include <cstdint>

namespace tamis::python::dlpack {

struct Version {
  uint32_t major, minor;
};

enum DeviceType : int32_t { kCpu = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13 };
struct Device {
  int32_t type, id;
};

enum TypeCode : uint8_t {
  kInt = 0,
  kUInt = 1,
  kFloat = 2,
  kBfloat = 4,
  kBool = 6,
  kFloat8E4M3FN = 10,
  kFloat8E5M2 = 12
};
struct DataType {
  uint8_t code, bits;
  uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  int32_t ndim;
  DataType dtype;
  int64_t* shape;
  int64_t* strides;  // elements; null, before version 1.2: dense
  uint64_t byte_offset;
};

struct Managed {
  Tensor tensor;
  void* context;
  void (*deleter)(Managed*);
};

enum Flags : uint64_t { kReadOnly = 1, kCopied = 2 };
struct ManagedVersioned {
  Version version;
  void* context;
  void (*deleter)(ManagedVersioned*);
  uint64_t flags;
  Tensor tensor;
};

// What the capsule `__dlpack_c_exchange_api__` of an array type points to. The functions answer 0, or -1 with
// a Python exception set; they are called with the GIL held, and none of them synchronizes.
struct ExchangeApi {
  Version version;
  ExchangeApi* older;
  void* allocate;
  int (*managed_from_object)(void* object, ManagedVersioned** out);
  void* object_from_managed;
  int (*tensor_from_object)(void* object, Tensor* out);  // borrowed; may be null
  int (*current_stream)(int32_t device_type, int32_t device_id, void** out);
};

}  // namespace tamis::python::dlpack
