// The accounting of a problem: what its sets cost to load and compute, before anything runs.
//
// Everything follows from the sets alone (docs/semantics.md section 13); pages are not checked and K and V
// are not read. Sums run over (row, KV head the row serves); a row's set is the union of its queries' sets. A
// contiguous cache counts as pages of `unit` tokens. Ratios with a zero denominator are 0.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tamis/problem.h"
#include "tamis/reference.h"
#include "tamis/status.h"

namespace tamis {

struct AccountingOptions {
  int64_t tile = 64;     // tokens of a KV tile, >= 1
  int64_t splits = 1;    // KV splits the workspace is counted for, >= 1
  double bandwidth = 0;  // bytes per second; 0: no floor is given
};

// Tokens, pages and tiles. "Aligned" tiles start at multiples of the tile size; "packed" ones hold pages back
// to back.
struct TileAccount {
  int64_t rows, kv_heads, selected_tokens, touched_pages;
  int64_t aligned, packed;                       // tiles
  double efficiency_aligned, efficiency_packed;  // selected tokens / (tiles * tile)
  double block_utilization;                      // selected tokens / (touched pages * page)
};

// K and V bytes, quantization scales apart.
struct ByteAccount {
  int64_t logical, pages, aligned, dense;
  double compression_logical, compression_aligned;  // dense over each
  int64_t index, index_normalized, scales;
  int64_t transactions;           // 128 * distinct 128-byte lines
  double transaction_efficiency;  // logical over transactions
};

struct WorkspaceAccount {
  int64_t splits, partial_o, partial_ml, total;  // bytes
};

struct Accounting {
  TileAccount tiles;
  ByteAccount bytes;
  int64_t flops_logical, flops_aligned;
  WorkspaceAccount workspace;
  double floor_us;  // logical bytes over the bandwidth; 0 without one
};

Result<Accounting> explain(const Problem& problem, const AccountingOptions& options);
Result<Accounting> explain(const Problem& problem, const reference::Sets& sets,
                           const AccountingOptions& options);

// What the length of a candidate row counts.
enum class LengthOf : uint8_t {
  kEntries,  // raw entries other than padding, duplicates included
  kTokens,   // the union of its queries' sets: window and sink included
  kPages,    // pages these tokens lie on; of a contiguous cache, `unit` tokens each
};

// The length of each candidate row: what capacity tiers are chosen from (tiers.h). kEntries is 0 where rows
// list nothing (Candidates::all, none); the other two fail as build_sets does.
Result<std::vector<int64_t>> row_lengths(const Problem& problem, LengthOf what);

// A self-contained SVG picture of rows x blocks of `block` tokens, one band per index head: blocks reached by
// dynamic candidates, by the window and by the sink are told apart, and the causal edge is drawn. `block` >=
// 1; long contexts are folded so that the picture stays below about 200 KB.
Result<std::string> draw_map(const Problem& problem, const reference::Sets& sets, int64_t block);

// Share of the full softmax that a sparse row keeps, exp(lse_sparse - lse_full): the mass of S under full
// attention. Both [total_q, Hq]; an empty full row counts as kept. Summed up per query head.
struct KeptMass {
  std::vector<double> mean, min;  // [Hq]
};
KeptMass kept_mass(const std::vector<double>& lse_sparse, const std::vector<double>& lse_full,
                   int64_t q_heads);

}  // namespace tamis
