// Quantized K and V: making them, reading them back, and writing new tokens into them.
//
// x = code * scale, with the formats and scale kinds of cache.h (docs/semantics.md section 8). Codes are the
// nearest ones to x / scale, ties to even; what lies beyond the largest code becomes the largest code and is
// counted as saturated (docs/quantization.md). k and v are quantized one at a time: each has its own format.
//
// Host memory only; single-threaded. quantize and dequantize allocate their results; append_rows writes into
// the caller's cache and allocates nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tamis/cache.h"
#include "tamis/problem.h"
#include "tamis/status.h"

namespace tamis {

// Bytes of codes and their scales. Owns both; the views are valid as long as it lives and is not moved from.
struct Quantized {
  std::vector<uint8_t> code_bytes;
  std::vector<float> scales;
  TensorView codes;             // dense, x's shape; int4: two codes a byte and half the last extent
  Quantization quantization;    // format, kind and scale, ready for a CacheView
  int64_t saturated_codes = 0;  // counted; a scale made from the largest magnitude leaves none

  Quantized() = default;
  Quantized(const Quantized&) = delete;  // the views would still point into the original
  Quantized(Quantized&&) = default;
  Quantized& operator=(Quantized&&) = default;
};

struct QuantizeOptions {
  Layout layout = Layout::kNHD;
  // Which slots hold something, not 0: [pages, P], or [total_kv] for a contiguous cache; u8, as used_slots()
  // makes it. Absent: all. Other slots may hold anything, NaN included: they are not read, get code 0 and
  // have no say in a scale.
  TensorView used{};
  const char* name = "x";  // what messages call x
};

// Quantizes k or v of any strides: f32, f16 or bf16; rank 4 is paged, rank 3 contiguous (shapes: cache.h).
// The scale of a group is its largest magnitude over the largest code (127, 7, 448, 57344), 1 for a group of
// zeros or without used slots. Fails with invalid_argument, naming x: dtype, rank, an odd head size with
// int4, a scale per page without pages, a used value that is not finite.
Result<Quantized> quantize(const TensorView& x, Format format, ScaleKind kind,
                           const QuantizeOptions& options = {});

// The slots that hold committed tokens: [pages * P] or [total_kv], 1 or 0. Table entries that name no page
// are passed over: judging them is for whoever touches them.
Result<std::vector<uint8_t>> used_slots(const Problem& problem);

// f32 values, dense, in the shape of x.
struct Dequantized {
  std::vector<float> values;
  TensorView view;

  Dequantized() = default;
  Dequantized(const Dequantized&) = delete;
  Dequantized(Dequantized&&) = default;
  Dequantized& operator=(Dequantized&&) = default;
};

// code * scale of every slot, rounded to f32; kPlain only widens. The scale is checked for its shape, not for
// its values.
Result<Dequantized> dequantize(const TensorView& codes, Layout layout, const Quantization& quantization,
                               const char* name = "x");

// The problem on the dequantized values: what the exact result of a quantized problem is defined on. Views of
// all but K and V are the original's.
struct DequantizedProblem {
  Problem problem;
  Dequantized k, v;
};
Result<DequantizedProblem> dequantized(const Problem& problem);

// int4 codes, each -8 to 7, two a byte, the first in the low nibble. `packed` holds half as many bytes as
// there are codes. A code out of range or an odd count is invalid_argument.
Status pack_int4(std::span<const int8_t> codes, std::span<uint8_t> packed);
Status unpack_int4(std::span<const uint8_t> packed, std::span<int8_t> codes);

// A quantized k or v that new tokens are written into.
struct QuantizedCache {
  MutableTensorView codes{};  // as in CacheView, any strides
  Layout layout = Layout::kNHD;
  Quantization quantization{};      // the scales that are there
  MutableTensorView token_scale{};  // kToken only, where it is required: the scales to write
  const char* name = "x";           // what messages call the cache
};

struct AppendCounts {
  int64_t rows = 0;       // written
  int64_t skipped = 0;    // slot -1
  int64_t saturated = 0;  // values beyond the range of the scale
};

// Writes rows [n, Hkv, D] (f32, f16 or bf16, any strides) into slots [n] (i32 or i64; page * P + offset, or
// the row of a contiguous cache; -1 skips), in order. The scale of the slot's group stays as it is, so values
// beyond it saturate; a scale per token is made from the row and written. Fails with invalid_argument, and
// has then written nothing: shapes, a slot outside the cache, a value that is not finite, a scale that is not
// finite and above 0.
Result<AppendCounts> append_rows(const QuantizedCache& cache, const TensorView& rows,
                                 const TensorView& slots);

}  // namespace tamis
