// A 64-bit hash of numbers: what fingerprints and stamps are made of. Not against malice.
#pragma once

#include <cstdint>

namespace tamis {

// FNV-1a's shape on whole words. Each step is a bijection of the state, so one changed word always changes
// the result; the shift brings the high bits of a product back down.
class Hash {
 public:
  void add(uint64_t word) {
    state_ = (state_ ^ word) * 0xFF51AFD7ED558CCDull;
    state_ ^= state_ >> 32;
  }
  void add(uint32_t high, uint32_t low) { add(uint64_t{high} << 32 | low); }

  // Never 0: that is what a schedule or plan that was never made holds.
  uint64_t value() const { return state_ != 0 ? state_ : 1; }

 private:
  uint64_t state_ = 0xCBF29CE484222325ull;
};

}  // namespace tamis
