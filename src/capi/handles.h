// What is behind the opaque handles, and how they are created, asked for and emptied.
#pragma once

#include <memory>
#include <optional>

#include "capi/guard.h"
#include "core/checks.h"
#include "tamis/attention.h"
#include "tamis/tamis_c.h"

namespace tamis::capi {

// Bundles point into the index set they were made of, so both hold it. `generation` counts its contents:
// bundles of an older one point at memory that has been reused.
struct IndexState {
  IndexSet set;
  Shape shape{};  // of the problem it was made of
  bool made = false;
  uint64_t generation = 0;
};

}  // namespace tamis::capi

struct tamis_context {
  tamis::Context context;
};

struct tamis_index_set {
  std::shared_ptr<tamis::capi::IndexState> state = std::make_shared<tamis::capi::IndexState>();

  bool made() const { return state->made; }
  void clear() {
    state->made = false;
    ++state->generation;
  }
};

struct tamis_bundles {
  tamis::Bundles bundles;
  std::shared_ptr<const tamis::capi::IndexState> index;
  uint64_t generation = 0;

  bool made() const { return index != nullptr; }
  void clear() { index.reset(); }
};

struct tamis_plan {
  std::optional<tamis::Plan> plan;

  bool made() const { return plan.has_value(); }
  void clear() { plan.reset(); }
};

struct tamis_schedule {
  std::optional<tamis::Schedule> schedule;

  bool made() const { return schedule.has_value(); }
  void clear() { schedule.reset(); }
};

namespace tamis::capi {

template <class Handle>
int32_t create(const char* name, Handle** out, tamis_error* error) noexcept {
  if (out != nullptr) *out = nullptr;
  return guarded(error, [&]() -> Status {
    if (out == nullptr) return invalid(name, "is NULL");
    *out = new Handle;
    return {};
  });
}

// For a handle that is about to be filled.
template <class Handle>
Status empty(const char* name, Handle* handle) {
  if (handle == nullptr) return invalid(name, "is NULL");
  handle->clear();
  return {};
}

// For a handle whose content is needed.
template <class Handle>
Status need(const char* name, const Handle* handle) {
  if (handle == nullptr) return invalid(name, "is NULL");
  if (!handle->made()) return invalid(name, "is empty, the call that fills it failed or was never made");
  return {};
}

// The same for bundles, which are also of no use once their index set holds something else.
Status need_current(const tamis_bundles* bundles);

// True when a step of shape `now` reads nothing past what an index made for `then` was checked against.
bool same_step(const Shape& then, const Shape& now);

}  // namespace tamis::capi
