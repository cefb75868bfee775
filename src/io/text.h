// Text taken from a file or a caller, fit to stand in a message.
#pragma once

#include <string>
#include <string_view>

namespace tamis::io {

// The text in quotes, cut after about 80 bytes (never inside a UTF-8 character): a hostile file must not
// choose the length of our messages.
inline std::string in_quotes(std::string_view text) {
  constexpr size_t kLongest = 80;
  if (text.size() <= kLongest) return "'" + std::string(text) + "'";
  size_t cut = kLongest;
  while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) --cut;
  return "'" + std::string(text.substr(0, cut)) + "...'";
}

}  // namespace tamis::io
