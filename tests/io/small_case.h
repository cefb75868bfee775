// A case small enough to change any part of: two requests, three queries, pages of two tokens.
#pragma once

#include "io/bytes.h"

namespace tamis::io {

struct SmallCase {
  Metadata metadata = {{"tamis.case", "1"}, {"index_heads", "1"}};
  std::map<std::string, Stated> tensors = {
      {"q", stated<float>("F32", {3, 2, 2}, std::vector<float>(12, 0.5f))},
      {"k", stated<float>("F32", {4, 2, 1, 2}, std::vector<float>(16, 0.25f))},
      {"v", stated<float>("F32", {4, 2, 1, 3}, std::vector<float>(24, 2.f))},
      {"cu_q", stated<int32_t>("I32", {3}, {0, 2, 3})},
      {"kv_len", stated<int32_t>("I32", {2}, {4, 3})},
      {"page_table", stated<int32_t>("I32", {2, 2}, {3, 0, 1, 2})},
      {"cand_indptr", stated<int32_t>("I32", {4}, {0, 2, 3, 5})},
      {"cand_indices", stated<int32_t>("I32", {5}, {0, 1, 2, 0, 2})},
  };

  std::string bytes() const { return build(metadata, tensors); }
  Result<Case> read() const { return parse_as_case(bytes()); }
};

// No q, k and v; the sizes come from the metadata.
inline SmallCase index_only_case() {
  SmallCase c;
  for (const char* name : {"q", "k", "v"}) c.tensors.erase(name);
  c.metadata.insert({{"q_heads", "2"},
                     {"kv_heads", "1"},
                     {"head_dim", "2"},
                     {"v_head_dim", "3"},
                     {"kv_dtype", "bf16"},
                     {"page_size", "2"},
                     {"num_pages", "4"}});
  return c;
}

}  // namespace tamis::io
