// JSON that a user wrote.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

namespace tamis::io {

// What the text holds, keys in its order; discarded where it is not JSON, holds a zero byte, or nests deeper
// than anything that is meant: copying and printing such values recurses.
inline nlohmann::ordered_json parse_json(std::string_view text) {
  using Json = nlohmann::ordered_json;
  constexpr int most_depth = 100;
  const Json none(Json::value_t::discarded);
  // The parser takes a zero byte for the end.
  if (text.find('\0') != text.npos) return none;
  bool too_deep = false;
  Json value = Json::parse(
      text,
      [&too_deep](int depth, Json::parse_event_t, Json&) {
        too_deep = too_deep || depth > most_depth;
        return !too_deep;
      },
      false);
  return too_deep ? none : value;
}

}  // namespace tamis::io
