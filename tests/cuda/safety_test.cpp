// What only the device can know: each refusal by its code and place, NaN in every row, nothing written where
// it does not belong, and a right answer in the next step on the same buffers.
#include <gtest/gtest.h>

#include <functional>

#include "cuda/steps.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

enum class Form { kCsr, kFixed, kContiguous };

// Three requests, two lists each; every option that refuses is on.
TestProblem good_problem(Form form) {
  TestProblem t({.kv_len = {70, 33, 140},
                 .q_len = {1, 2, 1},
                 .q_heads = 8,
                 .kv_heads = 2,
                 .head_dim = 64,
                 .v_head_dim = 128,
                 .dtype = DType::kBF16,
                 .page_size = form == Form::kContiguous ? 0 : 16,
                 .q = q_noise(1),
                 .k = kv_noise(2),
                 .v = kv_noise(3)});
  t.problem.candidates.index_heads = 2;
  t.problem.candidates.duplicates = OnDuplicate::kReject;
  const Rows rows = {{0, 17, 69, 3}, {64, 1, 2, 5}, {0, 1, 2, 3},    {31, 30, 8, 16},
                     {5, 6, 7, 20},  {4, 2, 0, 9},  {139, 0, 90, 8}, {100, 101, 102, 64}};
  if (form == Form::kFixed)
    t.fixed(rows, std::vector<int32_t>(8, 4));
  else
    t.csr(rows);
  if (form != Form::kContiguous) t.stamps(std::vector<uint64_t>(t.slots() / 16, 7));
  return t;
}

template <class T>
T& element(const TensorView& t, int64_t i) {
  return const_cast<T*>(static_cast<const T*>(t.data))[i];
}
int32_t& entry(TestProblem& t, int64_t i) { return element<int32_t>(t.problem.candidates.indices, i); }
int32_t& count(TestProblem& t, int64_t r) { return element<int32_t>(t.problem.candidates.count, r); }

struct Offence {
  const char* name;
  Form form;
  std::function<void(TestProblem&)> commit;
  Code code;
};
void PrintTo(const Offence& offence, std::ostream* to) { *to << offence.name; }

const Offence kOffences[] = {
    {"EntryAtLength", Form::kCsr, [](auto& t) { entry(t, 5) = 70; }, Code::kIndexOutOfRange},
    {"EntryBelowMinusOne", Form::kCsr, [](auto& t) { entry(t, 9) = -2; }, Code::kIndexOutOfRange},
    {"EntryIntMin", Form::kFixed, [](auto& t) { entry(t, 30) = INT32_MIN; }, Code::kIndexOutOfRange},
    {"EntryIntMax", Form::kContiguous, [](auto& t) { entry(t, 0) = INT32_MAX; }, Code::kIndexOutOfRange},
    {"EntryTwice", Form::kCsr, [](auto& t) { entry(t, 14) = 31; }, Code::kDuplicateIndex},
    {"EntryTwiceFarApart", Form::kFixed, [](auto& t) { entry(t, 27) = 139; }, Code::kDuplicateIndex},
    {"PageAtLimit", Form::kCsr, [](auto& t) { t.table(2, 5) = static_cast<int32_t>(t.slots() / 16); },
     Code::kPageOutOfRange},
    {"PageNegative", Form::kFixed, [](auto& t) { t.table(1, 1) = -2; }, Code::kPageOutOfRange},
    {"PageUnmapped", Form::kCsr, [](auto& t) { t.table(0, 4) = -1; }, Code::kPageUnmapped},
    {"PageForeign", Form::kCsr, [](auto& t) { t.table_stamp(1, 0) = 8; }, Code::kForeignPage},
    {"CountNegative", Form::kFixed, [](auto& t) { count(t, 3) = -1; }, Code::kInvalidArgument},
    {"CountOverWidth", Form::kFixed, [](auto& t) { count(t, 7) = 5; }, Code::kInvalidArgument},
    {"OffsetsFall", Form::kCsr, [](auto& t) { t.indptr32()[3] = 20; }, Code::kInvalidArgument},
    {"OffsetsNegative", Form::kCsr, [](auto& t) { t.indptr32()[0] = -4; }, Code::kInvalidArgument},
    {"OffsetsPastTheEnd", Form::kCsr, [](auto& t) { t.indptr32()[8] = 33; }, Code::kInvalidArgument},
    {"OffsetsFarPastTheEnd", Form::kContiguous, [](auto& t) { t.indptr32()[8] = INT32_MAX; },
     Code::kInvalidArgument},
    {"QueriesFall", Form::kCsr, [](auto& t) { t.cu_q()[2] = 0; }, Code::kInvalidArgument},
    {"QueriesFallAtTheEnd", Form::kCsr, [](auto& t) { t.cu_q()[3] = -1; }, Code::kInvalidArgument},
    {"QueriesNotFromZero", Form::kFixed, [](auto& t) { t.cu_q()[0] = 1; }, Code::kInvalidArgument},
    {"QueriesPastTheEnd", Form::kFixed, [](auto& t) { t.cu_q()[3] = 5; }, Code::kInvalidArgument},
    {"LengthNegative", Form::kCsr, [](auto& t) { t.kv_len()[1] = -1; }, Code::kInvalidArgument},
    {"LengthPastTheTable", Form::kCsr, [](auto& t) { t.kv_len()[2] = 1 << 20; }, Code::kInvalidArgument},
    {"LengthPastItsRows", Form::kContiguous, [](auto& t) { t.kv_len()[0] = 90; }, Code::kInvalidArgument},
    {"RowsPastTheCache", Form::kContiguous, [](auto& t) { t.cu_kv()[3] = 100000; }, Code::kInvalidArgument},
    {"RowsFall", Form::kContiguous, [](auto& t) { t.cu_kv()[1] = t.cu_kv()[2] + 1; }, Code::kInvalidArgument},
};

class CudaSafety : public ::testing::TestWithParam<Offence> {
 protected:
  void SetUp() override { TAMIS_NEEDS_DEVICE(); }
};

void expect_refused_and_forgotten(const Offence& offence, cuda::StepOptions o) {
  TestProblem bad = good_problem(offence.form);
  const TestProblem good = good_problem(offence.form);
  offence.commit(bad);
  const Status want = normalize(bad.problem).status();
  ASSERT_EQ(want.code(), offence.code) << "the host agrees: " << want.message();
  const Wanted right = wanted(good.problem);
  for (const int32_t splits : {1, 3}) {
    o.plan.splits = splits;
    const std::unique_ptr<DeviceStep> step = planned(good.problem, o);
    DeviceProblem device(good.problem);
    const DeviceRan first = run_step(*step, device);
    ASSERT_EQ(complaint(first, right.answer, right.tolerance), "");

    device.rewrite(bad.problem, nullptr);
    const DeviceRan r = run_step(*step, device, DType::kF32, Placement::kGaps, Before::kMinusZero);
    EXPECT_STREQ(code_name(r.status.code()), code_name(offence.code)) << r.status.message();
    EXPECT_FALSE(r.status.message().empty());
    EXPECT_EQ(r.damage, "");
    EXPECT_TRUE(all_nan(r.out)) << "healthy requests too";
    EXPECT_TRUE(all_nan(r.lse));
    EXPECT_EQ(r.device.tokens_loaded, 0u);
    EXPECT_EQ(r.device.tiles, 0u);
    if (offence.code != Code::kInvalidArgument) {
      EXPECT_EQ(r.status.where().request, want.where().request);
      EXPECT_EQ(r.status.where().row, want.where().row);
      EXPECT_EQ(r.status.where().page, want.where().page);
      EXPECT_EQ(r.status.where().value, want.where().value);
    }

    device.rewrite(good.problem, nullptr);
    const DeviceRan again = run_step(*step, device);
    EXPECT_EQ(complaint(again, right.answer, right.tolerance), "") << "after the refusal";
    EXPECT_EQ(unlike(first, again), "");
    EXPECT_GT(again.stats.epoch, first.stats.epoch);
  }
}

TEST_P(CudaSafety, IsRefusedAndForgotten) { expect_refused_and_forgotten(GetParam(), {}); }

TEST_P(CudaSafety, IsRefusedAndForgottenByPrefill) {
  TAMIS_NEEDS_PREFILL_DEVICE();
  expect_refused_and_forgotten(GetParam(), prefill({.block = 16}));
}

INSTANTIATE_TEST_SUITE_P(, CudaSafety, ::testing::ValuesIn(kOffences),
                         [](const auto& offence) { return std::string(offence.param.name); });

class CudaSafetyOrder : public OnDevice {};

// Several kinds at once: arguments before candidates before pages, whatever block of the grid finds them.
TEST_F(CudaSafetyOrder, TheFirstKindIsReported) {
  TestProblem t = good_problem(Form::kFixed);
  DeviceProblem device(t.problem);
  const std::unique_ptr<DeviceStep> step = planned(t.problem);
  t.table(0, 0) = -1;
  device.refresh();
  EXPECT_EQ(run_step(*step, device).status.code(), Code::kPageUnmapped);
  entry(t, 29) = 1000;
  device.refresh();
  EXPECT_EQ(run_step(*step, device).status.code(), Code::kIndexOutOfRange);
  count(t, 7) = 9;
  device.refresh();
  EXPECT_EQ(run_step(*step, device).status.code(), Code::kInvalidArgument);
}

// A row that is dropped or merged by policy, and bad entries of pages that no set touches, are no offences.
TEST_F(CudaSafetyOrder, WhatIsAllowedPasses) {
  TestProblem t = good_problem(Form::kFixed);
  t.problem.candidates.duplicates = OnDuplicate::kMerge;
  t.problem.candidates.invalid = OnInvalid::kDrop;
  entry(t, 0) = entry(t, 1);
  entry(t, 9) = -7;
  entry(t, 21) = INT32_MAX;
  t.table(2, 1) = -1;
  t.table(2, 2) = 99999;
  const Wanted want = wanted(t.problem);
  EXPECT_EQ(complaint(run_on_device(t.problem), want.answer, want.tolerance), "");
}

class CudaCapacity : public OnDevice {};

// Tiers of blocks: what fits is right, one more block refuses the batch, and nothing is cut.
TEST_F(CudaCapacity, BlocksOfARow) {
  TestProblem t({.kv_len = {640, 640},
                 .head_dim = 64,
                 .v_head_dim = 64,
                 .dtype = DType::kBF16,
                 .page_size = 16,
                 .q = q_noise(1),
                 .k = kv_noise(2),
                 .v = kv_noise(3)});
  t.problem.candidates.unit = 16;
  const std::vector<int32_t> row{30, 2, 4, 11, 7, 8, 0, 20, 39};
  t.fixed({row, row}, {8, 3});
  const std::unique_ptr<DeviceStep> step = planned(t.problem, {.block = 16, .row_entries = 8});
  DeviceProblem device(t.problem);
  const Wanted fits = wanted(t.problem);
  ASSERT_EQ(complaint(run_step(*step, device), fits.answer, fits.tolerance), "");
  count(t, 1) = 9;
  device.refresh();
  const DeviceRan r = run_step(*step, device, DType::kF32, Placement::kDense, Before::kMinusZero);
  EXPECT_STREQ(code_name(r.status.code()), "capacity_exceeded") << r.status.message();
  EXPECT_EQ(r.status.where().request, 1);
  EXPECT_EQ(r.status.where().value, 9);
  EXPECT_TRUE(all_nan(r.out));
  EXPECT_TRUE(all_nan(r.lse));
  EXPECT_EQ(r.damage, "");
  EXPECT_EQ(r.device.tokens_loaded, 0u);
  count(t, 1) = 3;
  device.refresh();
  EXPECT_EQ(complaint(run_step(*step, device), fits.answer, fits.tolerance), "");
}

// Window and sink count too: four listed, four of the window, one sink.
TEST_F(CudaCapacity, TheUnionOfTheScopes) {
  TestProblem t({.kv_len = {640}, .head_dim = 64, .v_head_dim = 64, .dtype = DType::kBF16, .page_size = 16});
  t.problem.mask = {.causal = true, .window = 64, .sink = 1};
  t.csr({{100, 200, 300, 400}});
  const Wanted want = wanted(t.problem);
  EXPECT_EQ(complaint(run_on_device(t.problem, {.block = 16, .row_entries = 9}), want.answer, want.tolerance),
            "");
  EXPECT_EQ(run_on_device(t.problem, {.block = 16, .row_entries = 8}).status.code(), Code::kCapacityExceeded);
}

// Lengths grow to the plan's capacity and not beyond, though the table goes on.
TEST_F(CudaCapacity, LengthOfARequest) {
  TestProblem t({.kv_len = {128, 128},
                 .head_dim = 64,
                 .v_head_dim = 64,
                 .dtype = DType::kBF16,
                 .page_size = 16,
                 .q = q_noise(1),
                 .k = kv_noise(2),
                 .v = kv_noise(3)});
  t.fixed({{3, 4, 60}, {1, 20, 63}});
  t.kv_len()[0] = t.kv_len()[1] = 64;
  const std::unique_ptr<DeviceStep> step = planned(t.problem, {.max_kv_len = 64});
  DeviceProblem device(t.problem);
  const Wanted fits = wanted(t.problem);
  ASSERT_EQ(complaint(run_step(*step, device), fits.answer, fits.tolerance), "");
  t.kv_len()[1] = 65;
  device.refresh();
  const DeviceRan r = run_step(*step, device, DType::kF32, Placement::kDense, Before::kMinusZero);
  EXPECT_STREQ(code_name(r.status.code()), "capacity_exceeded") << r.status.message();
  EXPECT_EQ(r.status.where().request, 1);
  EXPECT_EQ(r.status.where().value, 65);
  EXPECT_TRUE(all_nan(r.out));
  EXPECT_TRUE(all_nan(r.lse));
  EXPECT_EQ(r.damage, "");
}

class CudaUnread : public OnDevice {
 protected:
  static void expect_unread(const cuda::StepOptions& o);
};

// K and V at addresses without memory: a refused batch that read a byte of them would end in an illegal
// address. Such an error never leaves the process again, so each test of this suite is the last thing it
// does.
void CudaUnread::expect_unread(const cuda::StepOptions& o) {
  for (const Offence& offence : kOffences) {
    TestProblem t = good_problem(offence.form);
    offence.commit(t);
    const std::unique_ptr<DeviceStep> step = planned(t.problem, o);
    DeviceProblem device(t.problem);
    device.problem.cache.k.data = reinterpret_cast<const void*>(uintptr_t{1} << 16);
    device.problem.cache.v.data = reinterpret_cast<const void*>(uintptr_t{1} << 17);
    EXPECT_STREQ(code_name(run_step(*step, device).status.code()), code_name(offence.code)) << offence.name;
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess) << offence.name;
  }
}

TEST_F(CudaUnread, ARefusedBatchReadsNoKOrV) { expect_unread({}); }

TEST_F(CudaUnread, ARefusedBatchReadsNoKOrVByPrefill) {
  TAMIS_NEEDS_PREFILL_DEVICE();
  expect_unread(prefill({.block = 16}));
}

}  // namespace
}  // namespace tamis
