// The conformance cases on the device: splits times load policies against the float64 answers, refusals by
// their codes, and what no kernel computes by name.
#include <gtest/gtest.h>

#include <filesystem>

#include "cuda/steps.h"
#include "tamis/io.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

const std::filesystem::path kCases = std::filesystem::path(TAMIS_SOURCE_DIR) / "tests" / "cases";

std::vector<std::string> names_with(const std::string& end) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kCases)) {
    const std::string file = entry.path().filename().string();
    if (file.ends_with(end)) names.push_back(file.substr(0, file.size() - end.size()));
  }
  std::sort(names.begin(), names.end());
  return names;
}

// What keeps a problem from the device, as the refusal must name it; empty where nothing does.
std::string obstacle(const Problem& p) {
  if (p.dropout.p > 0) return "dropout";
  if (p.cache.k_quant.format != Format::kPlain || p.cache.v_quant.format != Format::kPlain) return "format";
  for (const TensorView* t : {&p.query.q, &p.cache.k, &p.cache.v})
    if (t->dtype == DType::kF32) return "F32";
  return {};
}

class CudaCases : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { TAMIS_NEEDS_DEVICE(); }
};

struct Known {
  io::Case the_case;
  reference::Answer answer;
  Tolerance tolerance{};
};

Known load(const std::string& name) {
  Result<io::Case> made = io::read_case(kCases / (name + ".safetensors"));
  Result<io::TensorFile> file = io::read_tensors(kCases / (name + ".expected.safetensors"));
  EXPECT_TRUE(made.ok() && file.ok()) << made.status().message() << file.status().message();
  Known k{std::move(*made), {}};
  const auto copy = [&file](const char* tensor, std::vector<double>* to) {
    const TensorView& t = file->tensors.at(tensor);
    const float* x = static_cast<const float*>(t.data);
    to->assign(x, x + t.elements());
  };
  copy("out", &k.answer.output.out);
  copy("lse", &k.answer.output.lse);
  const auto number = [&](const char* key) { return std::stod(file->metadata.at(key)); };
  k.tolerance = {number("tol_out"), number("tol_lse")};
  const auto count = [&](const char* key) { return std::stoll(file->metadata.at(key)); };
  k.answer.sets.counts = {count("raw"), count("padding"), count("invalid"), count("duplicates"),
                          count("unique")};
  k.answer.sets.empty_rows = count("empty_rows");
  return k;
}

void expect_known(const Known& k, const DeviceRan& r) {
  ASSERT_EQ(complaint(r, k.answer, k.tolerance), "");
  const CandidateCounts& counts = k.answer.sets.counts;
  EXPECT_EQ(r.stats.raw, counts.raw);
  EXPECT_EQ(r.stats.padding, counts.padding);
  EXPECT_EQ(r.stats.invalid, counts.invalid);
  EXPECT_EQ(r.stats.duplicates, counts.duplicates);
  EXPECT_EQ(r.stats.unique, counts.unique);
  const Result<Shape> shape = describe(k.the_case.problem);
  // The case counts (query, index head); the device (query, query head).
  EXPECT_EQ(static_cast<int64_t>(r.device.empty_rows),
            k.answer.sets.empty_rows * (shape->q_heads / shape->index_heads));
  EXPECT_EQ(r.device.stale_rows, 0u);
}

TEST_P(CudaCases, HasItsAnswer) {
  const Known k = load(GetParam());
  if (HasFailure()) return;
  const Problem& p = k.the_case.problem;
  if (const std::string why = obstacle(p); !why.empty()) {
    const Status s = cuda::plan_step(p).status();
    EXPECT_EQ(s.code(), Code::kUnsupported) << s.message();
    EXPECT_TRUE(says(s, why));
    return;
  }
  for (const cuda::Load load : {cuda::Load::kBlocks, cuda::Load::kTokens, cuda::Load::kAuto})
    for (const int32_t block : {0, 16, 64})
      for (const int32_t splits : {0, 1, 2, 8}) {
        SCOPED_TRACE(::testing::Message()
                     << cuda::load_name(load) << ", block " << block << ", splits " << splits);
        cuda::StepOptions o{.block = block, .load = load};
        o.plan.splits = splits;
        if (load == cuda::Load::kBlocks && !blocks_must_load(p)) {
          const Status s = cuda::plan_step(p, o).status();
          if (!s.ok()) {
            EXPECT_EQ(s.code(), Code::kUnsupported) << s.message();
            EXPECT_TRUE(says(s, "load") || says(s, "page"));
            continue;
          }
        }
        expect_known(k, run_on_device(p, o));
        if (HasFatalFailure()) return;
      }
  // The dense path of the same kernel: every block that can be seen, and the same sets.
  cuda::StepOptions dense;
  dense.plan.path = Path::kDense;
  expect_known(k, run_on_device(p, dense));
}

// On devices of less shared memory, and here by choice.
TEST_P(CudaCases, HasItsAnswerWithShortRings) {
  const Known k = load(GetParam());
  if (HasFailure() || !obstacle(k.the_case.problem).empty()) return;
  const Problem& p = k.the_case.problem;
  for (const cuda::Load load : {cuda::Load::kBlocks, cuda::Load::kTokens})
    for (const int32_t splits : {0, 1, 8}) {
      if (load == cuda::Load::kBlocks && !blocks_must_load(p)) continue;
      SCOPED_TRACE(::testing::Message() << cuda::load_name(load) << ", splits " << splits);
      cuda::StepOptions o{.load = load, .ring = cuda::Ring::kShort};
      o.plan.splits = splits;
      expect_known(k, run_on_device(p, o));
      if (HasFatalFailure()) return;
    }
}

// What keeps a problem that the device takes from its prefill kernel.
std::string prefill_obstacle(const Problem& p) {
  const Result<Shape> s = describe(p);
  if (s->index_heads > 1 && s->index_heads / s->kv_heads > 32) return "index_heads";
  return {};
}

TEST_P(CudaCases, HasItsAnswerByPrefill) {
  TAMIS_NEEDS_PREFILL_DEVICE();
  const Known k = load(GetParam());
  if (HasFailure()) return;
  const Problem& p = k.the_case.problem;
  for (const int32_t block : {16, 32, 64})
    for (const int32_t splits : {0, 1, 2, 8})
      for (const Path path : {Path::kDirect, Path::kDense}) {
        SCOPED_TRACE(::testing::Message()
                     << "block " << block << ", splits " << splits << ", " << path_name(path));
        cuda::StepOptions o{.block = block};
        o.plan.splits = splits;
        o.plan.path = path;
        std::string why = obstacle(p);
        if (why.empty()) why = prefill_obstacle(p);
        if (!why.empty()) {
          const Status s = cuda::plan_step(p, prefill(o)).status();
          EXPECT_EQ(s.code(), Code::kUnsupported) << s.message();
          EXPECT_TRUE(says(s, why));
          continue;
        }
        const DType dtype = splits < 2 ? DType::kF32 : p.query.q.dtype;
        const DeviceRan r = run_on_device(p, prefill(o), dtype);
        if (dtype == DType::kF32) {
          expect_known(k, r);
        } else {
          ASSERT_EQ(complaint(r, k.answer, k.tolerance, dtype), "");
        }
        if (HasFatalFailure()) return;
      }
}

// Through outputs of the problem's own dtype too.
TEST_P(CudaCases, HasItsAnswerInNarrowOutputs) {
  const Known k = load(GetParam());
  if (HasFailure() || !obstacle(k.the_case.problem).empty()) return;
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const DeviceRan r = run_on_device(k.the_case.problem, {}, dtype, Placement::kGaps);
    EXPECT_EQ(complaint(r, k.answer, k.tolerance, dtype), "") << dtype_name(dtype);
  }
}

INSTANTIATE_TEST_SUITE_P(, CudaCases, ::testing::ValuesIn(names_with(".expected.safetensors")),
                         [](const auto& name) { return name.param; });

class CudaErrorCases : public CudaCases {};

// Arguments are refused by the host, contents by the device: the host's own code, and the same place.
TEST_P(CudaErrorCases, EndInTheirCode) {
  const Result<io::Case> made = io::read_case(kCases / (GetParam() + ".safetensors"));
  if (!made.ok()) {  // not even a problem; that reading gives the right code is tests/io's
    EXPECT_NE(made.status().code(), Code::kOk);
    return;
  }
  const Problem& p = made->problem;
  const Status want = normalize(p).status();
  ASSERT_FALSE(want.ok()) << "the case is refused";
  const Result<cuda::StepPlan> plan = cuda::plan_step(p);
  if (!plan.ok()) {
    EXPECT_EQ(plan.status().code(), want.code()) << plan.status().message();
    return;
  }
  DeviceStep step(*plan);
  const DeviceProblem device(p);
  const DeviceRan r = run_step(step, device, DType::kF32, Placement::kDense, Before::kMinusZero);
  EXPECT_STREQ(code_name(r.status.code()), code_name(want.code())) << r.status.message();
  EXPECT_EQ(r.damage, "");
  EXPECT_EQ(r.status.where().request, want.where().request);
  EXPECT_EQ(r.status.where().row, want.where().row);
  EXPECT_EQ(r.status.where().page, want.where().page);
  EXPECT_EQ(r.status.where().value, want.where().value);
  EXPECT_TRUE(all_nan(r.out));
  EXPECT_TRUE(all_nan(r.lse));
  EXPECT_EQ(r.device.tokens_loaded, 0u);
}

TEST_P(CudaErrorCases, EndInTheirCodeByPrefill) {
  TAMIS_NEEDS_PREFILL_DEVICE();
  const Result<io::Case> made = io::read_case(kCases / (GetParam() + ".safetensors"));
  if (!made.ok()) return;
  const Problem& p = made->problem;
  const Status want = normalize(p).status();
  const Result<cuda::StepPlan> plan = cuda::plan_step(p, prefill({.block = 16}));
  if (!plan.ok()) {
    EXPECT_TRUE(plan.status().code() == want.code() || plan.status().code() == Code::kUnsupported)
        << plan.status().message();
    return;
  }
  DeviceStep step(*plan);
  const DeviceProblem device(p);
  const DeviceRan r = run_step(step, device, DType::kF32, Placement::kDense, Before::kMinusZero);
  EXPECT_STREQ(code_name(r.status.code()), code_name(want.code())) << r.status.message();
  EXPECT_EQ(r.damage, "");
  EXPECT_TRUE(all_nan(r.out));
  EXPECT_TRUE(all_nan(r.lse));
  EXPECT_EQ(r.device.tokens_loaded, 0u);
}

INSTANTIATE_TEST_SUITE_P(, CudaErrorCases, ::testing::ValuesIn(names_with(".error.json")),
                         [](const auto& name) { return name.param; });

// The lists above are made from file names: they must not run dry.
TEST(CudaCaseLists, AreMany) {
  if (no_device()) GTEST_SKIP() << "no device";
  EXPECT_GT(names_with(".expected.safetensors").size(), 60u);
  EXPECT_GT(names_with(".error.json").size(), 30u);
}

TEST(CudaCaseLists, ManyAreForThePrefillKernel) {
  int64_t taken = 0;
  for (const std::string& name : names_with(".expected.safetensors")) {
    const Result<io::Case> made = io::read_case(kCases / (name + ".safetensors"));
    ASSERT_TRUE(made.ok()) << made.status().message();
    if (!obstacle(made->problem).empty() || !prefill_obstacle(made->problem).empty()) continue;
    EXPECT_TRUE(cuda::plan_step(made->problem, prefill({.block = 16})).ok()) << name;
    ++taken;
  }
  EXPECT_GT(taken, 40);
}

}  // namespace
}  // namespace tamis
