// Page lists of the 64K case, by distribution. A list is what one KV head of one request selects: pages of 16
// tokens, in random order, none twice.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data.h"
#include "tamis/status.h"

namespace tamis::bench {

// Sizes of the case at a scale: 8 is the 64K case, 1 is its eighth (for tests). Of the window's 16 pages
// every list holds 8, so lists and window together touch listed() + 8.
struct Scale {
  int64_t scale = 8;

  int64_t kv_len() const { return 8192 * scale; }
  int64_t pages() const { return kv_len() / kPage; }
  int64_t listed() const { return 31 * scale + kInWindow; }

  static constexpr int64_t kPage = 16, kWindow = 256, kInWindow = 8;
};

enum class Spread { kUniform, kClustered, kRecorded, kHot };  // kHot: on the device (device_lists.h)
const char* spread_name(Spread spread);

// Uniform, but for how many pages of one aligned tile of 64 tokens are taken: at scale 8 in 32 tiles all
// four, in 40 two, in 40 one, so that aligned tiles number 116 with the window's four (docs/semantics.md
// section 14).
std::vector<int32_t> uniform_pages(Random& random, const Scale& scale);

// Runs of 31 neighbouring pages at random places, and half of the window.
std::vector<int32_t> clustered_pages(Random& random, const Scale& scale);

// Page selections recorded from a model: tensors quest_pages_l* [KV heads, queries, pages] of a safetensors
// file.
class Trace {
 public:
  // Fails with io_error, or invalid_argument for a file made for another context or page.
  static Result<Trace> read(const std::string& path, const Scale& scale);

  // The selection of KV head `head` at recorded query `query`; both wrap around.
  const std::vector<int32_t>& pages(int64_t head, int64_t query) const {
    const auto& of_head = pages_[head % static_cast<int64_t>(pages_.size())];
    return of_head[query % static_cast<int64_t>(of_head.size())];
  }

 private:
  std::vector<std::vector<std::vector<int32_t>>> pages_;  // [layers * KV heads][queries]
};

}  // namespace tamis::bench
