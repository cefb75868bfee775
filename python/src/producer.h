// How Python objects give their array: what is known of their types.
#pragma once

#include <nanobind/nanobind.h>

#include "dlpack.h"

namespace tamis::python {

namespace nb = nanobind;

// How objects of a type give their array; found once a type. Types are few: the oldest makes room.
struct Producer {
  enum Kind : uint8_t { kNothing, kExchange, kView, kNumpy, kMasked, kDlpack } kind = kNothing;
  const dlpack::ExchangeApi* api = nullptr;
  bool negates = false;  // objects may be torch's views that are negated when torch reads them
};
Producer producer_of(nb::handle object);

// Refuses a view whose elements are not what its memory says. Of producers with `negates`.
void refuse_negated(nb::handle object, const char* name);

}  // namespace tamis::python
