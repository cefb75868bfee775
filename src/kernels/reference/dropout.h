// docs/semantics.md section 6: which edges dropout keeps.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

#include "tamis/problem.h"

namespace tamis::reference {

// Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
inline std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0], b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key = {key[0] + 0x9E3779B9, key[1] + 0xBB67AE85};
  }
  return counter;
}

// Whether the edge from query head `head` of request `request` at `position` to `token` is kept.
inline bool keeps(const Dropout& dropout, int64_t request, int64_t head, int64_t position, int64_t token) {
  if (dropout.p == 0) return true;
  const auto words = philox({static_cast<uint32_t>(token / 4), static_cast<uint32_t>(position),
                             static_cast<uint32_t>(head), static_cast<uint32_t>(request)},
                            {static_cast<uint32_t>(dropout.seed), static_cast<uint32_t>(dropout.seed >> 32)});
  return words[token % 4] >= std::floor(dropout.p * 0x1p32);
}

}  // namespace tamis::reference
