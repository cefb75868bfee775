// The spellings of a case file's enumerations, and its metadata keys: one table for reading and for writing.
#pragma once

#include <string_view>

#include "tamis/problem.h"

namespace tamis::io {

template <class E>
struct Name {
  const char* text;
  E value;
};

inline constexpr Name<Layout> kLayoutNames[] = {{"NHD", Layout::kNHD}, {"HND", Layout::kHND}};
inline constexpr Name<bool> kFlagNames[] = {{"0", false}, {"1", true}};
inline constexpr Name<OnDuplicate> kDuplicateNames[] = {{"merge", OnDuplicate::kMerge},
                                                        {"reject", OnDuplicate::kReject}};
inline constexpr Name<OnInvalid> kInvalidNames[] = {{"reject", OnInvalid::kReject},
                                                    {"drop", OnInvalid::kDrop}};
inline constexpr Name<Semantics> kSemanticsNames[] = {
    {"set", Semantics::kSet}, {"sequence", Semantics::kSequence}, {"multiset", Semantics::kMultiset}};
// Empty, as when the key is missing: not quantized.
inline constexpr Name<Format> kFormatNames[] = {{"int8", Format::kInt8},
                                                {"fp8_e4m3", Format::kFp8E4M3},
                                                {"fp8_e5m2", Format::kFp8E5M2},
                                                {"int4", Format::kInt4},
                                                {"", Format::kPlain}};
inline constexpr Name<ScaleKind> kScaleKindNames[] = {
    {"tensor", ScaleKind::kTensor},   {"head", ScaleKind::kHead},   {"page", ScaleKind::kPage},
    {"channel", ScaleKind::kChannel}, {"token", ScaleKind::kToken}, {"page_channel", ScaleKind::kPageChannel},
};
// Bits of one element; only they are kept, so writing takes the first name of a size.
inline constexpr Name<int> kKvBitNames[] = {{"f32", 32},     {"bf16", 16},    {"f16", 16}, {"int8", 8},
                                            {"fp8_e4m3", 8}, {"fp8_e5m2", 8}, {"int4", 4}};

// Every metadata key that means something in a case file.
inline constexpr const char* kCaseKeys[] = {
    "tamis.case",   "kv_layout", "unit",     "query_block",  "index_heads",  "causal",    "window",
    "sink",         "scale",     "softcap",  "duplicates",   "invalid",      "semantics", "dropout_p",
    "dropout_seed", "k_format",  "v_format", "k_scale_kind", "v_scale_kind", "page_size", "num_pages",
    "q_heads",      "kv_heads",  "head_dim", "v_head_dim",   "kv_dtype"};

template <class E, size_t N>
const Name<E>* find_name(const Name<E> (&table)[N], std::string_view text) {
  for (const Name<E>& name : table) {
    if (name.text == text) return &name;
  }
  return nullptr;
}

// The spelling of a value, or null when it has none.
template <class E, size_t N>
const char* name_of(const Name<E> (&table)[N], E value) {
  for (const Name<E>& name : table) {
    if (name.value == value) return name.text;
  }
  return nullptr;
}

}  // namespace tamis::io
