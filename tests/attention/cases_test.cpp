// The conformance cases on the CPU backend, over every way to run them: splits, block sizes, paths, bundles,
// instruction sets, threads and orders of tasks. tests/cases/README.md says what is in a case.
#include <gtest/gtest.h>

#include <filesystem>

#include "attention/runs.h"
#include "tamis/io.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

const std::filesystem::path kCases = std::filesystem::path(TAMIS_SOURCE_DIR) / "tests" / "cases";

// Every case with an answer.
std::vector<std::string> case_names() {
  std::vector<std::string> names;
  const std::string end = ".expected.safetensors";
  for (const auto& entry : std::filesystem::directory_iterator(kCases)) {
    const std::string file = entry.path().filename().string();
    if (!file.ends_with(end)) continue;
    names.push_back(file.substr(0, file.size() - end.size()));
  }
  std::sort(names.begin(), names.end());
  return names;
}

struct Known {
  io::Case the_case;
  reference::Answer answer;
  std::vector<int64_t> slots;
  Tolerance tolerance;
};

template <class T>
auto copy_of(const io::TensorFile& file, const std::string& name) {
  const TensorView& t = file.tensors.at(name);
  const T* x = static_cast<const T*>(t.data);
  return std::vector<T>(x, x + t.elements());
}

Known load(const std::string& name) {
  Result<io::Case> made = io::read_case(kCases / (name + ".safetensors"));
  Result<io::TensorFile> file = io::read_tensors(kCases / (name + ".expected.safetensors"));
  EXPECT_TRUE(made.ok() && file.ok()) << made.status().message() << file.status().message();
  Known k{std::move(*made), {}, copy_of<int64_t>(*file, "set_slots"), {}};
  for (const float x : copy_of<float>(*file, "out")) k.answer.output.out.push_back(x);
  for (const float x : copy_of<float>(*file, "lse")) k.answer.output.lse.push_back(x);
  k.answer.sets.indptr = copy_of<int64_t>(*file, "set_indptr");
  k.answer.sets.tokens = copy_of<int32_t>(*file, "set_tokens");
  const auto number = [&](const char* key) { return std::stod(file->metadata.at(key)); };
  const auto count = [&](const char* key) { return std::stoll(file->metadata.at(key)); };
  k.tolerance = {number("tol_out"), number("tol_lse")};
  k.answer.sets.counts = {count("raw"), count("padding"), count("invalid"), count("duplicates"),
                          count("unique")};
  k.answer.sets.empty_rows = count("empty_rows");
  return k;
}

// The sets are those of the case, and each token of a set has one span, which says where it is.
void check_sets(const Known& k, const IndexSet& index) {
  const Problem& p = k.the_case.problem;
  const IndexView v = index.view();
  const CandidateCounts &got = index.stats().counts, &want = k.answer.sets.counts;
  EXPECT_EQ(got.raw, want.raw);
  EXPECT_EQ(got.padding, want.padding);
  EXPECT_EQ(got.invalid, want.invalid);
  EXPECT_EQ(got.duplicates, want.duplicates);
  EXPECT_EQ(got.unique, want.unique);
  const int64_t heads = p.candidates.index_heads,
                sets = static_cast<int64_t>(k.answer.sets.indptr.size()) - 1;
  for (int64_t r = 0; r < v.rows; ++r) {
    std::map<int32_t, int64_t> slots;
    for (int64_t e = v.begin[r]; e < v.begin[r] + v.count[r]; ++e)
      for (int64_t s = v.span_begin[e]; s < v.span_begin[e + 1]; ++s)
        for (int32_t i = 0; i < v.spans[s].length; ++i)
          ASSERT_TRUE(slots.emplace(v.spans[s].token + i, v.spans[s].slot + i).second) << "in two spans";
    for (int64_t i = v.row[r].first_query; i < v.row[r].last_query; ++i) {
      const int64_t set = i * heads + v.row[r].index_head;
      ASSERT_LT(set, sets);
      ASSERT_EQ(expand_set(p, v, i, v.row[r].index_head), set_of(k.answer.sets, set)) << "query " << i;
      for (int64_t at = k.answer.sets.indptr[set]; at < k.answer.sets.indptr[set + 1]; ++at) {
        const auto found = slots.find(k.answer.sets.tokens[at]);
        ASSERT_TRUE(found != slots.end() && found->second == k.slots[at])
            << "token " << k.answer.sets.tokens[at];
      }
    }
  }
}

class Cases : public ::testing::TestWithParam<std::string> {
 protected:
  // Contexts of one and two threads for each instruction set.
  void SetUp() override {
    for (const std::string& isa : tested_isas())
      for (const int threads : {1, 2}) {
        contexts_.emplace_back(threads);
        ASSERT_TRUE(contexts_.back().use_isa(isa).ok());
      }
  }

  void run_everywhere(const Known& k, const Steps& steps) {
    const Problem& p = k.the_case.problem;
    const Schedule other = shuffled(steps.schedule, ++seed_);
    for (size_t i = 0; i < contexts_.size(); i += 2) {
      const Ran one = run_step(p, steps, steps.schedule, contexts_[i]);
      ASSERT_EQ(complaint(one, k.answer, k.tolerance), "") << contexts_[i].isa();
      ASSERT_EQ(unlike(one, run_step(p, steps, other, contexts_[i + 1])), "")
          << contexts_[i].isa() << ": two threads, tasks in another order";
    }
  }

  std::vector<Context> contexts_;
  uint64_t seed_ = 0;
};

TEST_P(Cases, HasItsAnswerHoweverItIsRun) {
  const Known k = load(GetParam());
  if (HasFailure()) return;
  const Problem& p = k.the_case.problem;
  for (const int32_t block : {0, 16, 64})
    for (const Path path : {Path::kDirect, Path::kDense}) {
      std::vector<std::tuple<int64_t, int64_t, int64_t>> seen;  // bundles already run
      for (const BundlePolicy policy :
           {BundlePolicy::kRows, BundlePolicy::kHeads, BundlePolicy::kNeighbours}) {
        SCOPED_TRACE(::testing::Message() << "block " << block << ", " << path_name(path) << ", policy "
                                          << static_cast<int>(policy));
        ForwardOptions o{.normalize = {.block = block}, .bundle = {.policy = policy}, .plan = {.path = path}};
        for (const int32_t splits : {0, 1, 2, 8}) {
          SCOPED_TRACE(::testing::Message() << splits << " splits");
          o.plan.splits = splits;
          const Result<Steps> steps = prepare(p, o);
          ASSERT_TRUE(steps.ok()) << steps.status().message();
          if (splits == 0) {
            if (policy == BundlePolicy::kRows) check_sets(k, steps->index);
            const BundleView v = steps->bundles.view();
            const std::tuple shape(v.bundles, v.max_lists, steps->bundles.stats().union_blocks);
            // Where there is nothing to join, the policies give the same bundles.
            if (std::find(seen.begin(), seen.end(), shape) != seen.end()) break;
            seen.push_back(shape);
          }
          run_everywhere(k, *steps);
          if (HasFatalFailure()) return;
        }
      }
    }
}

TEST_P(Cases, HasItsAnswerWhenAllIsLeftToTheLibrary) {
  const Known k = load(GetParam());
  if (HasFailure()) return;
  for (Context& context : contexts_) {
    const Problem& p = k.the_case.problem;
    const Result<Shape> shape = describe(p);
    Guarded out(DType::kF32, {shape->total_q, shape->q_heads, shape->v_head_dim});
    Guarded lse(DType::kF32, {shape->total_q, shape->q_heads});
    ForwardReport report;
    const Status status = forward(p, {}, {out.view(), lse.view()}, context, &report);
    ASSERT_EQ(complaint({status, out.values(), lse.values(), {}, {}}, k.answer, k.tolerance), "");
    EXPECT_TRUE(out.fences_stand() && lse.fences_stand());
    EXPECT_EQ(report.index.counts.raw, k.answer.sets.counts.raw);
    // The case counts (query, index head); the report (query, query head).
    EXPECT_EQ(report.counters.empty_rows, k.answer.sets.empty_rows * (shape->q_heads / shape->index_heads));
  }
}

INSTANTIATE_TEST_SUITE_P(Each, Cases, ::testing::ValuesIn(case_names()),
                         [](const auto& name) { return name.param; });

// The list above is made from file names: it must not run dry.
TEST(CasesOnCpu, AreMany) { EXPECT_GT(case_names().size(), 60u); }

}  // namespace
}  // namespace tamis
