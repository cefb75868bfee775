#include "capi/output.h"

#include "capi/numbers.h"
#include "capi/problem.h"
#include "capi/structs.h"

namespace tamis::capi {
namespace {

tamis_epilogue defaults(const Epilogue& e) {
  tamis_epilogue c{};
  c.struct_size = sizeof c;
  c.scale = e.scale;
  return c;
}

Status read_epilogue(const tamis_epilogue* from, Epilogue* to) {
  tamis_epilogue e = defaults({});
  TAMIS_RETURN_IF_ERROR(read_struct("epilogue", from, &e));
  TAMIS_RETURN_IF_ERROR(check_reserved("epilogue", e.reserved));
  to->scale = e.scale;
  TAMIS_RETURN_IF_ERROR(read_optional("gate", e.gate, true, &to->gate));
  TAMIS_RETURN_IF_ERROR(read_optional("static_scale", e.static_scale, true, &to->static_scale));
  return read_optional("out_scale", e.out_scale, true, &to->out_scale);
}

Status read_slots(const tamis_slots* from, SlotView* to) {
  tamis_slots s{};
  TAMIS_RETURN_IF_ERROR(read_struct("slots", from, &s));
  for (const auto& [name, tensor] :
       {std::pair{"slot", s.slot}, {"generation", s.generation}, {"live_generation", s.live_generation}})
    if (tensor == nullptr) return invalid(name, "is NULL");
  TAMIS_RETURN_IF_ERROR(read_tensor("slot", *s.slot, true, &to->slot));
  TAMIS_RETURN_IF_ERROR(read_tensor("generation", *s.generation, true, &to->generation));
  return read_tensor("live_generation", *s.live_generation, true, &to->live_generation);
}

}  // namespace

Status read_output(const tamis_output* from, OutView* to) {
  tamis_output o{};
  TAMIS_RETURN_IF_ERROR(read_struct("output", from, &o));
  TAMIS_RETURN_IF_ERROR(read_optional("out", o.out, true, &to->out));
  TAMIS_RETURN_IF_ERROR(read_optional("lse", o.lse, true, &to->lse));
  if (o.epilogue != nullptr) TAMIS_RETURN_IF_ERROR(read_epilogue(o.epilogue, &to->epilogue));
  return o.slots != nullptr ? read_slots(o.slots, &to->slots) : Status();
}

}  // namespace tamis::capi

extern "C" {

void tamis_epilogue_init_sized(tamis_epilogue* epilogue, uint64_t size) {
  tamis::capi::init_struct(tamis::capi::defaults({}), epilogue, size);
}

}  // extern "C"
