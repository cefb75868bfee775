#include "prefill.h"

#include <algorithm>

#include "keep.h"
#include "names.h"
#include "tamis/explain.h"

namespace tamis::bench {
namespace {

std::vector<int32_t> key_blocks(const Prefill& p, int64_t query_block, Random& random) {
  const int64_t all = p.length / p.block;
  if (!p.causal) return random.sample(all, std::max<int64_t>(1, all * p.eighths / 8));
  const int64_t visible = query_block + 1, wanted = (visible * p.eighths + 7) / 8;
  std::vector<int32_t> blocks = random.sample(query_block, wanted - 1);
  blocks.push_back(static_cast<int32_t>(query_block));
  return blocks;
}

}  // namespace

Result<Work> prefill_work(const Prefill& p, Context& context) {
  constexpr int64_t turns = 4;
  auto keep = std::make_shared<Keep>();
  Random random(p.seed);
  const auto n = static_cast<int32_t>(p.length);
  const Result<TensorView> q = keep->random(p.dtype, {n, p.q_heads, p.dim}, random.next(), context),
                           k = keep->random(p.dtype, {n, p.kv_heads, p.dim}, random.next(), context),
                           v = keep->random(p.dtype, {n, p.kv_heads, p.dim}, random.next(), context);
  const Result<TensorView> d_out =
      p.gradients ? keep->random(p.dtype, {n, p.q_heads, p.dim}, random.next(), context) : TensorView{};
  for (const Result<TensorView>* made : {&q, &k, &v, &d_out})
    if (!made->ok()) return made->status();
  Work work;
  for (int64_t t = 0; t < turns; ++t) {
    std::vector<int32_t> indptr{0}, indices;
    for (int64_t block = 0; block < p.length / p.block; ++block)
      for (int64_t h = 0; h < p.kv_heads; ++h) {
        const std::vector<int32_t> blocks = key_blocks(p, block, random);
        indices.insert(indices.end(), blocks.begin(), blocks.end());
        indptr.push_back(static_cast<int32_t>(indices.size()));
      }
    Problem problem;
    problem.query = {.q = *q, .cu_q = keep->ints({0, n})};
    problem.cache = {
        .k = *k, .v = *v, .layout = Layout::kNHD, .kv_len = keep->ints({n}), .cu_kv = keep->ints({0, n})};
    problem.candidates = {.form = CandidateForm::kCsr,
                          .indptr = keep->ints(std::move(indptr)),
                          .indices = keep->ints(std::move(indices)),
                          .unit = p.block,
                          .query_block = p.block,
                          .index_heads = p.kv_heads};
    problem.mask.causal = p.causal;
    problem.gradients.d_out = *d_out;
    work.turns.push_back(problem);
  }
  // The accounting counts what one query block loads; the products of its queries are what the mask leaves of
  // them.
  const Result<Accounting> account = explain(work.turns[0], AccountingOptions{});
  if (!account.ok()) return account.status();
  work.bytes = account->bytes.logical;
  work.flops = account->flops_logical;
  work.description = {{"length", p.length},
                      {"q_heads", p.q_heads},
                      {"kv_heads", p.kv_heads},
                      {"head_dim", p.dim},
                      {"block", p.block},
                      {"query_block", p.block},
                      {"density", static_cast<double>(p.eighths) / 8},
                      {"causal", p.causal},
                      {"distribution", "uniform"},
                      {"dtype", short_name(p.dtype)},
                      {"layout", layout_name(Layout::kNHD)},
                      {"turns", turns}};
  work.judged = {0, p.length / 2 + 1, p.length - 1};
  work.storage = keep;
  return work;
}

}  // namespace tamis::bench
