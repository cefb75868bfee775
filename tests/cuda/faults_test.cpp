// docs/faults.md, groups A to F, I and J, on the device: the same table that the CPU backend goes through, in
// f16 and with head sizes a kernel has.
#include <gtest/gtest.h>

#include "attention/faults_table.h"
#include "cuda/steps.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/
using faults::Entry;
using faults::kEntries;

// What is added to q and k is zero and leaves every score what it was. The numbers of the table are all exact
// in f16.
Spec for_the_device(Spec s) {
  const auto round_up = [](int64_t d) { return (d + 7) / 8 * 8; };
  const int64_t dim = s.head_dim;
  s.q = [q = s.q, dim](int64_t i, int64_t h, int64_t d) { return d < dim ? q(i, h, d) : 0; };
  s.k = [k = s.k, dim](int64_t b, int64_t t, int64_t h, int64_t d) { return d < dim ? k(b, t, h, d) : 0; };
  s.head_dim = round_up(dim);
  s.v_head_dim = round_up(s.v_head_dim);
  s.dtype = DType::kF16;
  return s;
}

// The device asks for rows that start on 16 bytes and heads of a multiple of 8: here the refusal is the
// answer, and grids_test has the same shapes laid out as it wants them.
bool laid_out_oddly(const std::string& name) {
  return name == "A6_Strided" || name == "A6_Contiguous" || name.starts_with("E9_D");
}

class CudaFault : public ::testing::TestWithParam<Entry> {
 protected:
  void SetUp() override { TAMIS_NEEDS_DEVICE(); }
};

TEST_P(CudaFault, IsNotOurs) {
  const Entry& entry = GetParam();
  const TestProblem t = entry.make(for_the_device);
  const Result<reference::Answer> want = reference::forward(t.problem);
  ASSERT_EQ(want.status().code(), entry.code) << want.status().message();
  const Tolerance tolerance = want.ok() ? tolerance_of(t.problem, *want) : Tolerance{0, 0};
  for (const Path path : {Path::kDirect, Path::kDense})
    for (const cuda::Load load : {cuda::Load::kTokens, cuda::Load::kBlocks})
      for (const int32_t block : {16, 64})
        for (const int32_t splits : {0, 1, 3}) {
          if (load == cuda::Load::kBlocks && (!want.ok() || !blocks_must_load(t.problem))) continue;
          SCOPED_TRACE(::testing::Message() << path_name(path) << ", " << cuda::load_name(load) << ", block "
                                            << block << ", splits " << splits);
          cuda::StepOptions o{.block = block, .load = load};
          o.plan.path = path;
          o.plan.splits = splits;
          const DeviceRan r = run_on_device(t.problem, o);
          if (laid_out_oddly(entry.name)) {
            ASSERT_EQ(r.status.code(), Code::kUnsupported);
            ASSERT_NE(r.status.message().find("on the device; nearest: "), std::string::npos);
            continue;
          }
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

INSTANTIATE_TEST_SUITE_P(, CudaFault, ::testing::ValuesIn(kEntries),
                         [](const auto& entry) { return std::string(entry.param.name); });

}  // namespace
}  // namespace tamis
