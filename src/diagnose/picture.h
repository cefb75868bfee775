// A grid drawn as SVG: no scripts, no stylesheet, nothing fetched from elsewhere.
#pragma once

#include <string>

#include "diagnose/grid.h"

namespace tamis::diagnose {

// `block` is what the caller asked for; the caption says how much of it a cell stands for.
std::string draw(const Grid& grid, const Problem& problem, int64_t block);

}  // namespace tamis::diagnose
