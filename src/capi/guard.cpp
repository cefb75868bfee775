#include "capi/guard.h"

#include <cstring>

#include "capi/structs.h"

namespace tamis::capi {
namespace {

void set(const std::optional<int64_t>& from, uint32_t bit, int64_t* to, uint32_t* has) {
  if (!from) return;
  *to = *from;
  *has |= bit;
}

int32_t report(Code code, const char* message, uint64_t length, const Where& where,
               tamis_error* error) noexcept {
  const int32_t number = static_cast<int32_t>(code);
  if (error == nullptr) return number;
  tamis_error e{};
  uint64_t size = 0;  // checked by can_report
  std::memcpy(&size, error, sizeof size);
  std::memcpy(static_cast<void*>(&e), error, size);
  e.code = number;
  e.has = 0;
  e.message_length = length;
  e.request = e.row = e.page = e.value = e.limit = 0;
  set(where.request, TAMIS_HAS_REQUEST, &e.request, &e.has);
  set(where.row, TAMIS_HAS_ROW, &e.row, &e.has);
  set(where.page, TAMIS_HAS_PAGE, &e.page, &e.has);
  set(where.value, TAMIS_HAS_VALUE, &e.value, &e.has);
  set(where.limit, TAMIS_HAS_LIMIT, &e.limit, &e.has);
  copy_text(message, length, e.message, e.message_capacity);
  write_struct(e, error);
  return number;
}

}  // namespace

bool can_report(const tamis_error* error) noexcept {
  if (error == nullptr) return true;
  uint64_t size = 0;
  std::memcpy(&size, error, sizeof size);
  return size >= sizeof size && size <= sizeof(tamis_error) && size % 8 == 0;
}

void copy_text(const char* message, uint64_t length, char* to, uint64_t capacity) noexcept {
  if (to == nullptr || capacity == 0) return;
  uint64_t fits = length < capacity ? length : capacity - 1;
  // A byte 10xxxxxx continues a character: do not cut in front of one.
  if (fits < length)
    while (fits > 0 && (static_cast<unsigned char>(message[fits]) & 0xC0) == 0x80) --fits;
  std::memcpy(to, message, fits);
  to[fits] = '\0';
}

int32_t report(const Status& status, tamis_error* error) noexcept {
  const std::string& message = status.message();
  return report(status.code(), message.data(), message.size(), status.where(), error);
}

int32_t report(Code code, const char* message, tamis_error* error) noexcept {
  return report(code, message, std::strlen(message), {}, error);
}

}  // namespace tamis::capi
