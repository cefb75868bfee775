// The last step of a row: divided by its sum, through the epilogue and into the caller's arrays, unless its
// slot has been given to somebody else. Every path ends here, and only here, once for each row.
#pragma once

#include <algorithm>
#include <cmath>

#include "core/codes.h"
#include "merge/state.h"
#include "tamis/attention.h"

namespace tamis::cpu {

struct StoreOutcome {
  bool stale = false;     // not written
  int64_t saturated = 0;  // values
};

class RowStore {
 public:
  // `cu_q` tells the request of a row. The arguments must have been checked (attention/check_out.h).
  RowStore(const OutView& to, const TensorView& cu_q) : to_(to), cu_q_(cu_q) {}

  // `o` is the numerator of the whole row, (m, l) its state.
  StoreOutcome row(int64_t query, int64_t head, const float* o, float m, float l) const {
    if (is_stale(query)) return {.stale = true};
    const MutableTensorView& lse = to_.lse;
    if (lse.present()) *element<float>(lse, query, head) = finish_lse(m, l);
    const Row row{.query = query, .head = head, .o = o, .l = l, .gate = gate_of(query, head)};
    switch (to_.out.dtype) {
      case DType::kF16:
        write<uint16_t>(row, [](float x) { return float_to_f16(x); });
        return {};
      case DType::kBF16:
        write<uint16_t>(row, [](float x) { return float_to_bf16(x); });
        return {};
      case DType::kF8E4M3:
        return {.saturated = write_codes<E4M3Codes>(row)};
      case DType::kF8E5M2:
        return {.saturated = write_codes<E5M2Codes>(row)};
      case DType::kI8:
        return {.saturated = write_codes<Int8Codes>(row)};
      default:
        write<float>(row, [](float x) { return x; });
        return {};
    }
  }

 private:
  struct Row {
    int64_t query, head;
    const float* o;
    float l, gate;
  };

  template <class T>
  static T* element(const MutableTensorView& t, int64_t query, int64_t head) {
    return static_cast<T*>(t.data) + query * t.stride[0] + head * t.stride[1];
  }

  float gate_of(int64_t query, int64_t head) const {
    return to_.epilogue.gate.present() ? to_.epilogue.gate.at<float>({query, head}) : 1.f;
  }

  // What becomes of one element. A gate of 0 skips, as in gated_sum, since 0 * NaN is NaN; so does an empty
  // row, whose zeros would not survive a gate that is not finite.
  float value(const Row& row, int64_t d) const {
    if (row.gate == 0.f || row.l == 0.f) return 0.f;
    return finish_out(row.o[d], row.l) * to_.epilogue.scale * row.gate;
  }

  template <class T, class Cast>
  void write(const Row& row, const Cast& cast) const {
    T* to = element<T>(to_.out, row.query, row.head);
    for (int64_t d = 0, dim = to_.out.shape[2]; d < dim; ++d) to[d * to_.out.stride[2]] = cast(value(row, d));
  }

  template <class Codes>
  int64_t write_codes(const Row& row) const {
    const float scale = scale_of<Codes>(row);
    int64_t saturated = 0;
    if (std::isnan(scale)) {  // says all there is to say
      write<uint8_t>(row, [](float) { return uint8_t{0}; });
      return 0;
    }
    write<uint8_t>(row, [&](float x) {
      saturated += Codes::saturates(x / scale);
      return Codes::encode(x / scale);
    });
    return saturated;
  }

  // The scale of a row's codes: 1 for a plain cast to fp8.
  template <class Codes>
  float scale_of(const Row& row) const {
    const Epilogue& e = to_.epilogue;
    if (e.static_scale.present())
      return e.static_scale.rank == 0 ? e.static_scale.at<float>({}) : e.static_scale.at<float>({row.head});
    if (!e.out_scale.present()) return 1.f;
    float largest = 0;
    for (int64_t d = 0, dim = to_.out.shape[2]; d < dim; ++d) {
      const float x = std::fabs(value(row, d));
      if (!(x <= largest)) largest = x;  // NaN too, and then nothing takes its place
      if (std::isnan(largest)) break;
    }
    // A row that is not finite has no scale, and NaN times any code is NaN.
    const float scale = std::isfinite(largest) ? scale_for<Codes>(largest) : NAN;
    *element<float>(e.out_scale, row.query, row.head) = scale;
    return scale;
  }

  bool is_stale(int64_t query) const {
    const SlotView& s = to_.slots;
    if (!s.slot.present()) return false;
    const int64_t request = request_of(query);
    const int32_t slot = s.slot.at<int32_t>({request});
    if (slot == -1) return false;
    // Acquire: whoever sees the old generation comes before the bump, and reads nothing of the new owner's.
    const uint32_t live = __atomic_load_n(&s.live_generation.at<uint32_t>({slot}), __ATOMIC_ACQUIRE);
    return live != s.generation.at<uint32_t>({request});
  }

  // The request r with cu_q[r] <= query < cu_q[r + 1].
  int64_t request_of(int64_t query) const {
    int64_t low = 0, high = cu_q_.shape[0] - 1;
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      (cu_q_.at<int32_t>({middle}) <= query ? low : high) = middle;
    }
    return low;
  }

  const OutView& to_;
  const TensorView& cu_q_;
};

}  // namespace tamis::cpu
