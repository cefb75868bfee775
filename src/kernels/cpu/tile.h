// Packed tiles: the next tokens of a bundle's blocks, back to back, up to 64 columns, each with its logical
// position, its addresses and, per mask group, its bit. Columns are the tokens that some row of the chunk
// selects (on the dense path every token of the spans), so nothing else is loaded.
#pragma once

#include "kernels/cpu/args.h"
#include "kernels/cpu/vec.h"

namespace tamis::cpu::TAMIS_ISA {

struct Tile {
  int columns = 0;
  bool uniform = true;           // every row selects every column
  int32_t position[kTile] = {};  // logical token
  int64_t slot[kTile];           // page * P + offset, or the row of a contiguous cache
  Row k[kTile + 4];              // the last ones repeat, so that groups of four may read past the end
  Row v[kTile + 4];
  uint64_t bits[kRowChunk];  // [group] columns that the rows of the group select; set unless uniform
};

// The columns that a row selects of a tile.
TAMIS_INLINE uint64_t selected(const TileArgs& args, const Tile& tile, int row) {
  return (tile.uniform ? ~uint64_t{0} : tile.bits[args.group_of[row]]) &
         (~uint64_t{0} >> (kTile - tile.columns));
}

// Walks the words of a range of blocks and fills one tile after the other.
class TileBuilder {
 public:
  TAMIS_INLINE explicit TileBuilder(const TileArgs& args) : a_(args), block_(args.index.begin) {}

  // False when the range is exhausted; the tile is empty then.
  bool next(Tile* tile) {
    tile->columns = 0;
    tile->uniform = true;
    while (tile->columns < kTile) {
      if (pending_ == 0 && !next_word()) break;
      take(tile);
    }
    for (int c = tile->columns; c % 4 != 0; ++c) {
      tile->k[c] = tile->k[tile->columns - 1];
      tile->v[c] = tile->v[tile->columns - 1];
    }
    return tile->columns > 0;
  }

 private:
  // Finds the next word with a column; fills pending_, base_ and the rows' words.
  bool next_word() {
    const BlockArgs& x = a_.index;
    for (; block_ < x.end; ++block_, word_ = 0)
      for (; word_ < x.words;) {
        base_ = static_cast<int64_t>(x.blocks[block_]) * x.block + word_ * kWordBits;
        const uint64_t* listed = x.members + (static_cast<int64_t>(block_) * x.lists) * x.words + word_;
        uint64_t any = 0, all = ~uint64_t{0};
        for (int g = 0; g < a_.group_count; ++g) {
          const MaskGroup& group = a_.groups[g];
          const uint64_t bits =
              set_bits(listed[group.list * x.words], group.sight, base_) & word_mask(x.block);
          word_bits_[g] = bits;
          any |= bits;
          all &= bits;
        }
        ++word_;
        if (x.load_all) any = span_bits();
        if (any == 0) continue;
        pending_ = any;
        same_ = any == all;
        span_ = x.span_begin[block_];
        return true;
      }
    return false;
  }

  // The tokens of this word that lie in a span.
  uint64_t span_bits() const {
    uint64_t bits = 0;
    for (int64_t s = a_.index.span_begin[block_]; s < a_.index.span_begin[block_ + 1]; ++s) {
      const Span& span = a_.index.spans[s];
      bits |= range_bits(span.token, span.token + int64_t{span.length}, base_);
    }
    return bits;
  }

  // Moves columns from the pending word into the tile until one of them is used up.
  void take(Tile* tile) {
    const int room = kTile - tile->columns;
    uint64_t taken = pending_;
    if (__builtin_popcountll(taken) > room) {
      for (int i = 0; i < room; ++i) taken &= taken - 1;
      taken = pending_ & ~taken;
    }
    if (!same_ && tile->uniform) {  // what came before was selected by every row
      tile->uniform = false;
      const uint64_t before = tile->columns == 0 ? 0 : ~uint64_t{0} >> (kWordBits - tile->columns);
      for (int g = 0; g < a_.group_count; ++g) tile->bits[g] = before;
    }
    if (!tile->uniform)
      for (int g = 0; g < a_.group_count; ++g)
        tile->bits[g] |= pack_bits(word_bits_[g], taken) << tile->columns;
    pending_ &= ~taken;
    while (taken != 0) take_run(&taken, tile);
  }

  // One run of neighbouring tokens inside one span.
  TAMIS_INLINE void take_run(uint64_t* taken, Tile* tile) {
    const int first = __builtin_ctzll(*taken);
    const uint64_t rest = ~(*taken >> first);
    int length = rest == 0 ? kWordBits - first : __builtin_ctzll(rest);
    const int64_t token = base_ + first;
    const Span* span = &a_.index.spans[span_];
    while (token >= span->token + int64_t{span->length}) span = &a_.index.spans[++span_];
    const int64_t left = span->token + int64_t{span->length} - token;
    if (length > left) length = static_cast<int>(left);

    const int64_t slot = span->slot + (token - span->token), size = a_.index.page_size;
    const int64_t page = size == 0 ? 0 : slot / size, offset = size == 0 ? slot : slot - page * size;
    const int at = tile->columns;
    for (int i = 0; i < length; ++i) {
      tile->position[at + i] = static_cast<int32_t>(token + i);
      tile->slot[at + i] = slot + i;
    }
    put_rows(a_.k, page, offset, length, tile->k + at);
    put_rows(a_.v, page, offset, length, tile->v + at);
    tile->columns += length;
    *taken &= length == kWordBits ? 0 : ~(((uint64_t{1} << length) - 1) << first);
  }

  TAMIS_INLINE static void put_rows(const Side& side, int64_t page, int64_t offset, int length, Row* to) {
    const char* data = side.data + page * side.page + offset * side.token;
    if (side.scale == nullptr) {
      for (int i = 0; i < length; ++i) to[i] = {data + i * side.token, nullptr};
      return;
    }
    const float* scale = side.scale + page * side.scale_page + offset * side.scale_token;
    for (int i = 0; i < length; ++i) to[i] = {data + i * side.token, scale + i * side.scale_token};
  }

  const TileArgs& a_;
  int32_t block_, word_ = 0;
  int64_t base_ = 0, span_ = 0;
  uint64_t pending_ = 0;
  bool same_ = true;
  uint64_t word_bits_[kRowChunk];
};

}  // namespace tamis::cpu::TAMIS_ISA
