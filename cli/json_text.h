// JSON that a user wrote.
#pragma once

#include <string_view>

#include "cli.h"

namespace tamis::cli {

// What the text holds; discarded where it is not JSON, holds a zero byte, or nests deeper than anything that
// is meant: copying and printing such values recurses.
Json parse_json(std::string_view text);

}  // namespace tamis::cli
