// Problems without K and V, for the readings of normalize and plan alone.
#pragma once

#include "work.h"

namespace tamis::bench {

// One request of 64K tokens and 8 KV heads through a page table with stamps, a list of each head: 264 random
// pages of 16, or 2048 random tokens. No window: the lists are all there is.
Work page_lists_work(int64_t turns, uint64_t seed);
Work token_lists_work(int64_t turns, uint64_t seed);

}  // namespace tamis::bench
