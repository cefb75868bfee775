// Test problems in C types, written out by hand: what src/capi turns back into C++ must be the same.
#pragma once

#include <gtest/gtest.h>
#include <tamis/tamis_c.h>

#include <deque>
#include <string>
#include <vector>

#include "support/problems.h"

namespace tamis::testing {

inline int32_t number_of(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return TAMIS_F64;
    case DType::kF32:
      return TAMIS_F32;
    case DType::kF16:
      return TAMIS_F16;
    case DType::kBF16:
      return TAMIS_BF16;
    case DType::kI64:
      return TAMIS_I64;
    case DType::kI32:
      return TAMIS_I32;
    case DType::kU64:
      return TAMIS_U64;
    case DType::kU32:
      return TAMIS_U32;
    case DType::kI8:
      return TAMIS_I8;
    case DType::kU8:
      return TAMIS_U8;
    case DType::kF8E4M3:
      return TAMIS_F8_E4M3;
    case DType::kF8E5M2:
      return TAMIS_F8_E5M2;
    default:
      return 0;
  }
}

// A zeroed struct that knows its size.
template <class T>
T sized() {
  T out{};
  out.struct_size = sizeof out;
  return out;
}

// A problem and the tensors it points to. The arrays stay where they are.
class CProblem {
 public:
  explicit CProblem(const Problem& p) {
    tamis_problem_init(&problem);
    problem.query = {add(p.query.q), add(p.query.cu_q), add(p.query.q_pos)};
    problem.cache.k = add(p.cache.k);
    problem.cache.v = add(p.cache.v);
    problem.cache.kv_len = add(p.cache.kv_len);
    problem.cache.page_table = add(p.cache.page_table);
    problem.cache.cu_kv = add(p.cache.cu_kv);
    problem.cache.page_stamps = add(p.cache.page_stamps);
    problem.cache.table_stamps = add(p.cache.table_stamps);
    problem.cache.layout = p.cache.layout == Layout::kHND ? TAMIS_HND : TAMIS_NHD;
    problem.candidates.indptr = add(p.candidates.indptr);
    problem.candidates.indices = add(p.candidates.indices);
    problem.candidates.count = add(p.candidates.count);
    problem.candidates.form = static_cast<int32_t>(p.candidates.form);
    problem.candidates.unit = p.candidates.unit;
    problem.candidates.query_block = p.candidates.query_block;
    problem.candidates.index_heads = p.candidates.index_heads;
    problem.mask.causal = p.mask.causal;
    problem.mask.window = p.mask.window;
    problem.mask.sink = p.mask.sink;
    problem.score.has_scale = p.score.scale.has_value();
    problem.score.scale = p.score.scale.value_or(0);
    problem.score.softcap = p.score.softcap;
    problem.score.alibi_slopes = add(p.score.alibi_slopes);
    problem.dropout = {p.dropout.p, p.dropout.seed};
    problem.gradients = {add(p.gradients.d_out), add(p.gradients.d_lse)};
    problem.cache.k_quant = quantization(p.cache.k_quant);
    problem.cache.v_quant = quantization(p.cache.v_quant);
  }
  CProblem(const CProblem&) = delete;

  tamis_tensor* add(const TensorView& from) {
    if (!from.present()) return nullptr;
    auto t = sized<tamis_tensor>();
    t.data = const_cast<void*>(from.data);
    t.dtype = number_of(from.dtype);
    t.rank = from.rank;
    for (int axis = 0; axis < from.rank; ++axis) {
      t.shape[axis] = from.shape[axis];
      t.stride[axis] = from.stride[axis];
    }
    return &tensors_.emplace_back(t);
  }

  tamis_problem problem;

 private:
  tamis_quantization quantization(const Quantization& from) {
    return {static_cast<int32_t>(from.format), static_cast<int32_t>(from.kind), add(from.scale)};
  }

  std::deque<tamis_tensor> tensors_;
};

// An error with room for any message.
struct Error {
  Error() { tamis_error_init(&c, text, sizeof text); }
  char text[512] = "untouched";
  tamis_error c;
  operator tamis_error*() { return &c; }
};

inline ::testing::AssertionResult says(const Error& error, const std::string& words) {
  if (std::string(error.text).find(words) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "'" << error.text << "' does not say '" << words << "'";
}

// Every size but the right one is refused by `call`, which names the struct.
template <class Call>
void wrong_sizes(Error& error, uint64_t& size, const char* name, const Call& call) {
  const uint64_t right = size;
  for (const uint64_t bad : {uint64_t{0}, uint64_t{7}, uint64_t{12}, right + 8, ~uint64_t{7}}) {
    size = bad;
    EXPECT_EQ(call(), TAMIS_INVALID_ARGUMENT) << name << ' ' << bad;
    EXPECT_TRUE(says(error, std::string(name) + ": struct_size " + std::to_string(bad)));
  }
  size = right;
}

// Every handle, made of a context of two threads.
struct Handles {
  Handles() {
    EXPECT_EQ(tamis_context_create(2, nullptr, &context, nullptr), TAMIS_OK);
    EXPECT_EQ(tamis_index_set_create(&index, nullptr), TAMIS_OK);
    EXPECT_EQ(tamis_bundles_create(&bundles, nullptr), TAMIS_OK);
    EXPECT_EQ(tamis_plan_create(&plan, nullptr), TAMIS_OK);
    EXPECT_EQ(tamis_schedule_create(&schedule, nullptr), TAMIS_OK);
  }
  ~Handles() {
    tamis_schedule_destroy(schedule);
    tamis_plan_destroy(plan);
    tamis_bundles_destroy(bundles);
    tamis_index_set_destroy(index);
    tamis_context_destroy(context);
  }
  Handles(const Handles&) = delete;

  // Fills everything up to the schedule; the first code that is not ok.
  int32_t prepare(const tamis_problem& problem, const tamis_plan_options* options = nullptr,
                  tamis_error* error = nullptr) {
    auto arrays = sized<tamis_index_arrays>();
    if (const int32_t code = tamis_normalize(&problem, nullptr, index, error)) return code;
    if (const int32_t code = tamis_bundle(&problem, index, nullptr, bundles, error)) return code;
    if (const int32_t code = tamis_capacities_of(&problem, bundles, &capacities, error)) return code;
    if (const int32_t code = tamis_index_view(index, &arrays, error)) return code;
    if (const int32_t code = tamis_plan_make(&problem, &capacities, arrays.block, options, plan, error))
      return code;
    return tamis_schedule_make(plan, bundles, schedule, error);
  }

  tamis_step step(const tamis_problem& problem, const tamis_output& output, std::vector<float>* workspace) {
    int64_t bytes = -1;
    EXPECT_EQ(tamis_workspace_bytes(plan, schedule, &bytes, nullptr), TAMIS_OK);
    workspace->assign(static_cast<size_t>(bytes) / sizeof(float) + 1, kNaN);
    return {sizeof(tamis_step), &problem, bundles,           plan,
            schedule,           &output,  workspace->data(), workspace->size() * sizeof(float)};
  }

  tamis_context* context = nullptr;
  tamis_index_set* index = nullptr;
  tamis_bundles* bundles = nullptr;
  tamis_plan* plan = nullptr;
  tamis_schedule* schedule = nullptr;
  tamis_capacities capacities = sized<tamis_capacities>();
};

// Results of a problem, poisoned.
struct Results {
  Results(int64_t total_q, int64_t heads, int64_t dim)
      : out(static_cast<size_t>(total_q * heads * dim), kNaN),
        lse(static_cast<size_t>(total_q * heads), kNaN) {
    const int64_t out_shape[] = {total_q, heads, dim}, lse_shape[] = {total_q, heads};
    out_tensor = tamis_dense(out.data(), TAMIS_F32, 3, out_shape);
    lse_tensor = tamis_dense(lse.data(), TAMIS_F32, 2, lse_shape);
    output = {sizeof output, &out_tensor, &lse_tensor, nullptr, nullptr};
  }
  Results(const Results&) = delete;

  std::vector<float> out, lse;
  tamis_tensor out_tensor, lse_tensor;
  tamis_output output;
};

// Three requests, four query heads on two KV heads, a list per KV head.
inline TestProblem decode_problem() {
  TestProblem t({.kv_len = {70, 33, 5},
                 .q_heads = 4,
                 .kv_heads = 2,
                 .head_dim = 16,
                 .v_head_dim = 8,
                 .page_size = 16,
                 .q = q_noise(1),
                 .k = kv_noise(2),
                 .v = kv_noise(3)});
  t.csr({{0, 5, 64, 69}, {1, 2, 3, 40, 41}, {32, 0}, {}, {4, 1}, {0, -1, 2, 2}});
  t.problem.candidates.index_heads = 2;
  return t;
}

}  // namespace tamis::testing
