// Raw candidate rows that come alone, without the problem that would say how many there must be.
#pragma once

#include <cstdint>

#include "tamis/candidates.h"
#include "tamis/status.h"

namespace tamis::index {

// Allocated entries and rows beyond which nothing is made: memory must not follow a hostile number.
inline constexpr int64_t kMostRows = int64_t{1} << 26, kMostEntries = int64_t{1} << 32;
inline constexpr int64_t kMostWidth = (int64_t{1} << 31) - 1;  // counts are 32-bit

// The number of rows, once every offset and count can be followed. CSR or fixed width only.
Result<int64_t> check_raw_rows(const CandidateView& rows);

// A tensor of rank `rank` of i32 (or i64 too) with memory behind its elements.
Status check_ints(const char* name, const TensorView& t, int rank, bool or_i64 = false);

}  // namespace tamis::index
