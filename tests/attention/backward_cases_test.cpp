// Gradients of the conformance cases on the CPU backend: those that come with gradients against the stored
// ones, all others with a made-up d_out against the reference; over bundles, slabs, instruction sets, threads
// and the ways to store a result.
#include <gtest/gtest.h>

#include <filesystem>

#include "attention/backward_runs.h"
#include "tamis/io.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

const std::filesystem::path kCases = std::filesystem::path(TAMIS_SOURCE_DIR) / "tests" / "cases";

std::vector<std::string> case_names() {
  std::vector<std::string> names;
  const std::string end = ".expected.safetensors";
  for (const auto& entry : std::filesystem::directory_iterator(kCases)) {
    const std::string file = entry.path().filename().string();
    if (file.ends_with(end)) names.push_back(file.substr(0, file.size() - end.size()));
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<double> numbers_of(const io::TensorFile& file, const std::string& name) {
  const TensorView& t = file.tensors.at(name);
  const float* x = static_cast<const float*>(t.data);
  return {x, x + t.elements()};
}

class BackwardCases : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    for (const std::string& isa : tested_isas())
      for (const int threads : {1, 2}) {
        contexts_.emplace_back(threads);
        ASSERT_TRUE(contexts_.back().use_isa(isa).ok());
      }
  }

  // Every way of storing gradients and of saving an output, one after the other.
  struct Way {
    Store store;
    bool with_out;
  };
  static constexpr Way kWays[] = {
      {{}, true},
      {{DType::kF32, DType::kF32, DType::kF32, Placement::kDense, Before::kMinusZero}, false},
      {{DType::kF32, DType::kF32, DType::kF32, Placement::kGaps, Before::kMinusZero}, true},
      {{DType::kF32, DType::kF32, DType::kF32, Placement::kSpread}, false},
      {{DType::kF32, DType::kF32, DType::kF32, Placement::kReversed}, true},
      {{DType::kBF16, DType::kBF16, DType::kBF16}, true},
      {{DType::kF16, DType::kF32, DType::kBF16, Placement::kSpread, Before::kMinusZero}, false},
      {{DType::kF32, DType::kF16, DType::kF32, Placement::kReversed}, false},
      {{DType::kBF16, DType::kF32, DType::kF16, Placement::kGaps}, true},
  };

  // On every instruction set; two threads give the bits of one.
  void run_everywhere(const Judge& judge, const BackwardPlan& plan, const Saved& saved) {
    for (size_t i = 0; i < contexts_.size(); i += 2) {
      const Way& way = kWays[way_++ % std::size(kWays)];
      const SavedForward forward = way.with_out ? saved.view() : saved.without_out();
      const RanBackward one = run_gradients(judge.p, plan, forward, contexts_[i], way.store);
      ASSERT_EQ(judge.complaint(one, way.store), "")
          << contexts_[i].isa() << ", way " << (way_ - 1) % std::size(kWays);
      const RanBackward two = run_gradients(judge.p, plan, forward, contexts_[i + 1], way.store);
      ASSERT_EQ(unlike(one, two), "") << contexts_[i].isa() << ": two threads";
    }
  }

  std::vector<Context> contexts_;
  size_t way_ = 0;
};

TEST_P(BackwardCases, HasItsGradientsHoweverItIsRun) {
  const Result<io::Case> made = io::read_case(kCases / (GetParam() + ".safetensors"));
  const Result<io::TensorFile> file = io::read_tensors(kCases / (GetParam() + ".expected.safetensors"));
  ASSERT_TRUE(made.ok() && file.ok()) << made.status().message() << file.status().message();
  Problem p = made->problem;
  Buffers buffers;
  if (!p.gradients.d_out.present()) {
    const Shape s = *describe(p);
    TensorView& t = p.gradients.d_out;
    t = lay(buffers, {s.total_q, s.q_heads, s.v_head_dim}, p.query.q.dtype, Placement::kGaps, 0, 0);
    for (int64_t i = 0; i < s.total_q; ++i)
      for (int64_t h = 0; h < s.q_heads; ++h)
        for (int64_t d = 0; d < s.v_head_dim; ++d)
          store(buffers.back().data(), t.dtype, i * t.stride[0] + h * t.stride[1] + d * t.stride[2],
                noise(9, i, h, d));
  }
  Judge judge(p);
  if (file->tensors.contains("d_q")) {
    judge.want = {numbers_of(*file, "d_q"), numbers_of(*file, "d_k"), numbers_of(*file, "d_v")};
    for (size_t part = 0; part < 3; ++part)
      judge.tolerance[part] = std::stod(file->metadata.at(std::string("tol_") + Judge::kNames[part]));
  }
  const Saved saved(p, judge.answer.output);
  for (const BundlePolicy policy : {BundlePolicy::kRows, BundlePolicy::kHeads, BundlePolicy::kNeighbours})
    for (const int64_t slab : {int64_t{1}, int64_t{20000}, BackwardOptions{}.slab_bytes}) {
      SCOPED_TRACE(::testing::Message() << "policy " << static_cast<int>(policy) << ", slabs of " << slab);
      const int32_t block = slab == 20000 ? 16 : 0;
      const Result<PlannedBackward> planned =
          plan_gradients(p, {.bundle = {.policy = policy}, .slab_bytes = slab}, {.block = block});
      ASSERT_TRUE(planned.ok()) << planned.status().message();
      run_everywhere(judge, planned->plan, saved);
      if (HasFatalFailure()) return;
    }
}

INSTANTIATE_TEST_SUITE_P(Each, BackwardCases, ::testing::ValuesIn(case_names()),
                         [](const auto& name) { return name.param; });

TEST(BackwardCasesOnCpu, HaveGradients) {
  int with = 0;
  for (const std::string& name : case_names()) {
    const Result<io::TensorFile> file = io::read_tensors(kCases / (name + ".expected.safetensors"));
    with += file.ok() && file->tensors.contains("d_v");
  }
  EXPECT_GE(with, 9) << "the list above is made from file names: it must not run dry";
}

}  // namespace
}  // namespace tamis
