#include "array.h"

#include <cstring>

#include "failure.h"
#include "producer.h"

namespace tamis::python {
namespace {

struct DTypeRow {
  const char* name;  // as in safetensors files and the library's messages
  int32_t dtype;
  int bytes;
  uint8_t code, bits;  // DLPack's
};
constexpr DTypeRow kDTypes[] = {
    {"F64", TAMIS_F64, 8, dlpack::kFloat, 64},
    {"F32", TAMIS_F32, 4, dlpack::kFloat, 32},
    {"F16", TAMIS_F16, 2, dlpack::kFloat, 16},
    {"BF16", TAMIS_BF16, 2, dlpack::kBfloat, 16},
    {"F8_E4M3", TAMIS_F8_E4M3, 1, dlpack::kFloat8E4M3FN, 8},
    {"F8_E5M2", TAMIS_F8_E5M2, 1, dlpack::kFloat8E5M2, 8},
    {"I64", TAMIS_I64, 8, dlpack::kInt, 64},
    {"I32", TAMIS_I32, 4, dlpack::kInt, 32},
    {"I16", TAMIS_I16, 2, dlpack::kInt, 16},
    {"I8", TAMIS_I8, 1, dlpack::kInt, 8},
    {"U64", TAMIS_U64, 8, dlpack::kUInt, 64},
    {"U32", TAMIS_U32, 4, dlpack::kUInt, 32},
    {"U16", TAMIS_U16, 2, dlpack::kUInt, 16},
    {"U8", TAMIS_U8, 1, dlpack::kUInt, 8},
    {"BOOL", TAMIS_BOOL, 1, dlpack::kBool, 8},
};

const DTypeRow* row_of(int32_t dtype) {
  for (const DTypeRow& row : kDTypes)
    if (row.dtype == dtype) return &row;
  return nullptr;
}

// The Python error that a producer left, as a refusal of the argument.
[[noreturn]] void refuse_producer(const char* name, const nb::python_error& e) {
  // Ctrl-C and the like are nobody's refusal.
  if (!e.matches(PyExc_Exception) || e.matches(PyExc_MemoryError)) throw nb::python_error(e);
  const char* text = PyUnicode_AsUTF8AndSize(nb::str(e.value()).ptr(), nullptr);
  if (text == nullptr) PyErr_Clear();
  const std::string why = text != nullptr ? text : "of an error that is no text";
  refuse_argument(name, "the array cannot be read: ", why.substr(0, why.find('\n')));
}

[[noreturn]] void refuse_dtype(const char* name, const std::string& dtype) {
  refuse_argument(name, "dtype ", dtype, " is none that arrays may have here");
}

// Numbers of the buffer protocol; 0 for what is no number in this machine's byte order.
int32_t dtype_of_format(const char* format, Py_ssize_t bytes) {
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  if (format[0] == '\0' || format[1] != '\0') return 0;
  const char kind = std::strchr("bhilq", *format)   ? 'i'
                    : std::strchr("BHILQ", *format) ? 'u'
                    : std::strchr("efd", *format)   ? 'f'
                    : *format == '?'                ? 'b'
                                                    : '\0';
  switch (kind) {
    case 'i':
      return bytes == 1 ? TAMIS_I8 : bytes == 2 ? TAMIS_I16 : bytes == 4 ? TAMIS_I32 : TAMIS_I64;
    case 'u':
      return bytes == 1 ? TAMIS_U8 : bytes == 2 ? TAMIS_U16 : bytes == 4 ? TAMIS_U32 : TAMIS_U64;
    case 'f':
      return bytes == 2 ? TAMIS_F16 : bytes == 4 ? TAMIS_F32 : TAMIS_F64;
    case 'b':
      return TAMIS_BOOL;
    default:
      return 0;
  }
}

// Dtypes that only extensions of NumPy have.
int32_t dtype_of_extension(const std::string& name) {
  return name == "bfloat16"        ? TAMIS_BF16
         : name == "float8_e4m3fn" ? TAMIS_F8_E4M3
         : name == "float8_e5m2"   ? TAMIS_F8_E5M2
                                   : 0;
}

}  // namespace

std::string place_name(const Place& place) {
  switch (place.kind) {
    case Place::kHost:
      return "the host";
    case Place::kManaged:
      return "managed memory";
    case Place::kDevice:
      break;
  }
  return text("cuda:", place.id);
}

const char* dtype_name(int32_t dtype) {
  const DTypeRow* row = row_of(dtype);
  return row != nullptr ? row->name : "none";
}

int32_t dtype_of(const std::string& name) {
  for (const DTypeRow& row : kDTypes)
    if (name == row.name) return row.dtype;
  return 0;
}

int dtype_bytes(int32_t dtype) { return row_of(dtype)->bytes; }

Array::Array(nb::handle object, const char* name) : tensor{} {
  tensor.struct_size = sizeof tensor;
  const Producer producer = producer_of(object);
  if (producer.negates) refuse_negated(object, name);
  switch (producer.kind) {
    case Producer::kExchange: {
      dlpack::Tensor borrowed{};
      api = producer.api;
      if (api->tensor_from_object(object.ptr(), &borrowed) != 0) refuse_producer(name, nb::python_error());
      take(borrowed, name);
      return;
    }
    case Producer::kView: {
      const View& view = nb::cast<const View&>(object);
      Array inner(view.array, name);
      inner.read_as(view.dtype, name);
      steal(inner);
      return;
    }
    case Producer::kNumpy:
      from_numpy(object, name);
      return;
    case Producer::kDlpack:
      from_dlpack(object, name);
      return;
    case Producer::kMasked:
      refuse_argument(name, "is a masked array, whose mask would be lost; give its data");
    case Producer::kNothing:
      break;
  }
  throw nb::type_error(
      text(name, ": expected an array (NumPy's, or one with __dlpack__), not ", type_name_of(object))
          .c_str());
}

void Array::check_written(const char* name) const {
  if (read_only) refuse_argument(name, "is read-only");
  if (empty()) return;
  for (int axis = 0; axis < tensor.rank; ++axis)
    if (tensor.stride[axis] == 0 && tensor.shape[axis] > 1)
      refuse_argument(name, "is written, and axis ", axis, " of stride 0 lays its elements on one another");
}

bool Array::empty() const {
  for (int axis = 0; axis < tensor.rank; ++axis)
    if (tensor.shape[axis] == 0) return true;
  return false;
}

Array::Array(Array&& other) noexcept { steal(other); }

void Array::steal(Array& other) noexcept {
  tensor = other.tensor;
  place = other.place;
  read_only = other.read_only;
  api = other.api;
  owner_ = std::exchange(other.owner_, Owner::kNone);
  buffer_ = other.buffer_;
}

Array::~Array() { let_go(); }

void Array::let_go() noexcept {
  tensor.data = nullptr;
  switch (std::exchange(owner_, Owner::kNone)) {
    case Owner::kNone:
      return;
    case Owner::kBuffer:
      PyBuffer_Release(buffer_);
      delete buffer_;
      return;
    case Owner::kManaged:
      if (managed_->deleter != nullptr) managed_->deleter(managed_);
      return;
    case Owner::kVersioned:
      if (versioned_->deleter != nullptr) versioned_->deleter(versioned_);
      return;
  }
}

void Array::set_shape(int rank, const char* name) {
  if (rank < 0 || rank > TAMIS_MAX_RANK)
    refuse_argument(name, "rank ", rank, " is outside [0, ", TAMIS_MAX_RANK, "]");
  tensor.rank = rank;
}

void Array::take(const dlpack::Tensor& from, const char* name) {
  set_shape(from.ndim, name);
  if (from.ndim > 0 && from.shape == nullptr)
    refuse_argument(name, "the array cannot be read: it has no shape");
  for (const DTypeRow& row : kDTypes)
    if (row.code == from.dtype.code && row.bits == from.dtype.bits && from.dtype.lanes == 1)
      tensor.dtype = row.dtype;
  if (tensor.dtype == 0)
    refuse_dtype(name, text("of DLPack code ", int{from.dtype.code}, ", ", int{from.dtype.bits}, " bits, ",
                            from.dtype.lanes, " lanes"));
  switch (from.device.type) {
    case dlpack::kCpu:
    case dlpack::kCudaHost:
      break;
    case dlpack::kCuda:
      place = {Place::kDevice, from.device.id};
      break;
    case dlpack::kCudaManaged:
      place = {Place::kManaged, from.device.id};
      break;
    default:
      refuse_argument(name, "lies on a device of DLPack type ", from.device.type,
                      "; memory of the host and of CUDA devices can be read");
  }
  tensor.data = from.data == nullptr ? nullptr : static_cast<char*>(from.data) + from.byte_offset;
  int64_t dense = 1;
  for (int axis = from.ndim - 1; axis >= 0; --axis) {
    tensor.shape[axis] = from.shape[axis];
    tensor.stride[axis] = from.strides != nullptr ? from.strides[axis] : dense;
    dense *= from.shape[axis];
  }
}

namespace {

// Strides in bytes to strides in elements; where nothing is stepped over any number will do.
int64_t elements(int64_t bytes, int64_t extent, int item, const char* name) {
  if (extent <= 1) return 1;
  if (bytes % item != 0)
    refuse_argument(name, "a stride of ", bytes, " bytes is no multiple of the ", item, " of an element");
  return bytes / item;
}

}  // namespace

void Array::from_numpy(nb::handle object, const char* name) {
  auto* buffer = new Py_buffer;
  if (PyObject_GetBuffer(object.ptr(), buffer, PyBUF_RECORDS_RO) != 0) {
    delete buffer;
    PyErr_Clear();  // an extension's dtype, which buffers cannot express
    return from_interface(object, name);
  }
  buffer_ = buffer;
  owner_ = Owner::kBuffer;
  try {
    set_shape(buffer->ndim, name);
    tensor.dtype = dtype_of_format(buffer->format != nullptr ? buffer->format : "B", buffer->itemsize);
    if (tensor.dtype == 0) refuse_dtype(name, nb::str(nb::getattr(object, "dtype")).c_str());
    tensor.data = buffer->buf;
    read_only = buffer->readonly != 0;
    for (int axis = 0; axis < buffer->ndim; ++axis) {
      tensor.shape[axis] = buffer->shape[axis];
      tensor.stride[axis] =
          elements(buffer->strides[axis], buffer->shape[axis], static_cast<int>(buffer->itemsize), name);
    }
  } catch (...) {  // the destructor does not run for what was not constructed
    PyBuffer_Release(buffer_);
    delete buffer_;
    throw;
  }
}

void Array::from_interface(nb::handle object, const char* name) {
  const std::string dtype = nb::str(nb::getattr(nb::getattr(object, "dtype"), "name")).c_str();
  tensor.dtype = dtype_of_extension(dtype);
  if (tensor.dtype == 0) refuse_dtype(name, dtype);
  const nb::dict interface = nb::cast<nb::dict>(object.attr("__array_interface__"));
  const nb::tuple data = nb::cast<nb::tuple>(interface["data"]);
  const nb::tuple shape = nb::cast<nb::tuple>(interface["shape"]);
  const nb::object strides = interface["strides"];
  set_shape(static_cast<int>(nb::len(shape)), name);
  if (nb::len(data) != 2 || (!strides.is_none() && nb::len(strides) != nb::len(shape)))
    refuse_argument(name, "the array cannot be read: its __array_interface__ is none");
  tensor.data = reinterpret_cast<void*>(nb::cast<uintptr_t>(data[0]));
  read_only = nb::cast<bool>(data[1]);
  int64_t dense = 1;
  for (int axis = tensor.rank - 1; axis >= 0; --axis) {
    tensor.shape[axis] = nb::cast<int64_t>(shape[axis]);
    tensor.stride[axis] = strides.is_none() ? dense
                                            : elements(nb::cast<int64_t>(strides[axis]), tensor.shape[axis],
                                                       dtype_bytes(tensor.dtype), name);
    dense *= tensor.shape[axis];
  }
}

namespace {

// Exporters from before DLPack 1.0 do not know of versions.
nb::object ask(const nb::object& method, nb::dict arguments) {
  nb::dict versioned;
  for (auto [key, value] : arguments) versioned[key] = value;
  versioned["max_version"] = nb::make_tuple(1, 3);
  try {
    return method(**versioned);
  } catch (nb::python_error& e) {
    if (!e.matches(PyExc_TypeError)) throw;
  }
  return method(**arguments);
}

// The capsule of an object's array as it is now: on a device -1 asks for no synchronization, which on the
// host there is none of. JAX takes -1 for a stream's address and fails; asked for no stream it waits for
// none.
nb::object capsule_of(nb::handle object, bool device) {
  const nb::object method = object.attr("__dlpack__");
  nb::dict arguments;
  if (!device) return ask(method, arguments);
  arguments["stream"] = -1;
  try {
    return ask(method, arguments);
  } catch (nb::python_error& e) {
    if (e.matches(PyExc_TypeError) || e.matches(PyExc_BufferError)) throw;
  }
  return ask(method, nb::dict());
}

}  // namespace

void Array::from_dlpack(nb::handle object, const char* name) {
  nb::object capsule;
  try {
    const nb::object device = object.attr("__dlpack_device__")();
    if (!nb::isinstance<nb::tuple>(device) || nb::len(device) != 2 || !nb::isinstance<nb::int_>(device[0]))
      refuse_argument(name, "the array cannot be read: __dlpack_device__ answers no pair of numbers");
    int type = 0;
    if (!nb::try_cast(device[0], type)) type = -1;  // no device that DLPack knows
    capsule = capsule_of(object, type == dlpack::kCuda || type == dlpack::kCudaManaged);
  } catch (nb::python_error& e) {
    refuse_producer(name, e);
  }
  const dlpack::Tensor* from = nullptr;
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
    auto* managed =
        static_cast<dlpack::ManagedVersioned*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    if (managed->version.major != 1)
      refuse_argument(name, "DLPack version ", managed->version.major, ", versions 0 and 1 can be read");
    if ((managed->flags & dlpack::kCopied) != 0)
      refuse_argument(name, "its exporter made a copy, and nothing is copied silently");
    read_only = (managed->flags & dlpack::kReadOnly) != 0;
    from = &managed->tensor;
    take(*from, name);  // while the capsule still owns it
    PyCapsule_SetName(capsule.ptr(), "used_dltensor_versioned");
    versioned_ = managed;
    owner_ = Owner::kVersioned;
  } else if (PyCapsule_IsValid(capsule.ptr(), "dltensor")) {
    auto* managed = static_cast<dlpack::Managed*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
    from = &managed->tensor;
    take(*from, name);
    PyCapsule_SetName(capsule.ptr(), "used_dltensor");
    managed_ = managed;
    owner_ = Owner::kManaged;
  } else {
    refuse_argument(name, "__dlpack__ answered no DLPack capsule");
  }
}

bool Array::join_batch(int rows) {
  tamis_tensor& t = tensor;
  if (t.rank <= rows) return false;
  const int64_t outer = t.shape[0], inner = t.shape[rows];
  if (inner == 1) {
    t.stride[rows] = t.stride[0];
  } else if (outer > 1 && inner > 0 && t.stride[0] != inner * t.stride[rows]) {
    return false;
  }
  t.shape[rows] = outer * inner;
  for (int axis = 0; axis + 1 < t.rank; ++axis) {
    t.shape[axis] = t.shape[axis + 1];
    t.stride[axis] = t.stride[axis + 1];
  }
  --t.rank;
  return true;
}

void Array::read_as(int32_t dtype, const char* name) {
  if (tensor.dtype == dtype) return;
  const bool bits = tensor.dtype == TAMIS_U8 || tensor.dtype == TAMIS_U16;
  if (!bits || dtype_bytes(dtype) != dtype_bytes(tensor.dtype))
    refuse_argument(name, "dtype ", dtype_name(tensor.dtype), " cannot be read as ", dtype_name(dtype));
  tensor.dtype = dtype;
}

void* current_stream(const Array& array, nb::handle object) {
  if (array.api != nullptr && array.api->current_stream != nullptr) {
    void* stream = nullptr;
    if (array.api->current_stream(dlpack::kCuda, array.place.id, &stream) != 0) throw nb::python_error();
    return stream;
  }
  const nb::object found = nb::module_::import_("tamis._streams").attr("current")(object, array.place.id);
  return reinterpret_cast<void*>(nb::cast<uintptr_t>(found));
}

}  // namespace tamis::python
