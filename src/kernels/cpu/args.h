// What a CPU kernel is told. Plain structs, so that files compiled for one instruction set share no inline
// code with the others. Strides in bytes unless said otherwise.
#pragma once

#include <cstdint>

#include "core/bits.h"
#include "tamis/index.h"

namespace tamis::cpu {

inline constexpr int kTile = 64;       // columns of a tile: one member word
inline constexpr int kRowChunk = 256;  // query rows a task works on at a time
inline constexpr int kMaxHeadDim = 512;

enum class Element : uint8_t { kF32, kF16, kBF16, kInt8, kE4M3, kE5M2, kInt4 };

// K or V of one KV head. Strides in bytes; a pair of int4 is one byte, and `dim` steps over a pair.
struct Side {
  const char* data;
  int64_t page, token, dim;
  int64_t head_dim;
  Element element;
  // x = code * scale; null for plain elements. Strides in floats.
  const float* scale;
  int64_t scale_page, scale_token, scale_dim;
};

// Neighbouring rows of a chunk that attend to the same set: one list, one position.
struct MaskGroup {
  int32_t list;
  Sight sight;
};

struct ScoreArgs {
  float scale, softcap;      // softcap 0: none
  const float* slopes;       // [rows] ALiBi, or null
  const int64_t* positions;  // [rows], with slopes
};

// An edge is kept when its random word (core/philox.h) reaches the threshold.
struct DropoutArgs {
  bool active;
  uint32_t threshold;
  float keep;  // what a kept weight is multiplied with: 1 / (1 - p)
  uint64_t seed;
  uint32_t request;
  const uint32_t* heads;     // [rows]
  const int64_t* positions;  // [rows]
};

// Blocks [begin, end) of a bundle.
struct BlockArgs {
  const int32_t* blocks;
  const uint64_t* members;  // of block j, list l, word w: members[(j * lists + l) * words + w]
  const int64_t* span_begin;
  const Span* spans;
  int32_t begin, end;
  int32_t lists, words, block;
  int64_t page_size;  // 0: contiguous
  bool load_all;      // dense path: every token of a span is a column
};

// The columns that some row of a chunk selects: what tiles are filled from.
struct TileArgs {
  BlockArgs index;
  Side k, v;
  const MaskGroup* groups;
  const int16_t* group_of;  // [rows]
  int32_t group_count, rows;
};

// One chunk of query rows of one task. The state is read nowhere and written whole: o [rows, Dv], m and l
// [rows].
struct AttendArgs : TileArgs {
  ScoreArgs score;
  DropoutArgs dropout;
  const float* q;  // [rows, q_stride] f32, zero behind D
  int64_t q_stride;
  // The same as pairs of bf16 [rows, q_pair_stride], zero behind D; null where q and k are not both bf16.
  const uint32_t* q_pairs;
  int64_t q_pair_stride;
  bool pair_weights;  // weights may be rounded to bf16: q, k and v are
  float* o;
  float* m;
  float* l;
  char* scratch;  // scratch_bytes(k, v) of this instruction set, on a 64-byte line
};

struct AttendCounts {
  int64_t tiles, tokens, rows_redone;
};

struct QueryPassArgs;
struct KeyPassArgs;

// One implementation of everything above, and of the passes of backward_args.h.
struct Isa {
  const char* name;
  int width;   // floats of a vector
  bool pairs;  // has products of bf16 pairs
  int64_t (*scratch_bytes)(int64_t head_dim, int64_t v_head_dim);
  void (*attend)(const AttendArgs& args, AttendCounts* counts);
  int64_t (*query_pass_scratch)(int64_t head_dim, int64_t v_head_dim);
  void (*query_pass)(const QueryPassArgs& args);
  void (*key_pass)(const KeyPassArgs& args);
};

// Widest first; null where this build lacks it. `supported` asks the processor.
struct IsaEntry {
  const Isa* isa;
  bool (*supported)();
};
extern const Isa kAvx512Bf16, kAvx512, kAvx2, kPlain;

}  // namespace tamis::cpu
