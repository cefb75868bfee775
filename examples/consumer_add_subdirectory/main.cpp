// Two requests that share the page of a common prefix; each query sees a sink, a window and one block of
// candidates.
#include <tamis/device.h>
#include <tamis/reference.h>

#include <cstdint>
#include <cstdio>
#include <vector>

int main() {
  using namespace tamis;

  const std::vector<float> q(2 * 2 * 8, .5f);       // [total_q, Hq, D]
  const std::vector<float> kv(3 * 4 * 1 * 8, 1.f);  // [pages, P, Hkv, D]
  const int32_t cu_q[] = {0, 1, 2}, kv_len[] = {8, 7};
  const int32_t page_table[] = {1, 0, 1, 2};  // [B, max_pages]; page 1 belongs to both
  const int32_t blocks[] = {0, 1};            // [rows, K]

  Problem problem;
  problem.query.q = dense_view(q.data(), DType::kF32, {2, 2, 8});
  problem.query.cu_q = dense_view(cu_q, DType::kI32, {3});
  problem.cache.k = problem.cache.v = dense_view(kv.data(), DType::kF32, {3, 4, 1, 8});
  problem.cache.kv_len = dense_view(kv_len, DType::kI32, {2});
  problem.cache.page_table = dense_view(page_table, DType::kI32, {2, 2});
  problem.candidates.form = CandidateForm::kFixedWidth;
  problem.candidates.indices = dense_view(blocks, DType::kI32, {2, 1});
  problem.candidates.unit = 2;  // an entry stands for two tokens
  problem.mask.sink = 1;
  problem.mask.window = 2;

  const Result<reference::Answer> answer = reference::forward(problem);
  if (!answer.ok()) {
    std::fprintf(stderr, "%s: %s\n", code_name(answer.status().code()), answer.status().message().c_str());
    return 1;
  }
  std::printf("this build has %s CUDA backend\n", built_with_cuda() ? "a" : "no");
  const auto& [sets, output] = *answer;
  for (size_t row = 0; row + 1 < sets.indptr.size(); ++row) {
    std::printf("query %zu:", row);
    for (int64_t i = sets.indptr[row]; i < sets.indptr[row + 1]; ++i) std::printf(" %d", sets.tokens[i]);
    std::printf("  O %g, LSE %g\n", output.out[row * 2 * 8], output.lse[row * 2]);
  }
  return sets.tokens == std::vector<int32_t>{0, 1, 6, 7, 0, 2, 3, 5, 6} ? 0 : 1;
}
