// The border: a Status becomes a code and a tamis_error, and no exception gets past it.
#pragma once

#include <cstdint>
#include <exception>
#include <new>
#include <stdexcept>
#include <system_error>

#include "tamis/status.h"
#include "tamis/tamis_c.h"

namespace tamis::capi {

// False for a tamis_error that must not be written to. NULL is fine.
bool can_report(const tamis_error* error) noexcept;

// Both return the code. Neither allocates, so that running out of memory can be reported.
int32_t report(const Status& status, tamis_error* error) noexcept;
int32_t report(Code code, const char* message, tamis_error* error) noexcept;

// Copies as much of `message` as fits with its NUL, cut between characters of UTF-8.
void copy_text(const char* message, uint64_t length, char* to, uint64_t capacity) noexcept;

// Runs body(), which returns a Status. Exceptions come from the standard library alone: no memory, a size
// past all memory, no thread to be had. Anything else would be a fault of ours and must not be the caller's
// end.
template <class Body>
int32_t guarded(tamis_error* error, Body body) noexcept {
  if (!can_report(error)) return TAMIS_INVALID_ARGUMENT;
  try {
    return report(body(), error);
  } catch (const std::bad_alloc&) {
    return report(Code::kCapacityExceeded, "memory: there is not enough", error);
  } catch (const std::length_error&) {
    return report(Code::kCapacityExceeded, "memory: a size is larger than any memory", error);
  } catch (const std::system_error&) {
    return report(Code::kCapacityExceeded, "threads: the system gives no more", error);
  } catch (const std::exception& e) {
    return report(Code::kDeviceError, e.what(), error);
  } catch (...) {
    return report(Code::kDeviceError, "unknown failure inside the library", error);
  }
}

}  // namespace tamis::capi
