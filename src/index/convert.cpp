// Raw rows between CSR, one fixed width, and tiers.
#include "tamis/convert.h"

#include <algorithm>

#include "core/checks.h"
#include "index/raw_rows.h"
#include "index/row.h"

namespace tamis {
namespace {

using index::RawRow;

Status check_edges(std::span<const int64_t> edges) {
  int64_t previous = -1;
  for (const int64_t edge : edges) {
    if (edge < 0 || edge > index::kMostWidth)
      return invalid("edges", edge, " is outside [0, ", index::kMostWidth, "]");
    if (edge <= previous) return invalid("edges", edge, " follows ", previous, ", edges ascend");
    previous = edge;
  }
  return {};
}

// Room for rows x width entries, no more than may be asked for. Widths are 31-bit and rows 26-bit numbers.
Status check_room(int64_t rows, int64_t width) {
  if (width == 0 || rows <= index::kMostEntries / width) return {};
  return {Code::kCapacityExceeded,
          text("width: ", rows, " rows of ", width, " are more than ", index::kMostEntries, " entries"),
          {.value = width, .limit = index::kMostEntries / rows + 1}};
}

Status too_long(int64_t row, int64_t length, const char* what, int64_t room) {
  return {Code::kCapacityExceeded,
          text("cand_indices: row ", row, " has ", length, " entries, ", what, " ", room),
          {.row = row, .value = length, .limit = room + 1}};
}

FixedRows empty_block(int64_t rows, int64_t width) {
  return {.rows = rows,
          .width = width,
          .indices = std::vector<int32_t>(static_cast<size_t>(rows * width), -1),
          .count = std::vector<int32_t>(static_cast<size_t>(rows), 0)};
}

void put_row(const RawRow& row, int64_t at, FixedRows* block) {
  int32_t* to = block->indices.data() + at * block->width;
  for (int64_t i = 0; i < row.count; ++i) to[i] = row.entries[i * row.stride];
  block->count[at] = static_cast<int32_t>(row.count);
}

void append_row(const RawRow& row, Padding padding, CandidateRows* out) {
  for (int64_t i = 0; i < row.count; ++i) {
    const int32_t entry = row.entries[i * row.stride];
    if (entry != -1 || padding == Padding::kKeep) out->indices.push_back(entry);
  }
  out->indptr.push_back(static_cast<int64_t>(out->indices.size()));
}

// Entries of a fixed-width view may overlap (strides of 0), so there can be more than there is memory.
Status check_entries(int64_t entries) {
  if (entries <= index::kMostEntries) return {};
  return {Code::kCapacityExceeded,
          text("cand_indices: more than ", index::kMostEntries, " entries"),
          {.limit = index::kMostEntries + 1}};
}

CandidateView block_view(const TierView& tier) {
  return {.form = CandidateForm::kFixedWidth, .indices = tier.indices, .count = tier.count};
}

// Where each row of the whole is: (tier, row of its block).
struct Place {
  int32_t tier = -1;
  int32_t at = 0;
};

Result<std::vector<Place>> places_of(std::span<const TierView> tiers) {
  int64_t rows = 0;
  for (const TierView& tier : tiers) {
    const Result<int64_t> held = index::check_raw_rows(block_view(tier));
    if (!held.ok()) return held.status();
    TAMIS_RETURN_IF_ERROR(index::check_ints("row_ids", tier.row_ids, 1));
    if (tier.row_ids.shape[0] != *held)
      return invalid("row_ids", tier.row_ids.shape[0], " ids for a block of ", *held, " rows");
    rows += *held;
    if (rows > index::kMostRows)
      return Status(Code::kCapacityExceeded, text("row_ids: more than ", index::kMostRows, " rows"),
                    {.limit = index::kMostRows + 1});
  }
  std::vector<Place> places(static_cast<size_t>(rows));
  for (size_t n = 0; n < tiers.size(); ++n)
    for (int64_t i = 0; i < tiers[n].row_ids.shape[0]; ++i) {
      const int32_t id = tiers[n].row_ids.at<int32_t>({i});
      if (id < 0 || id >= rows)
        return Status(Code::kInvalidArgument,
                      text("row_ids: ", id, " in tier ", n, " is outside [0, ", rows, ")"),
                      {.value = id, .limit = rows});
      if (places[id].tier >= 0)
        return Status(Code::kInvalidArgument,
                      text("row_ids: ", id, " in tier ", n, " is held by tier ", places[id].tier, " already"),
                      {.row = id, .value = id});
      places[id] = {static_cast<int32_t>(n), static_cast<int32_t>(i)};
    }
  return places;  // as many ids as rows, all different: a permutation
}

Result<FixedRows> widen(const CandidateView& c, std::optional<int64_t> width) {
  const Result<int64_t> rows = index::check_raw_rows(c);
  if (!rows.ok()) return rows.status();
  if (width && (*width < 0 || *width > index::kMostWidth))
    return invalid("width", *width, " is outside [0, ", index::kMostWidth, "]");
  int64_t longest = 0;
  for (int64_t r = 0; r < *rows; ++r) {
    const int64_t length = index::raw_row(c, r).count;
    if (length > width.value_or(index::kMostWidth))
      return too_long(r, length, "the width is", width.value_or(index::kMostWidth));
    longest = std::max(longest, length);
  }
  TAMIS_RETURN_IF_ERROR(check_room(*rows, width.value_or(longest)));
  FixedRows out = empty_block(*rows, width.value_or(longest));
  for (int64_t r = 0; r < *rows; ++r) put_row(index::raw_row(c, r), r, &out);
  return out;
}

Result<TieredRows> spread(const CandidateView& c, std::span<const int64_t> edges) {
  const Result<int64_t> rows = index::check_raw_rows(c);
  if (!rows.ok()) return rows.status();
  TAMIS_RETURN_IF_ERROR(check_edges(edges));
  TieredRows out;
  out.tiers.resize(edges.size());
  for (int64_t r = 0; r < *rows; ++r) {
    const int64_t length = index::raw_row(c, r).count;
    const auto tier = std::lower_bound(edges.begin(), edges.end(), length) - edges.begin();
    if (tier == std::ssize(edges))
      return too_long(r, length, "the largest tier holds", edges.empty() ? 0 : edges.back());
    out.tiers[tier].row_ids.push_back(static_cast<int32_t>(r));
  }
  for (size_t n = 0; n < edges.size(); ++n) {
    TierBlock& tier = out.tiers[n];
    TAMIS_RETURN_IF_ERROR(check_room(std::ssize(tier.row_ids), edges[n]));
    tier.block = empty_block(std::ssize(tier.row_ids), edges[n]);
    for (size_t i = 0; i < tier.row_ids.size(); ++i)
      put_row(index::raw_row(c, tier.row_ids[i]), static_cast<int64_t>(i), &tier.block);
  }
  return out;
}

int64_t count_used(const CandidateView& c, int64_t rows) {
  int64_t used = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const RawRow row = index::raw_row(c, r);
    for (int64_t i = 0; i < row.count; ++i) used += row.entries[i * row.stride] != -1;
  }
  return used;
}

}  // namespace

CandidateView FixedRows::view(const CandidateView& like) const {
  CandidateView c = like;
  c.form = CandidateForm::kFixedWidth;
  c.indptr = {};
  c.indices = dense_view(indices.data(), DType::kI32, {rows, width});
  c.count = dense_view(count.data(), DType::kI32, {rows});
  return c;
}

TierView TierBlock::view() const {
  const CandidateView c = block.view({});
  return {.row_ids = dense_view(row_ids.data(), DType::kI32, {std::ssize(row_ids)}),
          .indices = c.indices,
          .count = c.count};
}

std::vector<TierView> TieredRows::views() const {
  std::vector<TierView> views;
  for (const TierBlock& tier : tiers) views.push_back(tier.view());
  return views;
}

Result<CandidateRows> to_csr(const CandidateView& c, Padding padding) {
  return guarded([&]() -> Result<CandidateRows> {
    const Result<int64_t> rows = index::check_raw_rows(c);
    if (!rows.ok()) return rows.status();
    int64_t entries = 0;  // at most 2^26 rows of 31-bit lengths, or the extent of one array
    for (int64_t r = 0; r < *rows && entries <= index::kMostEntries; ++r)
      entries += index::raw_row(c, r).count;
    TAMIS_RETURN_IF_ERROR(check_entries(entries));
    CandidateRows out{.indptr = {0}, .indices = {}};
    for (int64_t r = 0; r < *rows; ++r) append_row(index::raw_row(c, r), padding, &out);
    return out;
  });
}

Result<CandidateRows> to_csr(std::span<const TierView> tiers, Padding padding) {
  return guarded([&]() -> Result<CandidateRows> {
    const Result<std::vector<Place>> places = places_of(tiers);
    if (!places.ok()) return places.status();
    const auto row_at = [&](const Place& p) { return index::raw_row(block_view(tiers[p.tier]), p.at); };
    int64_t entries = 0;
    for (const Place& p : *places)
      if (entries <= index::kMostEntries) entries += row_at(p).count;
    TAMIS_RETURN_IF_ERROR(check_entries(entries));
    CandidateRows out{.indptr = {0}, .indices = {}};
    for (const Place& p : *places) append_row(row_at(p), padding, &out);
    return out;
  });
}

Result<FixedRows> to_fixed_width(const CandidateView& rows, std::optional<int64_t> width) {
  return guarded([&] { return widen(rows, width); });
}

Result<TieredRows> to_tiers(const CandidateView& rows, std::span<const int64_t> edges) {
  return guarded([&] { return spread(rows, edges); });
}

Result<int64_t> tier_of(std::span<const int64_t> edges, int64_t length) {
  TAMIS_RETURN_IF_ERROR(check_edges(edges));
  if (length < 0) return invalid("length", length, " is negative");
  const auto tier = std::lower_bound(edges.begin(), edges.end(), length) - edges.begin();
  if (tier < std::ssize(edges)) return tier;
  return Status(Code::kCapacityExceeded,
                text("length: ", length, " is above ", edges.empty() ? 0 : edges.back(), ", the largest of ",
                     edges.size(), " tiers"),
                {.value = length, .limit = edges.empty() ? 0 : edges.back() + 1});
}

Result<Utilization> utilization(const CandidateView& c) {
  const Result<int64_t> rows = index::check_raw_rows(c);
  if (!rows.ok()) return rows.status();
  int64_t allocated = c.indices.shape[0];
  if (c.form == CandidateForm::kFixedWidth &&
      __builtin_mul_overflow(allocated, c.indices.shape[1], &allocated))
    return Status(Code::kCapacityExceeded, "cand_indices: more entries than 64 bits can count");
  return Utilization{.used = count_used(c, *rows), .allocated = allocated};
}

Result<TierUtilization> utilization(std::span<const TierView> tiers) {
  return guarded([&]() -> Result<TierUtilization> {
    const Result<std::vector<Place>> places = places_of(tiers);
    if (!places.ok()) return places.status();
    TierUtilization out;
    for (const TierView& tier : tiers) {
      const Result<Utilization> block = utilization(block_view(tier));
      if (!block.ok()) return block.status();
      out.tiers.push_back(*block);
      out.total.used += block->used;
      if (__builtin_add_overflow(out.total.allocated, block->allocated, &out.total.allocated))
        return Status(Code::kCapacityExceeded, "cand_indices: more entries than 64 bits can count");
    }
    return out;
  });
}

}  // namespace tamis
