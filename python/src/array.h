// Arrays of any framework as tensors of the C interface, without a copy.
//
// An array comes through the C exchange interface of its type where it has one (torch 2.10 and later), a
// NumPy array through the buffer protocol, any other through __dlpack__. No stream is synchronized: whoever
// calls has ordered the producer's work, usually by giving the same stream.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>  // in every file that casts strings: one without it would instantiate another caster
#include <tamis/tamis_c.h>

#include <string>
#include <utility>

#include "dlpack.h"

namespace tamis::python {

namespace nb = nanobind;

// Which memory an array lies in.
struct Place {
  enum Kind : uint8_t { kHost, kDevice, kManaged } kind = kHost;  // managed memory goes with any device
  int32_t id = 0;

  bool device() const { return kind != kHost; }
  bool agrees(const Place& other) const {
    if (device() != other.device()) return false;
    return !device() || kind == kManaged || other.kind == kManaged || id == other.id;
  }
};
std::string place_name(const Place& place);

// An array whose bits are read as another dtype of the same width: bfloat16 in uint16, fp8 in uint8.
struct View {
  nb::object array;
  int32_t dtype;
};

// A view of an array, valid while the object it came from lives; keeps what the exporter wants to have back.
class Array {
 public:
  // `name` is the argument's, for messages. TypeError for what is no array, Failure for one that cannot be
  // read.
  Array(nb::handle object, const char* name);
  ~Array();
  Array(Array&& other) noexcept;
  Array(const Array&) = delete;

  tamis_tensor tensor;
  Place place;
  bool read_only = false;
  const dlpack::ExchangeApi* api = nullptr;  // of the object's type, where it has one

  // Joins the first axis with axis `rows`: [B, S, ...] to [B * S, ...]. False where strides do not allow it.
  bool join_batch(int rows = 1);

  bool empty() const;

  // Gives back what the exporter wants to have back; the memory is not to be read any more.
  void let_go() noexcept;

  // For what is written: refuses arrays that are read-only or hold an element twice by a stride of 0.
  void check_written(const char* name) const;

  // Bits of unsigned integers as `dtype`, which must be as wide; `dtype` itself is fine too.
  void read_as(int32_t dtype, const char* name);

 private:
  void steal(Array& other) noexcept;
  void from_numpy(nb::handle object, const char* name);
  void from_interface(nb::handle object, const char* name);
  void from_dlpack(nb::handle object, const char* name);
  void take(const dlpack::Tensor& from, const char* name);
  void set_shape(int rank, const char* name);

  enum class Owner : uint8_t { kNone, kBuffer, kManaged, kVersioned } owner_ = Owner::kNone;
  union {
    Py_buffer* buffer_ = nullptr;
    dlpack::Managed* managed_;
    dlpack::ManagedVersioned* versioned_;
  };
};

// "BF16" and so on; 0 for a name that is none.
const char* dtype_name(int32_t dtype);
int32_t dtype_of(const std::string& name);
int dtype_bytes(int32_t dtype);

// The stream that an array's framework works on now, for arrays on a device. With an exchange interface its
// answer, else that of tamis._streams.current.
void* current_stream(const Array& array, nb::handle object);

void register_arrays(nb::module_& m);

}  // namespace tamis::python
