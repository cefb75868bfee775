#include "attention/check_out.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "core/elements.h"
#include "core/tensor_checks.h"

namespace tamis {
namespace {

// A present tensor of one dtype and shape with memory behind it.
Status check_tensor(const char* name, const TensorView& t, DType dtype,
                    std::initializer_list<int64_t> shape) {
  if (t.dtype != dtype) return invalid(name, "dtype ", dtype_name(t.dtype), " is not ", dtype_name(dtype));
  if (t.rank != static_cast<int>(shape.size()) || !std::equal(shape.begin(), shape.end(), t.shape.begin())) {
    std::string wanted;
    for (const int64_t n : shape) wanted += text(wanted.empty() ? "" : ",", n);
    return invalid(name, "shape is not [", wanted, "]");
  }
  return need_memory(name, t);
}

bool is_fp8(DType dtype) { return dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2; }

Status check_static_scale(const TensorView& scale, const Shape& s) {
  if (scale.rank == 0)
    TAMIS_RETURN_IF_ERROR(check_tensor("static_scale", scale, DType::kF32, {}));
  else
    TAMIS_RETURN_IF_ERROR(check_tensor("static_scale", scale, DType::kF32, {s.q_heads}));
  for (int64_t h = 0; h < (scale.rank == 0 ? 1 : s.q_heads); ++h) {
    const float x = scale.rank == 0 ? scale.at<float>({}) : scale.at<float>({h});
    if (!(std::isfinite(x) && x > 0))
      return invalid("static_scale", x, " of head ", h, " is not finite and above 0");
  }
  return {};
}

Status check_epilogue(const OutView& out, const Shape& s) {
  const Epilogue& e = out.epilogue;
  const DType dtype = out.out.dtype;
  if (!std::isfinite(e.scale)) return invalid("epilogue.scale", e.scale, " is not finite");
  if (e.gate.present())
    TAMIS_RETURN_IF_ERROR(check_tensor("gate", e.gate, DType::kF32, {s.total_q, s.q_heads}));
  const bool fixed = e.static_scale.present(), dynamic = e.out_scale.present();
  if (fixed && dynamic) return invalid("out_scale", "give at most one of static_scale and out_scale");
  if (is_plain_float(dtype) && (fixed || dynamic))
    return invalid(fixed ? "static_scale" : "out_scale", "is for codes, out holds ", dtype_name(dtype));
  if (dtype == DType::kI8 && !fixed && !dynamic)
    return invalid("out", "dtype I8 holds codes and needs static_scale or out_scale");
  if (fixed) return check_static_scale(e.static_scale, s);
  if (dynamic) return check_tensor("out_scale", e.out_scale, DType::kF32, {s.total_q, s.q_heads});
  return {};
}

Status check_slots(const SlotView& v, const Shape& s, bool readable) {
  if (!v.slot.present() && !v.generation.present() && !v.live_generation.present()) return {};
  if (!v.slot.present()) return invalid("slot", "tensor is missing");
  if (!v.generation.present()) return invalid("generation", "tensor is missing");
  if (!v.live_generation.present()) return invalid("live_generation", "tensor is missing");
  TAMIS_RETURN_IF_ERROR(check_tensor("slot", v.slot, DType::kI32, {s.requests}));
  TAMIS_RETURN_IF_ERROR(check_tensor("generation", v.generation, DType::kU32, {s.requests}));
  const TensorView& live = v.live_generation;
  if (live.rank != 1) return invalid("live_generation", "rank ", live.rank, ", expected 1");
  TAMIS_RETURN_IF_ERROR(check_tensor("live_generation", live, DType::kU32, {live.shape[0]}));
  if (reinterpret_cast<uintptr_t>(live.data) % alignof(uint32_t) != 0)
    return invalid("live_generation", "does not start on a multiple of ", alignof(uint32_t), " bytes");
  for (int64_t b = 0; readable && b < s.requests; ++b) {
    const int64_t slot = v.slot.at<int32_t>({b});
    if (slot < -1 || slot >= live.shape[0])
      return {Code::kInvalidArgument,
              text("slot: ", slot, " of request ", b, " is outside [0, ", live.shape[0], ") and not -1"),
              {.request = b, .value = slot, .limit = live.shape[0]}};
  }
  return {};
}

}  // namespace

Status check_out(const OutView& out, const Shape& s, bool readable) {
  const MutableTensorView &o = out.out, &lse = out.lse;
  if (!o.present()) return invalid("out", "tensor is missing");
  if (!is_plain_float(o.dtype) && !is_fp8(o.dtype) && o.dtype != DType::kI8)
    return invalid("out", "dtype ", dtype_name(o.dtype), " is not one of F32 F16 BF16 F8_E4M3 F8_E5M2 I8");
  TAMIS_RETURN_IF_ERROR(check_tensor("out", o, o.dtype, {s.total_q, s.q_heads, s.v_head_dim}));
  if (lse.present()) TAMIS_RETURN_IF_ERROR(check_tensor("lse", lse, DType::kF32, {s.total_q, s.q_heads}));
  if (readable) TAMIS_RETURN_IF_ERROR(check_epilogue(out, s));
  return check_slots(out.slots, s, readable);
}

}  // namespace tamis
