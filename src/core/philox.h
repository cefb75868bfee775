// The dropout of docs/semantics.md section 6: one random word for each edge, from its own coordinates, so
// that order, tile, split and pass cannot change it. Source: Philox4x32-10, Salmon et al., "Parallel random
// numbers: as easy as 1, 2, 3" (SC 2011).
#pragma once

#include <cstdint>

#include "core/hd.h"

namespace tamis {

struct PhiloxWords {
  uint32_t word[4];
};

TAMIS_HD inline PhiloxWords philox4x32(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint64_t seed) {
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * c0, b = uint64_t{0xCD9E8D57} * c2;
    c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(b);
    c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(a);
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return {{c0, c1, c2, c3}};
}

// An edge is kept when its word reaches this. p < 1, so it fits.
inline uint32_t dropout_threshold(double p) { return static_cast<uint32_t>(p * 4294967296.0); }

}  // namespace tamis
