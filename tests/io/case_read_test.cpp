// What the metadata and the presence of tensors say, and the errors that name them.
#include <limits>

#include "io/small_case.h"

namespace tamis::io {
namespace {

void expect_refused(const SmallCase& c, std::string_view message) {
  expect_code(c.read().status(), Code::kInvalidArgument, message);
}

// One option changed in an otherwise good case.
void expect_refused(const char* key, const char* value, std::string_view message) {
  SmallCase c;
  c.metadata[key] = value;
  expect_refused(c, message);
}

template <class Check>
void expect_read(const char* key, const char* value, Check check) {
  SmallCase c;
  c.metadata[key] = value;
  const Result<Case> read = c.read();
  ASSERT_TRUE(read.ok()) << key << ": " << read.status().message();
  EXPECT_TRUE(check(read->problem)) << key << " = " << value;
}

TEST(CaseRead, DefaultsAreThoseOfTheContract) {
  const Result<Case> read = SmallCase().read();
  ASSERT_TRUE(read.ok()) << read.status().message();
  const Problem& p = read->problem;
  EXPECT_EQ(p.cache.layout, Layout::kNHD);
  EXPECT_EQ(p.candidates.form, CandidateForm::kCsr);
  EXPECT_EQ(p.candidates.unit, 1);
  EXPECT_EQ(p.candidates.query_block, 1);
  EXPECT_EQ(p.candidates.index_heads, 1);
  EXPECT_EQ(p.candidates.duplicates, OnDuplicate::kMerge);
  EXPECT_EQ(p.candidates.invalid, OnInvalid::kReject);
  EXPECT_EQ(p.candidates.semantics, Semantics::kSet);
  EXPECT_TRUE(p.mask.causal);
  EXPECT_EQ(p.mask.window, 0);
  EXPECT_EQ(p.mask.sink, 0);
  EXPECT_FALSE(p.score.scale.has_value());
  EXPECT_EQ(p.score.softcap, 0);
  EXPECT_EQ(p.dropout.p, 0);
  EXPECT_EQ(p.dropout.seed, 0u);
  EXPECT_FALSE(p.index_only.has_value());
  for (const TensorView* absent :
       {&p.query.q_pos, &p.cache.cu_kv, &p.cache.page_stamps, &p.cache.k_quant.scale, &p.candidates.count,
        &p.score.alibi_slopes, &p.gradients.d_out}) {
    EXPECT_FALSE(absent->present());
  }
}

TEST(CaseRead, ViewsPointIntoTheFileEvenAfterAMove) {
  Result<Case> read = SmallCase().read();
  ASSERT_TRUE(read.ok());
  const Case moved = std::move(*read);
  EXPECT_EQ(moved.problem.cache.page_table.at<int32_t>({1, 0}), 1);
  EXPECT_EQ(moved.problem.cache.v.at<float>({3, 1, 0, 2}), 2.f);
  EXPECT_EQ(moved.problem.cache.v.data, moved.file.tensors.at("v").data);
}

TEST(CaseRead, ReadsEveryOption) {
  expect_read("unit", "2", [](const Problem& p) { return p.candidates.unit == 2; });
  expect_read("causal", "0", [](const Problem& p) { return !p.mask.causal; });
  expect_read("causal", "1", [](const Problem& p) { return p.mask.causal; });
  expect_read("window", "9223372036854775807", [](const Problem& p) { return p.mask.window == INT64_MAX; });
  expect_read("sink", "3", [](const Problem& p) { return p.mask.sink == 3; });
  expect_read("scale", "-1.5e-3", [](const Problem& p) { return p.score.scale == -1.5e-3; });
  expect_read("softcap", "30", [](const Problem& p) { return p.score.softcap == 30; });
  expect_read("duplicates", "reject",
              [](const Problem& p) { return p.candidates.duplicates == OnDuplicate::kReject; });
  expect_read("invalid", "drop", [](const Problem& p) { return p.candidates.invalid == OnInvalid::kDrop; });
  expect_read("dropout_p", "0.1", [](const Problem& p) { return p.dropout.p == 0.1; });
  expect_read("dropout_seed", "18446744073709551615",
              [](const Problem& p) { return p.dropout.seed == UINT64_MAX; });
  expect_read("k_format", "", [](const Problem& p) { return p.cache.k_quant.format == Format::kPlain; });
  expect_read("remark", "ignored", [](const Problem&) { return true; });
  expect_read("head_dim", "not read when there is a q", [](const Problem&) { return true; });
}

TEST(CaseRead, RefusesNumbersThatAreNotWholly) {
  for (const char* key : {"unit", "query_block", "index_heads", "window", "sink"}) {
    for (const char* text : {"", " 1", "1 ", "+1", "1.0", "1e0", "0x1", "one", "1,0", "--1",
                             "9223372036854775808", "-9223372036854775809"}) {
      expect_refused(key, text, std::string(key) + ": '" + text + "' is not a 64-bit integer");
    }
  }
  for (const char* text : {"", "-1", "+1", "18446744073709551616", "1.0"}) {
    expect_refused("dropout_seed", text, "dropout_seed: '");
  }
  for (const char* key : {"scale", "softcap", "dropout_p"}) {
    for (const char* text : {"", " 1", "1 ", "+1", "1,5", "nan", "NaN", "inf", "-inf", "Infinity", "1e999",
                             "1e", "0x1p3", "one", "1.0f"}) {
      expect_refused(key, text, std::string(key) + ": '" + text + "' is not a finite number");
    }
  }
}

TEST(CaseRead, RefusesUnknownChoices) {
  expect_refused("kv_layout", "nhd", "kv_layout: 'nhd' is not one of NHD HND");
  expect_refused("causal", "true", "causal: 'true' is not one of 0 1");
  expect_refused("duplicates", "x", "duplicates: 'x' is not one of merge reject");
  expect_refused("invalid", "", "invalid: '' is not one of reject drop");
  expect_refused("semantics", "bag", "semantics: 'bag' is not one of set sequence multiset");
  expect_refused("k_format", "fp8", "k_format: 'fp8' is not one of int8 fp8_e4m3 fp8_e5m2 int4");
  expect_refused("v_format", "INT4", "v_format: 'INT4' is not one of");
  expect_refused("k_scale_kind", "", "k_scale_kind: '' is not one of tensor head page");
  expect_refused("v_scale_kind", "row", "v_scale_kind: 'row' is not one of");
}

TEST(CaseRead, LeavesRangesToDescribe) {
  expect_refused("unit", "0", "unit");
  expect_refused("query_block", "-1", "query_block");
  expect_refused("window", "-1", "window");
  expect_refused("sink", "-1", "sink");
  expect_refused("softcap", "-0.5", "softcap");
  expect_refused("dropout_p", "1", "dropout_p");
  expect_refused("index_heads", "3", "index_heads");
  SmallCase c;
  c.metadata["semantics"] = "sequence";
  expect_code(c.read().status(), Code::kUnsupportedSemantics, "sequence");
}

TEST(CaseRead, NeedsItsMark) {
  SmallCase c;
  c.metadata.erase("tamis.case");
  expect_refused(c, "tamis.case: is missing");
  for (const char* version : {"", "0", "2", "1.0", "01"})
    expect_refused("tamis.case", version, "tamis.case: '");
}

TEST(CaseRead, NeedsIndexHeads) {
  SmallCase c;
  c.metadata.erase("index_heads");
  expect_refused(c, "index_heads: is required");
}

TEST(CaseRead, NamesTheMissingTensor) {
  for (const char* name : {"q", "k", "v", "cu_q", "kv_len", "cand_indices"}) {
    SmallCase c;
    c.tensors.erase(name);
    expect_refused(c, std::string(name) + ": tensor is missing");
  }
  SmallCase c;
  c.tensors.erase("page_table");
  expect_refused(c, "page_table");
  c = SmallCase();
  c.tensors.erase("q"), c.tensors.erase("v");  // one of the three is enough to want them all
  expect_refused(c, "q: tensor is missing");
}

TEST(CaseRead, ChoosesTheCandidateForm) {
  SmallCase c;
  c.tensors.erase("cand_indptr");
  c.tensors["cand_indices"] = stated<int32_t>("I32", {3, 2}, {0, 1, 2, -1, 0, 2});
  Result<Case> read = c.read();
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->problem.candidates.form, CandidateForm::kFixedWidth);
  EXPECT_FALSE(read->problem.candidates.count.present());
  c.tensors["cand_count"] = stated<int32_t>("I32", {3}, {2, 1, 2});
  read = c.read();
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_TRUE(read->problem.candidates.count.present());
  c.tensors.erase("cand_indices");
  expect_refused(c, "cand_indices: tensor is missing");
  SmallCase both;
  both.tensors["cand_count"] = stated<int32_t>("I32", {3}, {2, 1, 2});
  expect_refused(both, "cand_count: ");
}

TEST(CaseRead, ReadsQuantizedCaches) {
  SmallCase c;
  c.tensors["k"] = {"U8", {4, 2, 1, 1}, std::string(8, '\x21')};
  c.metadata["k_format"] = "int4";
  expect_refused(c, "k_scale");
  c.tensors["k_scale"] = stated<float>("F32", {}, {0.5f});
  Result<Case> read = c.read();
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->problem.cache.k_quant.format, Format::kInt4);
  EXPECT_EQ(read->problem.cache.k_quant.kind, ScaleKind::kTensor);
  EXPECT_EQ(read->problem.cache.v_quant.format, Format::kPlain);
  c.metadata["k_scale_kind"] = "page_channel";
  expect_refused(c, "k_scale");
  c.tensors["k_scale"] = stated<float>("F32", {4, 1, 2}, std::vector<float>(8, 1.f));
  EXPECT_TRUE(c.read().ok()) << c.read().status().message();
}

TEST(CaseRead, ReadsIndexOnlyCases) {
  const SmallCase c = index_only_case();
  const Result<Case> read = c.read();
  ASSERT_TRUE(read.ok()) << read.status().message();
  ASSERT_TRUE(read->problem.index_only.has_value());
  const IndexOnly& only = *read->problem.index_only;
  EXPECT_EQ(only.q_heads, 2);
  EXPECT_EQ(only.kv_heads, 1);
  EXPECT_EQ(only.head_dim, 2);
  EXPECT_EQ(only.v_head_dim, 3);
  EXPECT_EQ(only.page_size, 2);
  EXPECT_EQ(only.num_pages, 4);
  EXPECT_EQ(only.kv_bits, 16);
  const std::pair<const char*, int> kBits[] = {{"f32", 32},     {"f16", 16},     {"bf16", 16}, {"int8", 8},
                                               {"fp8_e4m3", 8}, {"fp8_e5m2", 8}, {"int4", 4}};
  for (const auto& [name, bits] : kBits) {
    SmallCase other = c;
    other.metadata["kv_dtype"] = name;
    const Result<Case> again = other.read();
    ASSERT_TRUE(again.ok()) << again.status().message();
    EXPECT_EQ(again->problem.index_only->kv_bits, bits);
  }
}

TEST(CaseRead, IndexOnlyCasesStateTheirSizes) {
  for (const char* key : {"q_heads", "kv_heads", "head_dim", "v_head_dim", "kv_dtype"}) {
    SmallCase c = index_only_case();
    c.metadata.erase(key);
    expect_refused(c, std::string(key) + ": is required");
    c.metadata[key] = "many";
    expect_refused(c, std::string(key) + ": 'many' is not");
  }
  SmallCase c = index_only_case();
  c.metadata.erase("page_size"), c.metadata.erase("num_pages"), c.tensors.erase("page_table");
  EXPECT_TRUE(c.read().ok()) << c.read().status().message();
  c.metadata["page_size"] = "x";
  expect_refused(c, "page_size: 'x' is not");
  c = index_only_case();
  c.metadata["kv_dtype"] = "f64";
  expect_refused(c, "kv_dtype: 'f64' is not one of f32");
}

TEST(CaseRead, DamagedFilesAreIoErrors) {
  const std::string whole = SmallCase().bytes();
  for (size_t n = 0; n < whole.size(); ++n) {
    ASSERT_EQ(parse_as_case(whole.substr(0, n)).status().code(), Code::kIoError) << n << " bytes";
  }
  expect_code(read_case("/dev/null").status(), Code::kIoError, "/dev/null");
}

TEST(CaseRead, SurvivesEveryFlippedBit) {
  const std::string whole = SmallCase().bytes();
  int read = 0;
  for (size_t n = 0; n < whole.size(); ++n) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = whole;
      damaged[n] = static_cast<char>(damaged[n] ^ (1 << bit));
      const Status status = parse_as_case(damaged).status();
      read += status.ok();
      EXPECT_TRUE(status.ok() || !status.message().empty());
    }
  }
  EXPECT_GT(read, 0);  // bits of values are free
}

}  // namespace
}  // namespace tamis::io
