// Where keys and values are: contiguous or paged, in any strides, plain or quantized.
//
// Paged:      k [pages, P, Hkv, D] (NHD) or [pages, Hkv, P, D] (HND), page_table [B, max_pages].
// Contiguous: k [total_kv, Hkv, D] (NHD) or [Hkv, total_kv, D] (HND), cu_kv [B + 1]: request b owns rows
//             cu_kv[b] .. cu_kv[b + 1], at least kv_len[b] of them.
// v is laid out like k, with its own head size. K and V may differ in strides and in format.
//
// Table entries of pages that no set touches are never read as pages: they may hold anything. See
// docs/semantics.md sections 1, 8 and 9.
#pragma once

#include <cstdint>

#include "tamis/tensor.h"

namespace tamis {

enum class Layout : uint8_t { kNHD, kHND };

enum class Format : uint8_t {
  kPlain,
  kInt8,
  kFp8E4M3,
  kFp8E5M2,
  kInt4
};  // kPlain: f32, f16 or bf16, no scale

enum class ScaleKind : uint8_t {
  kTensor,       // []
  kHead,         // [Hkv]
  kPage,         // [pages, Hkv]
  kChannel,      // [Hkv, D]
  kPageChannel,  // [pages, Hkv, D]
  kToken,        // k's shape less D
};

// x = code * scale. The scale is f32 and absent for kPlain.
struct Quantization {
  Format format = Format::kPlain;
  ScaleKind kind = ScaleKind::kTensor;
  TensorView scale{};
};

struct CacheView {
  TensorView k{}, v{};
  Layout layout = Layout::kNHD;
  TensorView kv_len{};                       // [B] i32: committed tokens
  TensorView page_table{};                   // [B, max_pages] i32, physical page of each logical page; or
  TensorView cu_kv{};                        // [B + 1] i32; exactly one of the two
  TensorView page_stamps{}, table_stamps{};  // [pages] and [B, max_pages] u64, both or neither
  Quantization k_quant{}, v_quant{};
};

// Strides of k or v in elements, named by what they step over. `page` is 0 for a contiguous cache.
struct KvStrides {
  int64_t page, token, head, dim;
};
KvStrides kv_strides(const TensorView& kv, Layout layout);

}  // namespace tamis
