// One query, one head, a paged cache: attention over three listed tokens, in float64.
//
// Six tokens lie in pages of two; page_table says that logical pages 0, 1, 2 are physical pages 3, 0, 2. The
// third token listed is padding. Keys are zero, so all selected tokens weigh the same and O is the mean of
// their values.
#include <tamis/device.h>
#include <tamis/reference.h>

#include <cstdint>
#include <cstdio>
#include <vector>

int main() {
  using namespace tamis;

  const std::vector<float> q(4, 1.f);                                      // [1, 1, 4]
  const std::vector<float> k(4 * 2 * 1 * 4, 0.f);                          // [pages, P, Hkv, D]
  std::vector<float> v(k.size());                                          // the same
  for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i / 4);  // each slot holds its number
  const int32_t cu_q[] = {0, 1}, kv_len[] = {6}, page_table[] = {3, 0, 2};
  const int32_t indptr[] = {0, 4}, indices[] = {0, 3, -1, 5};

  Problem problem;
  problem.query.q = dense_view(q.data(), DType::kF32, {1, 1, 4});
  problem.query.cu_q = dense_view(cu_q, DType::kI32, {2});
  problem.cache.k = dense_view(k.data(), DType::kF32, {4, 2, 1, 4});
  problem.cache.v = dense_view(v.data(), DType::kF32, {4, 2, 1, 4});
  problem.cache.kv_len = dense_view(kv_len, DType::kI32, {1});
  problem.cache.page_table = dense_view(page_table, DType::kI32, {1, 3});
  problem.candidates.form = CandidateForm::kCsr;
  problem.candidates.indptr = dense_view(indptr, DType::kI32, {2});
  problem.candidates.indices = dense_view(indices, DType::kI32, {4});

  const Result<reference::Answer> answer = reference::forward(problem);
  if (!answer.ok()) {
    std::fprintf(stderr, "%s: %s\n", code_name(answer.status().code()), answer.status().message().c_str());
    return 1;
  }
  for (double x : answer->output.out) std::printf("%g ", x);
  std::printf("(this build has %s CUDA backend)\n", built_with_cuda() ? "a" : "no");
  // Tokens 0, 3, 5 lie in slots 6, 1, 5; their mean is 4.
  return answer->output.out.front() == 4.0 ? 0 : 1;
}
