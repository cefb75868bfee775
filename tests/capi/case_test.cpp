// Case files through C. For builds with TAMIS_IO.
#include <gtest/gtest.h>

#include "capi/c_problem.h"
#include "support/expect.h"
#include "support/folder.h"
#include "tamis/io.h"

namespace tamis::testing {
namespace {

const char* const kCases = TAMIS_SOURCE_DIR "/tests/cases/";

TEST(CCase, FilesThatStateAWrongProblem) {
  Error error;
  tamis_case* file = nullptr;
  EXPECT_EQ(tamis_read_case((std::string(kCases) + "err_nan_scale.safetensors").c_str(), &file, error),
            TAMIS_INVALID_ARGUMENT);
  EXPECT_TRUE(says(error, "scale"));
  EXPECT_EQ(file, nullptr);
  EXPECT_EQ(tamis_read_case((std::string(kCases) + "err_file_truncated.safetensors").c_str(), &file, error),
            TAMIS_IO_ERROR);
}

// The C problem of a case means what the C++ one does.
TEST(CCase, ProblemsOfCases) {
  for (const char* name :
       {"alibi_softcap_not_causal", "qpos_shuffled_negative", "layout_hnd_contiguous",
        "table_stamped_shared_prefix", "basic_invalid_drop", "qblock_16", "unit_64_page_16"}) {
    const std::string path = std::string(kCases) + name + ".safetensors";
    tamis_case* file = nullptr;
    Error error;
    ASSERT_EQ(tamis_read_case(path.c_str(), &file, error), TAMIS_OK) << error.text;
    tamis_problem problem;
    tamis_problem_init(&problem);
    ASSERT_EQ(tamis_case_problem(file, &problem, error), TAMIS_OK);
    const Result<io::Case> read = io::read_case(path);
    const reference::Answer expected = answer(read->problem);
    std::vector<double> out(expected.output.out.size()), lse(expected.output.lse.size());
    ASSERT_EQ(tamis_reference_forward(&problem, out.data(), static_cast<int64_t>(out.size()), lse.data(),
                                      static_cast<int64_t>(lse.size()), error),
              TAMIS_OK)
        << name << ": " << error.text;
    EXPECT_TRUE(same_bits(out, expected.output.out)) << name;
    EXPECT_TRUE(same_bits(lse, expected.output.lse)) << name;
    EXPECT_EQ(problem.query.q->shape[0], read->problem.query.q.shape[0]);
    EXPECT_EQ(problem.index_only, nullptr);
    problem.struct_size = 0;
    EXPECT_EQ(tamis_case_problem(file, &problem, error), TAMIS_INVALID_ARGUMENT);
    tamis_case_free(file);
  }
}

TEST(CCase, QuantizationAndGradients) {
  const std::string path = std::string(kCases) + "quant_k_int8_page_v_int4_channel.safetensors";
  tamis_case* file = nullptr;
  Error error;
  ASSERT_EQ(tamis_read_case(path.c_str(), &file, error), TAMIS_OK) << error.text;
  tamis_problem problem;
  tamis_problem_init(&problem);
  ASSERT_EQ(tamis_case_problem(file, &problem, error), TAMIS_OK);
  EXPECT_EQ(problem.cache.k_quant.format, TAMIS_FORMAT_INT8);
  EXPECT_EQ(problem.cache.k_quant.kind, TAMIS_SCALE_PAGE);
  EXPECT_EQ(problem.cache.v_quant.format, TAMIS_FORMAT_INT4);
  EXPECT_EQ(problem.cache.v_quant.kind, TAMIS_SCALE_CHANNEL);
  ASSERT_NE(problem.cache.v_quant.scale, nullptr);
  EXPECT_EQ(problem.cache.v->dtype, TAMIS_U8);
  EXPECT_EQ(problem.gradients.d_out, nullptr);
  auto a = sized<tamis_accounting>();
  ASSERT_EQ(tamis_explain(&problem, nullptr, &a, error), TAMIS_OK) << error.text;
  EXPECT_GT(a.scale_bytes, 0);
  tamis_case_free(file);

  ASSERT_EQ(tamis_read_case((std::string(kCases) + "bwd_gqa_dlse.safetensors").c_str(), &file, error),
            TAMIS_OK);
  ASSERT_EQ(tamis_case_problem(file, &problem, error), TAMIS_OK);
  ASSERT_NE(problem.gradients.d_out, nullptr);
  ASSERT_NE(problem.gradients.d_lse, nullptr);
  EXPECT_EQ(problem.gradients.d_lse->rank, 2);
  tamis_case_free(file);
}

TEST(CCase, IndexOnly) {
  TestProblem t = decode_problem();
  t.problem.query.q = t.problem.cache.k = t.problem.cache.v = {};
  t.problem.index_only = IndexOnly{.q_heads = 4,
                                   .kv_heads = 2,
                                   .head_dim = 16,
                                   .v_head_dim = 8,
                                   .page_size = 16,
                                   .num_pages = 30,
                                   .kv_bits = 32};
  const TempFolder folder;
  const std::string path = folder / "index_only.safetensors";
  ASSERT_TRUE(io::write_case(path, t.problem).ok());
  tamis_case* file = nullptr;
  Error error;
  ASSERT_EQ(tamis_read_case(path.c_str(), &file, error), TAMIS_OK) << error.text;
  tamis_problem problem;
  tamis_problem_init(&problem);
  ASSERT_EQ(tamis_case_problem(file, &problem, error), TAMIS_OK);
  ASSERT_NE(problem.index_only, nullptr);
  EXPECT_EQ(problem.query.q, nullptr);
  EXPECT_EQ(problem.index_only->num_pages, 30);
  EXPECT_EQ(problem.index_only->kv_bits, 32);
  auto shape = sized<tamis_shape>();
  ASSERT_EQ(tamis_describe(&problem, &shape, error), TAMIS_OK) << error.text;
  EXPECT_EQ(shape.v_head_dim, 8);
  tamis_case_free(file);
}

TEST(CCase, WrittenFilesReadAsTheProblem) {
  TestProblem t = decode_problem();
  t.problem.mask = {.causal = true, .window = 3, .sink = 1};
  t.problem.dropout = {.p = 0.25, .seed = ~uint64_t{0}};
  const CProblem c(t.problem);
  const TempFolder folder;
  const std::string path = folder / "written.safetensors";
  const char* const keys[] = {"note", "tamis.case"};
  const char* const values[] = {"of a test", "2"};
  Error error;
  ASSERT_EQ(tamis_write_case(path.c_str(), &c.problem, keys, values, 1, error), TAMIS_OK) << error.text;
  const Result<io::Case> read = io::read_case(path);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->file.metadata.at("note"), "of a test");
  EXPECT_EQ(read->problem.dropout.seed, ~uint64_t{0});
  EXPECT_TRUE(same_bits(answer(read->problem).output.out, answer(t.problem).output.out));

  const auto write = [&](const char* where, const char* const* k, const char* const* v, int64_t count) {
    return tamis_write_case(where, &c.problem, k, v, count, error);
  };
  EXPECT_EQ(write(path.c_str(), keys, values, 2), TAMIS_INVALID_ARGUMENT);
  EXPECT_TRUE(says(error, "tamis.case: is the problem's to say"));
  const char* const twice[] = {"note", "note"};
  EXPECT_EQ(write(path.c_str(), twice, values, 2), TAMIS_INVALID_ARGUMENT);
  EXPECT_TRUE(says(error, "keys: 'note'"));
  EXPECT_EQ(write(path.c_str(), keys, nullptr, 1), TAMIS_INVALID_ARGUMENT);
  EXPECT_EQ(write(path.c_str(), nullptr, values, 1), TAMIS_INVALID_ARGUMENT);
  EXPECT_EQ(write(path.c_str(), keys, values, -1), TAMIS_INVALID_ARGUMENT);
  EXPECT_EQ(write(nullptr, nullptr, nullptr, 0), TAMIS_INVALID_ARGUMENT);
  EXPECT_EQ(tamis_write_case(path.c_str(), nullptr, nullptr, nullptr, 0, error), TAMIS_INVALID_ARGUMENT);
  EXPECT_EQ(write((path + "/nowhere").c_str(), nullptr, nullptr, 0), TAMIS_IO_ERROR);
}

}  // namespace
}  // namespace tamis::testing
