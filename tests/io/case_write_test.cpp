// write_case is the inverse of read_case, on small problems with every option and on the case files.
#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "io/small_case.h"

namespace tamis::io {
namespace {

void expect_same(const Quantization& a, const Quantization& b) {
  EXPECT_EQ(a.format, b.format);
  if (a.format != Format::kPlain) {
    EXPECT_EQ(a.kind, b.kind);
  }
}

void expect_same_options(const Problem& a, const Problem& b) {
  EXPECT_EQ(a.cache.layout, b.cache.layout);
  expect_same(a.cache.k_quant, b.cache.k_quant);
  expect_same(a.cache.v_quant, b.cache.v_quant);
  EXPECT_EQ(a.candidates.form, b.candidates.form);
  EXPECT_EQ(a.candidates.unit, b.candidates.unit);
  EXPECT_EQ(a.candidates.query_block, b.candidates.query_block);
  EXPECT_EQ(a.candidates.index_heads, b.candidates.index_heads);
  EXPECT_EQ(a.candidates.duplicates, b.candidates.duplicates);
  EXPECT_EQ(a.candidates.invalid, b.candidates.invalid);
  EXPECT_EQ(a.mask.causal, b.mask.causal);
  EXPECT_EQ(a.mask.window, b.mask.window);
  EXPECT_EQ(a.mask.sink, b.mask.sink);
  EXPECT_EQ(a.score.scale, b.score.scale);
  EXPECT_EQ(a.score.softcap, b.score.softcap);
  EXPECT_EQ(a.dropout.p, b.dropout.p);
  EXPECT_EQ(a.dropout.seed, b.dropout.seed);
  ASSERT_EQ(a.index_only.has_value(), b.index_only.has_value());
  if (!a.index_only) return;
  EXPECT_EQ(a.index_only->q_heads, b.index_only->q_heads);
  EXPECT_EQ(a.index_only->kv_heads, b.index_only->kv_heads);
  EXPECT_EQ(a.index_only->head_dim, b.index_only->head_dim);
  EXPECT_EQ(a.index_only->v_head_dim, b.index_only->v_head_dim);
  EXPECT_EQ(a.index_only->page_size, b.index_only->page_size);
  EXPECT_EQ(a.index_only->num_pages, b.index_only->num_pages);
  EXPECT_EQ(a.index_only->kv_bits, b.index_only->kv_bits);
}

// Writes, reads back and compares; a file may lose only tensors that mean nothing.
void expect_round_trip(const Case& c, const std::string& path) {
  const Status written = write_case(path, c.problem);
  ASSERT_TRUE(written.ok()) << written.message();
  const Result<Case> again = read_case(path);
  ASSERT_TRUE(again.ok()) << again.status().message();
  expect_same_options(c.problem, again->problem);
  ASSERT_EQ(c.file.tensors.size(), again->file.tensors.size());
  for (const auto& [name, view] : c.file.tensors) {
    ASSERT_EQ(again->file.tensors.count(name), 1u) << name;
    const TensorView& read = again->file.tensors.at(name);
    EXPECT_EQ(view.dtype, read.dtype) << name;
    EXPECT_EQ(view.rank, read.rank) << name;
    EXPECT_EQ(view.shape, read.shape) << name;
    EXPECT_TRUE(bytes_of(view) == bytes_of(read)) << name;
  }
}

void expect_round_trip(const SmallCase& c) {
  const TempFolder folder;
  const Result<Case> read = c.read();
  ASSERT_TRUE(read.ok()) << read.status().message();
  expect_round_trip(*read, folder / "case");
}

TEST(CaseWrite, RoundTripsDefaults) {
  expect_round_trip(SmallCase());
  expect_round_trip(index_only_case());
}

TEST(CaseWrite, RoundTripsEveryOption) {
  SmallCase c;
  c.metadata = {{"tamis.case", "1"},
                {"index_heads", "2"},
                {"unit", "3"},
                {"query_block", "2"},
                {"causal", "0"},
                {"window", "7"},
                {"sink", "2"},
                {"scale", "0.1"},
                {"softcap", "1e-300"},
                {"duplicates", "reject"},
                {"invalid", "drop"},
                {"dropout_p", "0.30000000000000004"},
                {"dropout_seed", "18446744073709551615"},
                {"semantics", "set"}};
  c.tensors["cand_indptr"] = stated<int64_t>("I64", {5}, {0, 1, 2, 2, 3});
  c.tensors["cand_indices"] = stated<int32_t>("I32", {3}, {0, 1, 0});
  c.tensors["q_pos"] = stated<int32_t>("I32", {3}, {-1, 3, 2});
  c.tensors["alibi_slopes"] = stated<float>("F32", {2}, {0.5f, std::numeric_limits<float>::quiet_NaN()});
  c.tensors["d_out"] = stated<float>("F32", {3, 2, 3}, std::vector<float>(18, 1.f));
  c.tensors["d_lse"] = stated<float>("F32", {3, 2}, std::vector<float>(6, -0.f));
  c.tensors["page_stamps"] = stated<uint64_t>("U64", {4}, {1, 2, 3, UINT64_MAX});
  c.tensors["table_stamps"] = stated<uint64_t>("U64", {2, 2}, {UINT64_MAX, 1, 2, 3});
  expect_round_trip(c);
}

TEST(CaseWrite, RoundTripsLayoutsAndFormats) {
  SmallCase hnd;
  hnd.metadata["kv_layout"] = "HND";
  hnd.tensors["k"].shape = {4, 1, 2, 2};
  hnd.tensors["v"].shape = {4, 1, 2, 3};
  expect_round_trip(hnd);
  SmallCase contiguous;
  contiguous.tensors["k"].shape = {8, 1, 2};
  contiguous.tensors["v"].shape = {8, 1, 3};
  contiguous.tensors.erase("page_table");
  contiguous.tensors["cu_kv"] = stated<int32_t>("I32", {3}, {1, 5, 8});
  expect_round_trip(contiguous);
  SmallCase quantized;
  quantized.tensors["k"] = {"U8", {4, 2, 1, 1}, std::string(8, '\x21')};
  quantized.tensors["k_scale"] = stated<float>("F32", {}, {0.5f});
  quantized.tensors["v"] = {"F8_E5M2", {4, 2, 1, 3}, std::string(24, '\x21')};
  quantized.tensors["v_scale"] = stated<float>("F32", {4, 2, 1}, std::vector<float>(8, 2.f));
  quantized.metadata.insert({{"k_format", "int4"}, {"v_format", "fp8_e5m2"}, {"v_scale_kind", "token"}});
  expect_round_trip(quantized);
}

TEST(CaseWrite, IsDeterministicAndTakesNotes) {
  const TempFolder folder;
  const Result<Case> c = SmallCase().read();
  ASSERT_TRUE(c.ok());
  ASSERT_TRUE(write_case(folder / "a", c->problem, {{"note", "one"}}).ok());
  ASSERT_TRUE(write_case(folder / "b", c->problem, {{"note", "one"}}).ok());
  EXPECT_EQ(slurp(folder / "a"), slurp(folder / "b"));
  const Result<Case> again = read_case(folder / "a");
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->file.metadata.at("note"), "one");
  // Not even a default may be spoken for: it would contradict the problem.
  for (const char* key : {"causal", "tamis.case", "k_format", "kv_dtype"}) {
    expect_code(write_case(folder / "c", c->problem, {{key, "1"}}), Code::kInvalidArgument, key);
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "c"));
}

TEST(CaseWrite, RefusesWhatReadingWouldRefuse) {
  const TempFolder folder;
  const Result<Case> c = SmallCase().read();
  ASSERT_TRUE(c.ok());
  Problem p = c->problem;
  p.candidates.unit = 0;
  expect_code(write_case(folder / "a", p), Code::kInvalidArgument, "unit");
  p = c->problem;
  p.cache.kv_len.shape[0] = 1;
  expect_code(write_case(folder / "a", p), Code::kInvalidArgument, "kv_len");
  EXPECT_EQ(folder.entries(), 0);
}

TEST(CaseWrite, WritesStridedViewsDense) {
  const TempFolder folder;
  const Result<Case> c = SmallCase().read();
  ASSERT_TRUE(c.ok());
  Problem p = c->problem;
  // Every page twice as long as what is used of it.
  std::vector<float> k(4 * 8, -1.f);
  for (int64_t page = 0; page < 4; ++page) {
    for (int64_t i = 0; i < 4; ++i) k[page * 8 + i] = static_cast<float>(page * 4 + i);
  }
  p.cache.k.data = k.data();
  p.cache.k.stride[0] = 8;
  ASSERT_TRUE(write_case(folder / "a", p).ok());
  const Result<Case> again = read_case(folder / "a");
  ASSERT_TRUE(again.ok());
  for (int64_t i = 0; i < 16; ++i) {
    EXPECT_EQ(again->problem.cache.k.at<float>({i / 4, i / 2 % 2, 0, i % 2}), static_cast<float>(i));
  }
}

TEST(CaseWrite, SpellsOutNoneAndAll) {
  const TempFolder folder;
  SmallCase small;
  small.metadata["index_heads"] = "2";
  small.metadata["unit"] = "2";
  small.tensors["cand_indptr"] = stated<int32_t>("I32", {7}, std::vector<int32_t>(7, 0));
  small.tensors["cand_indices"] = stated<int32_t>("I32", {0}, {});
  const Result<Case> c = small.read();
  ASSERT_TRUE(c.ok()) << c.status().message();
  Problem p = c->problem;
  p.candidates.indptr = p.candidates.indices = {};
  p.candidates.form = CandidateForm::kNone;
  ASSERT_TRUE(write_case(folder / "none", p).ok());
  const Result<Case> none = read_case(folder / "none");
  ASSERT_TRUE(none.ok()) << none.status().message();
  EXPECT_EQ(none->problem.candidates.indptr.shape[0], 7);
  EXPECT_EQ(none->problem.candidates.indices.shape[0], 0);
  p.candidates.form = CandidateForm::kAll;
  ASSERT_TRUE(write_case(folder / "all", p).ok());
  const Result<Case> all = read_case(folder / "all");
  ASSERT_TRUE(all.ok()) << all.status().message();
  // kv_len 4 and 3 are two entries of two tokens each, in every row.
  ASSERT_EQ(all->problem.candidates.indices.shape[0], 12);
  for (int64_t i = 0; i < 12; ++i) EXPECT_EQ(all->problem.candidates.indices.at<int32_t>({i}), i % 2);
}

TEST(CaseWrite, RefusesToSpellOutTheUnreasonable) {
  const TempFolder folder;
  SmallCase small = index_only_case();
  small.tensors["cu_q"] = stated<int32_t>("I32", {2}, {0, 100000});
  small.tensors["kv_len"] = stated<int32_t>("I32", {1}, {100000});
  small.tensors["cand_indices"] = stated<int32_t>("I32", {0}, {});
  small.tensors["cand_indptr"] = stated<int32_t>("I32", {100001}, std::vector<int32_t>(100001, 0));
  small.tensors.erase("page_table");
  const Result<Case> c = small.read();
  ASSERT_TRUE(c.ok()) << c.status().message();
  Problem p = c->problem;
  p.candidates.form = CandidateForm::kAll;
  expect_code(write_case(folder / "a", p), Code::kUnsupported, "cand_indices");
  const int32_t most[] = {0, INT32_MAX};
  p.query.cu_q = dense_view(most, DType::kI32, {2});
  p.candidates.form = CandidateForm::kNone;
  p.candidates.index_heads = 2;
  expect_code(write_case(folder / "a", p), Code::kUnsupported, "cand_indices");
  EXPECT_EQ(folder.entries(), 0);
}

// The shared case files: those of reading fail with the code they name, all others survive a round trip.
TEST(CaseWrite, RoundTripsTheCaseFiles) {
  namespace fs = std::filesystem;
  const fs::path cases = fs::path(TAMIS_SOURCE_DIR) / "tests" / "cases";
  if (!fs::exists(cases)) GTEST_SKIP() << "no case files";
  const TempFolder folder;
  const std::string later[] = {"index_out_of_range", "duplicate_index", "page_out_of_range", "page_unmapped",
                               "foreign_page"};
  int seen = 0;
  for (const fs::directory_entry& file : fs::directory_iterator(cases)) {
    const std::string path = file.path().string();
    if (!path.ends_with(".safetensors") || path.ends_with(".expected.safetensors")) continue;
    SCOPED_TRACE(path);
    ++seen;
    std::string want = "ok", part;
    if (fs::path error = fs::path(file.path()).replace_extension(".error.json"); fs::exists(error)) {
      const auto json = nlohmann::json::parse(slurp(error.string()));
      want = json.at("error");
      if (!json.at("message_contains").empty()) part = json.at("message_contains").at(0);
    }
    if (std::count(std::begin(later), std::end(later), want) > 0) want = "ok", part.clear();
    const Result<Case> c = read_case(path);
    EXPECT_EQ(code_name(c.status().code()), want) << c.status().message();
    EXPECT_NE(c.status().message().find(part), std::string::npos) << c.status().message();
    if (c.ok()) expect_round_trip(*c, folder / "case");
  }
  EXPECT_GT(seen, 0);
}

}  // namespace
}  // namespace tamis::io
