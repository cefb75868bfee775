#include "lists.h"

#include <algorithm>

#include "tamis/io.h"

namespace tamis::bench {
namespace {

// Half of the window's pages.
void add_window_half(Random& random, const Scale& scale, std::vector<int32_t>* pages) {
  const auto first = static_cast<int32_t>(scale.pages() - Scale::kWindow / Scale::kPage);
  for (const int32_t j : random.sample(Scale::kWindow / Scale::kPage, Scale::kInWindow))
    pages->push_back(first + j);
  random.shuffle(*pages);
}

int64_t integer(const TensorView& t, int64_t head, int64_t query, int64_t slot) {
  if (t.dtype == DType::kI16) return t.at<int16_t>({head, query, slot});
  return t.at<int32_t>({head, query, slot});
}

}  // namespace

const char* spread_name(Spread spread) {
  switch (spread) {
    case Spread::kUniform:
      return "uniform";
    case Spread::kClustered:
      return "clustered";
    case Spread::kRecorded:
      return "recorded";
    case Spread::kHot:
      return "hot";
  }
  return "";
}

std::vector<int32_t> uniform_pages(Random& random, const Scale& scale) {
  constexpr int32_t in_tile = 4;
  const int64_t s = scale.scale;
  const auto tiles = random.sample((scale.pages() - Scale::kWindow / Scale::kPage) / in_tile, 14 * s);
  std::vector<int32_t> pages;
  for (int64_t n = 0; n < 14 * s; ++n) {
    const int64_t taken = n < 4 * s ? 4 : n < 9 * s ? 2 : 1;
    for (const int32_t j : random.sample(in_tile, taken)) pages.push_back(tiles[n] * in_tile + j);
  }
  add_window_half(random, scale, &pages);
  return pages;
}

std::vector<int32_t> clustered_pages(Random& random, const Scale& scale) {
  constexpr int64_t run = 31;
  const int64_t places = (scale.pages() - Scale::kWindow / Scale::kPage) / run;
  std::vector<int32_t> pages;
  for (const int32_t place : random.sample(places, scale.scale))
    for (int64_t j = 0; j < run; ++j) pages.push_back(static_cast<int32_t>(place * run + j));
  add_window_half(random, scale, &pages);
  return pages;
}

Result<Trace> Trace::read(const std::string& path, const Scale& scale) {
  const Result<io::TensorFile> file = io::read_tensors(path);
  if (!file.ok()) return file.status();
  const auto stated = [&](const char* key) {
    const auto at = file->metadata.find(key);
    return at == file->metadata.end() ? std::string() : at->second;
  };
  if (stated("kv_len") != std::to_string(scale.kv_len()) || stated("page") != std::to_string(Scale::kPage))
    return Status(Code::kInvalidArgument, "trace: " + path + " is not of " + std::to_string(scale.kv_len()) +
                                              " tokens in pages of " + std::to_string(Scale::kPage));
  Trace trace;
  for (const auto& [name, t] : file->tensors) {
    if (name.rfind("quest_pages_l", 0) != 0) continue;
    if (t.rank != 3 || (t.dtype != DType::kI16 && t.dtype != DType::kI32) || t.shape[1] < 1)
      return Status(Code::kInvalidArgument,
                    "trace: " + name + " is not [KV heads, queries, pages] of integers");
    for (int64_t h = 0; h < t.shape[0]; ++h) {
      auto& queries = trace.pages_.emplace_back(t.shape[1]);
      for (int64_t q = 0; q < t.shape[1]; ++q)
        for (int64_t j = 0; j < t.shape[2]; ++j)
          queries[q].push_back(static_cast<int32_t>(integer(t, h, q, j)));
    }
  }
  if (trace.pages_.empty())
    return Status(Code::kInvalidArgument, "trace: " + path + " holds no quest_pages_l* tensor");
  return trace;
}

}  // namespace tamis::bench
