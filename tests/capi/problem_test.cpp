// From tamis_problem to Problem: what is refused, and that every option arrives.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "capi/c_problem.h"

namespace tamis::testing {
namespace {

// Describes and, where that is content, normalizes: arrays are looked at only by the second.
int32_t verdict(const tamis_problem& problem, Error& error) {
  Handles h;
  auto shape = sized<tamis_shape>();
  if (const int32_t code = tamis_describe(&problem, &shape, error)) return code;
  return tamis_normalize(&problem, nullptr, h.index, error);
}

TEST(CProblemRead, Shape) {
  TestProblem t = decode_problem();
  const CProblem c(t.problem);
  auto shape = sized<tamis_shape>();
  ASSERT_EQ(tamis_describe(&c.problem, &shape, nullptr), TAMIS_OK);
  const Shape s = *describe(t.problem);
  EXPECT_EQ(shape.requests, 3);
  EXPECT_EQ(shape.total_q, 3);
  EXPECT_EQ(shape.q_heads, 4);
  EXPECT_EQ(shape.kv_heads, 2);
  EXPECT_EQ(shape.index_heads, 2);
  EXPECT_EQ(shape.group, 2);
  EXPECT_EQ(shape.head_dim, 16);
  EXPECT_EQ(shape.v_head_dim, 8);
  EXPECT_EQ(shape.page_size, 16);
  EXPECT_EQ(shape.pages, s.pages);
  EXPECT_EQ(shape.max_pages, s.max_pages);
  EXPECT_EQ(shape.kv_rows, 0);
  EXPECT_EQ(shape.scale, 0.25);
  EXPECT_EQ(shape.k_bits, 32);
  EXPECT_EQ(shape.index_only, 0);
}

TEST(CProblemRead, NumbersOutsideTheirEnums) {
  using Bend = std::function<void(tamis_problem&, int32_t)>;
  const std::pair<const char*, Bend> fields[] = {
      {"kv_layout", [](tamis_problem& p, int32_t x) { p.cache.layout = x; }},
      {"k_format", [](tamis_problem& p, int32_t x) { p.cache.k_quant.format = x; }},
      {"v_format", [](tamis_problem& p, int32_t x) { p.cache.v_quant.format = x; }},
      {"k_scale_kind", [](tamis_problem& p, int32_t x) { p.cache.k_quant.kind = x; }},
      {"v_scale_kind", [](tamis_problem& p, int32_t x) { p.cache.v_quant.kind = x; }},
      {"form", [](tamis_problem& p, int32_t x) { p.candidates.form = x; }},
      {"duplicates", [](tamis_problem& p, int32_t x) { p.candidates.duplicates = x; }},
      {"invalid", [](tamis_problem& p, int32_t x) { p.candidates.invalid = x; }},
      {"semantics", [](tamis_problem& p, int32_t x) { p.candidates.semantics = x; }},
      {"causal", [](tamis_problem& p, int32_t x) { p.mask.causal = x; }},
      {"has_scale", [](tamis_problem& p, int32_t x) { p.score.has_scale = x; }},
      {"cache", [](tamis_problem& p, int32_t x) { p.cache.reserved = x; }},
      {"mask", [](tamis_problem& p, int32_t x) { p.mask.reserved = x; }},
      {"score", [](tamis_problem& p, int32_t x) { p.score.reserved = x; }},
  };
  TestProblem t = decode_problem();
  for (const auto& [name, bend] : fields)
    for (const int32_t number :
         {-1, 17, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()}) {
      CProblem c(t.problem);
      bend(c.problem, number);
      Error error;
      EXPECT_EQ(verdict(c.problem, error), TAMIS_INVALID_ARGUMENT) << name << " " << number;
      EXPECT_TRUE(says(error, std::string(name) + ":"));
      EXPECT_TRUE(says(error, std::to_string(number)));
    }
}

TEST(CProblemRead, TensorsThatAreNone) {
  using Bend = std::function<void(tamis_tensor&)>;
  const std::pair<const char*, Bend> bends[] = {
      {"struct_size 0", [](tamis_tensor& t) { t.struct_size = 0; }},
      {"struct_size", [](tamis_tensor& t) { t.struct_size += 8; }},
      {"dtype 0", [](tamis_tensor& t) { t.dtype = 0; }},
      {"dtype 16", [](tamis_tensor& t) { t.dtype = TAMIS_BOOL + 1; }},
      {"rank -1", [](tamis_tensor& t) { t.rank = -1; }},
      {"rank 6", [](tamis_tensor& t) { t.rank = 6; }},
      {"extent -1", [](tamis_tensor& t) { t.shape[0] = -1; }},
      {"data is NULL", [](tamis_tensor& t) { t.data = nullptr; }},
      {"multiple of 4", [](tamis_tensor& t) { t.data = static_cast<char*>(t.data) + 1; }},
  };
  for (const auto& [words, bend] : bends) {
    TestProblem t = decode_problem();
    CProblem c(t.problem);
    tamis_tensor tensor = *c.problem.query.cu_q;
    bend(tensor);
    c.problem.query.cu_q = &tensor;
    Error error;
    EXPECT_EQ(verdict(c.problem, error), TAMIS_INVALID_ARGUMENT) << words;
    EXPECT_TRUE(says(error, "cu_q: ") && says(error, words)) << error.text;
  }
}

// A list needs no keys; a run does. An array without elements may be NULL.
TEST(CProblemRead, OnlyArraysThatAreReadMustBeThere) {
  TestProblem t = decode_problem();
  CProblem c(t.problem);
  Results results(3, 4, 8);
  Handles h;
  Error error;
  tamis_tensor k = *c.problem.cache.k;
  k.data = nullptr;
  c.problem.cache.k = &k;
  EXPECT_EQ(h.prepare(c.problem, nullptr, error), TAMIS_OK) << error.text;
  std::vector<float> workspace;
  const tamis_step step = h.step(c.problem, results.output, &workspace);
  EXPECT_EQ(tamis_run(&step, h.context, nullptr, error), TAMIS_INVALID_ARGUMENT);
  EXPECT_TRUE(says(error, "k: data is NULL"));
  EXPECT_EQ(tamis_forward(&c.problem, nullptr, &results.output, h.context, nullptr, error),
            TAMIS_INVALID_ARGUMENT);
  EXPECT_TRUE(std::isnan(results.out[0]));

  tamis_tensor none = *c.problem.candidates.indices;
  none.data = nullptr;
  none.shape[0] = 0;
  const int32_t offsets[7] = {};
  const int64_t seven = 7;
  const tamis_tensor indptr = tamis_dense(offsets, TAMIS_I32, 1, &seven);
  c.problem.candidates.indices = &none;
  c.problem.candidates.indptr = &indptr;
  EXPECT_EQ(verdict(c.problem, error), TAMIS_OK) << error.text;
}

TEST(CProblemRead, ScaleCountsOnlyWhenItIsThere) {
  TestProblem t = decode_problem();
  CProblem c(t.problem);
  Error error;
  c.problem.score.scale = std::nan("");
  EXPECT_EQ(verdict(c.problem, error), TAMIS_OK) << error.text;
  c.problem.score.has_scale = 1;
  EXPECT_EQ(verdict(c.problem, error), TAMIS_INVALID_ARGUMENT);
  EXPECT_TRUE(says(error, "scale"));
}

TEST(CProblemRead, IndexOnly) {
  TestProblem t = decode_problem();
  CProblem c(t.problem);
  auto only = sized<tamis_index_only>();
  only.q_heads = 4;
  only.kv_heads = 2;
  only.head_dim = 16;
  only.v_head_dim = 8;
  only.page_size = 16;
  only.kv_bits = 8;
  c.problem.index_only = &only;
  Error error;
  EXPECT_EQ(verdict(c.problem, error), TAMIS_INVALID_ARGUMENT);  // q is there as well
  c.problem.query.q = c.problem.cache.k = c.problem.cache.v = nullptr;
  auto shape = sized<tamis_shape>();
  ASSERT_EQ(tamis_describe(&c.problem, &shape, error), TAMIS_OK) << error.text;
  EXPECT_EQ(shape.index_only, 1);
  EXPECT_EQ(shape.v_bits, 8);
  EXPECT_EQ(verdict(c.problem, error), TAMIS_OK) << error.text;
  only.reserved = 1;
  EXPECT_EQ(verdict(c.problem, error), TAMIS_INVALID_ARGUMENT);
  only.reserved = 0;
  only.struct_size = 0;
  EXPECT_EQ(verdict(c.problem, error), TAMIS_INVALID_ARGUMENT);
  EXPECT_TRUE(says(error, "index_only: struct_size 0"));
  // Without kv_bits, as a header that does not know it.
  only.struct_size = offsetof(tamis_index_only, kv_bits);
  EXPECT_EQ(verdict(c.problem, error), TAMIS_INVALID_ARGUMENT);
  EXPECT_TRUE(says(error, "kv_dtype: 0"));
}

TEST(CProblemRead, PoliciesArrive) {
  TestProblem t({.kv_len = {8}});
  t.csr({{3, 3, 99}});
  CProblem c(t.problem);
  Error error;
  EXPECT_EQ(verdict(c.problem, error), TAMIS_INDEX_OUT_OF_RANGE);
  c.problem.candidates.invalid = TAMIS_INVALID_DROP;
  EXPECT_EQ(verdict(c.problem, error), TAMIS_OK);
  c.problem.candidates.duplicates = TAMIS_DUPLICATES_REJECT;
  EXPECT_EQ(verdict(c.problem, error), TAMIS_DUPLICATE_INDEX);
  c.problem.candidates.semantics = TAMIS_MULTISET;
  EXPECT_EQ(verdict(c.problem, error), TAMIS_UNSUPPORTED_SEMANTICS);
}

TEST(CProblemRead, DropoutAndQuantizationArrive) {
  TestProblem t = decode_problem();
  CProblem c(t.problem);
  Error error;
  c.problem.dropout.p = 1;
  EXPECT_EQ(verdict(c.problem, error), TAMIS_INVALID_ARGUMENT);
  EXPECT_TRUE(says(error, "dropout_p"));
  c.problem.dropout.p = 0;
  c.problem.cache.k_quant.format = TAMIS_FORMAT_INT8;
  EXPECT_EQ(verdict(c.problem, error), TAMIS_INVALID_ARGUMENT);
  EXPECT_TRUE(says(error, "k: dtype F32 is not one of I8"));
  const float one = 1;
  const tamis_tensor scale = tamis_dense(&one, TAMIS_F32, 0, nullptr);
  tamis_tensor k = *c.problem.cache.k;
  k.dtype = TAMIS_I8;
  c.problem.cache.k = &k;
  c.problem.cache.k_quant.scale = &scale;
  EXPECT_EQ(verdict(c.problem, error), TAMIS_OK) << error.text;
  c.problem.cache.k_quant.kind = TAMIS_SCALE_HEAD;
  EXPECT_EQ(verdict(c.problem, error), TAMIS_INVALID_ARGUMENT);
  EXPECT_TRUE(says(error, "k_scale"));
}

}  // namespace
}  // namespace tamis::testing
