// docs/faults.md, groups A to F, I and J, on the CPU backend: every row of the table is run in every way
// there is; steps, workspaces and batches are faults_steps_test.cpp.
#include <gtest/gtest.h>

#include "attention/faults_table.h"
#include "attention/runs.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/
using faults::Entry;
using faults::kEntries;

class Fault : public ::testing::TestWithParam<Entry> {};

TEST_P(Fault, IsNotOurs) {
  const Entry& entry = GetParam();
  const TestProblem t = entry.make({});
  const Result<reference::Answer> want = reference::forward(t.problem);
  ASSERT_EQ(want.status().code(), entry.code) << want.status().message();
  const Tolerance tolerance = want.ok() ? tolerance_of(t.problem, *want) : Tolerance{0, 0};
  for (const std::string& isa : tested_isas()) {
    Context context(2);
    ASSERT_TRUE(context.use_isa(isa).ok());
    for (const Path path : {Path::kDirect, Path::kDense})
      for (const BundlePolicy policy : {BundlePolicy::kRows, BundlePolicy::kHeads, BundlePolicy::kNeighbours})
        for (const int32_t block : {16, 64})
          for (const int32_t splits : {0, 1, 3}) {
            SCOPED_TRACE(::testing::Message()
                         << isa << ' ' << path_name(path) << ", policy " << static_cast<int>(policy)
                         << ", block " << block << ", splits " << splits);
            const ForwardOptions o{.normalize = {.block = block},
                                   .bundle = {.policy = policy},
                                   .plan = {.path = path, .splits = splits}};
            const Ran r = run_all(t.problem, o, context);
            ASSERT_EQ(r.status.code(), entry.code) << r.status.message();
            ASSERT_EQ(r.damage, "");
            if (entry.code != Code::kOk) continue;
            ASSERT_EQ(complaint(r, *want, tolerance), "");
            const size_t dim = entry.out.empty() ? 1 : r.out.size() / entry.out.size();
            for (size_t i = 0; i < entry.out.size(); ++i)
              ASSERT_NEAR(r.out[i * dim], entry.out[i], 1e-5 * std::max(1.0, entry.out[i])) << i;
            ASSERT_EQ(entry.lse.empty() ? "" : differs(r.lse, entry.lse, 1e-4), "");
          }
  }
}

INSTANTIATE_TEST_SUITE_P(On, Fault, ::testing::ValuesIn(kEntries),
                         [](const auto& entry) { return std::string(entry.param.name); });

}  // namespace
}  // namespace tamis
