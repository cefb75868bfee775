// Raw candidate rows from one layout to another: CSR, fixed width, and tiers (several fixed widths).
//
// Nothing is judged, sorted or merged here: the entries of a row keep their order, duplicates stay, and an
// entry out of range is carried along for normalize to refuse or drop. Nothing is ever cut: a row that does
// not fit is capacity_exceeded. Views that come in are checked before they are followed (offsets, counts,
// row ids), whoever made them; what comes out owns its arrays. Host memory; cost O(entries read + written).
//
// The length of a row is the number of its raw entries: those between two offsets, or before its count, or K
// where there is no count. A -1 among them is an entry like any other until it is dropped.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tamis/candidates.h"
#include "tamis/select.h"
#include "tamis/status.h"
#include "tamis/tensor.h"

namespace tamis {

// What becomes of -1 entries on the way to CSR. Both are exact, in different senses.
enum class Padding : uint8_t {
  kKeep,  // the same entries: converting back gives the same rows, and all statistics stay what they were
  kDrop,  // the same candidates: every set and value stays, `raw` and `padding` of the statistics do not
};

// Rows of one width that own their arrays.
struct FixedRows {
  int64_t rows = 0, width = 0;
  std::vector<int32_t> indices;                         // [rows, width]; -1 from count on
  std::vector<int32_t> count;                           // [rows]: the length of each row
  CandidateView view(const CandidateView& like) const;  // policies and units of `like`, arrays of this
};

// One tier as arrays: a block of rows of one width (the tier's edge), and which rows these are.
struct TierView {
  TensorView row_ids{};  // [n] i32: the row of the whole that each row of the block is
  TensorView indices{};  // [n, edge] i32
  TensorView count{};    // [n] i32, optional
};

struct TierBlock {
  std::vector<int32_t> row_ids;  // ascending
  FixedRows block;
  TierView view() const;
};

// As many tiers as edges, also those that no row fell into. Together they hold every row once.
struct TieredRows {
  std::vector<TierBlock> tiers;
  std::vector<TierView> views() const;
};

// Of allocated entries, how many name a candidate: entries before the count that are not -1.
struct Utilization {
  int64_t used = 0, allocated = 0;
  double share() const { return allocated == 0 ? 0 : static_cast<double>(used) / allocated; }
};

struct TierUtilization {
  std::vector<Utilization> tiers;
  Utilization total;
};

// Either form to CSR with 64-bit offsets.
Result<CandidateRows> to_csr(const CandidateView& rows, Padding padding);

// Either form to rows of `width` entries, by default as many as the longest row has. The counts make the way
// back exact; a consumer that knows no counts may ignore them, since what follows a row is -1.
Result<FixedRows> to_fixed_width(const CandidateView& rows, std::optional<int64_t> width = {});

// Each row into the smallest tier that holds it. `edges` ascend strictly.
Result<TieredRows> to_tiers(const CandidateView& rows, std::span<const int64_t> edges);

// Back to CSR, the rows in their order. The row ids must be a permutation of 0 .. rows - 1 over all tiers.
Result<CandidateRows> to_csr(std::span<const TierView> tiers, Padding padding);

// The tier of a row of `length` entries: the first whose edge is not below it. Longer than the last edge:
// capacity_exceeded.
Result<int64_t> tier_of(std::span<const int64_t> edges, int64_t length);

Result<Utilization> utilization(const CandidateView& rows);
Result<TierUtilization> utilization(std::span<const TierView> tiers);

}  // namespace tamis
