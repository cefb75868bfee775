#include "json_text.h"

namespace tamis::cli {

Json parse_json(std::string_view text) {
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

}  // namespace tamis::cli
