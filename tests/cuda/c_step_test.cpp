// The device step through C: bit for bit what C++ computes, the offence and the statistics that poll reports,
// slots, and capture.
#include <tamis/tamis_c_step.h>

#include "capi/c_problem.h"
#include "cuda/graph.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

// A plan in C with its buffers, a problem on the device and where results go.
struct CStep {
  explicit CStep(const Problem& host) : device(host), c(device.problem), out(host) {
    Error error;
    EXPECT_EQ(tamis_cuda_plan_create(&plan, error), TAMIS_OK);
    tamis_cuda_plan_options options;
    tamis_cuda_plan_options_init(&options);
    if (takes_short_rings()) options.ring = TAMIS_CUDA_RING_SHORT;
    EXPECT_EQ(tamis_cuda_plan_make(&c.problem, &options, plan, error), TAMIS_OK) << error.text;
    auto sizes = sized<tamis_cuda_sizes>();
    EXPECT_EQ(tamis_cuda_plan_sizes(plan, &sizes, error), TAMIS_OK) << error.text;
    control = std::make_unique<DeviceBuffer>(sizes.control);
    index = std::make_unique<DeviceBuffer>(sizes.index);
    scratch = std::make_unique<DeviceBuffer>(sizes.scratch);
    buffers = {sizeof buffers, control->data(), index->data(), scratch->data(),
               sizes.control,  sizes.index,     sizes.scratch};
    const OutView view = out.view();
    out_tensor = tensor(view.out);
    lse_tensor = tensor(view.lse);
    output = {sizeof output, &out_tensor, &lse_tensor, nullptr, nullptr};
    EXPECT_EQ(tamis_cuda_clear(plan, &buffers, stream, error), TAMIS_OK) << error.text;
  }
  ~CStep() { tamis_cuda_plan_destroy(plan); }
  CStep(const CStep&) = delete;

  static tamis_tensor tensor(const MutableTensorView& from) {
    auto t = sized<tamis_tensor>();
    t.data = from.data;
    t.dtype = number_of(from.dtype);
    t.rank = from.rank;
    for (int axis = 0; axis < from.rank; ++axis) {
      t.shape[axis] = from.shape[axis];
      t.stride[axis] = from.stride[axis];
    }
    return t;
  }

  int32_t launch(tamis_error* error) {
    return tamis_cuda_step(plan, &c.problem, &output, &buffers, stream,
                           reinterpret_cast<tamis_cuda_counters*>(counters.get()), error);
  }
  int32_t poll(tamis_error* error) { return tamis_cuda_poll(plan, &buffers, stream, &stats, error); }
  void expect_fences() const {
    EXPECT_TRUE(out.fences_stand() && device.fences_stand() && counters.fences_stand());
    EXPECT_TRUE(control->fences_stand() && index->fences_stand() && scratch->fences_stand());
  }

  DeviceStream stream;
  DeviceProblem device;
  CProblem c;
  DeviceOut out;
  DeviceCounters counters;
  tamis_cuda_plan* plan = nullptr;
  std::unique_ptr<DeviceBuffer> control, index, scratch;
  tamis_cuda_buffers buffers{};
  tamis_tensor out_tensor, lse_tensor;
  tamis_output output{};
  tamis_cuda_stats stats = sized<tamis_cuda_stats>();
};

class CudaCStep : public OnDevice {};

std::unique_ptr<LiveBatch> batch(uint64_t seed) {
  auto made = std::make_unique<LiveBatch>(5, DType::kBF16, 2);
  Dice d(seed);
  made->draw(d);
  return made;
}

void expect_counts(const tamis_cuda_stats& got, const DeviceRan& want, int32_t block) {
  EXPECT_EQ(got.raw, want.stats.raw);
  EXPECT_EQ(got.padding, want.stats.padding);
  EXPECT_EQ(got.invalid, want.stats.invalid);
  EXPECT_EQ(got.duplicates, want.stats.duplicates);
  EXPECT_EQ(got.unique, want.stats.unique);
  EXPECT_EQ(got.future, want.stats.future);
  EXPECT_EQ(got.bundles, want.stats.bundles);
  EXPECT_EQ(got.empty_bundles, want.stats.empty_bundles);
  EXPECT_EQ(got.blocks, want.stats.blocks);
  EXPECT_EQ(got.gaps, want.stats.gaps);
  EXPECT_EQ(got.touched_pages, want.stats.touched_pages);
  EXPECT_EQ(got.selected, want.stats.selected);
  EXPECT_EQ(got.tasks, want.stats.tasks);
  EXPECT_EQ(got.parts, want.stats.parts);
  EXPECT_EQ(got.most_parts, want.stats.most_parts);
  EXPECT_EQ(got.density, want.stats.density(block));
}

TEST_F(CudaCStep, IsTheOneOfCpp) {
  const auto made = batch(3);
  const DeviceRan want = run_on_device(made->made.problem);
  ASSERT_TRUE(want.status.ok()) << want.status.message();
  CStep step(made->made.problem);
  Error error;
  ASSERT_EQ(step.launch(error), TAMIS_OK) << error.text;
  ASSERT_EQ(step.poll(error), TAMIS_OK) << error.text;
  step.out.get();
  EXPECT_TRUE(same_bits(step.out.out(), want.out));
  EXPECT_TRUE(same_bits(step.out.lse(), want.lse));
  auto info = sized<tamis_cuda_plan_summary>();
  ASSERT_EQ(tamis_cuda_plan_info(step.plan, &info, error), TAMIS_OK);
  expect_counts(step.stats, want, info.block);
  EXPECT_EQ(step.stats.epoch, 1u);
  EXPECT_GT(step.stats.selected, 0);
  const cuda::StepCounters counts = step.counters.values();
  EXPECT_EQ(counts.tasks, want.device.tasks);
  EXPECT_EQ(counts.tokens_loaded, want.device.tokens_loaded);
  EXPECT_EQ(counts.empty_rows, want.device.empty_rows);
  // Stage by stage, and the counters may be absent.
  step.out.reset();
  ASSERT_EQ(tamis_cuda_normalize(step.plan, &step.c.problem, &step.buffers, step.stream, error), TAMIS_OK);
  ASSERT_EQ(tamis_cuda_schedule(step.plan, &step.buffers, step.stream, error), TAMIS_OK);
  for (int layer = 0; layer < 2; ++layer)
    ASSERT_EQ(
        tamis_cuda_run(step.plan, &step.c.problem, &step.output, &step.buffers, step.stream, nullptr, error),
        TAMIS_OK)
        << error.text;
  ASSERT_EQ(step.poll(error), TAMIS_OK) << error.text;
  step.out.get();
  EXPECT_TRUE(same_bits(step.out.out(), want.out));
  EXPECT_EQ(step.stats.epoch, 2u);
  EXPECT_EQ(step.counters.values().tasks, want.device.tasks);
  step.expect_fences();
}

TEST_F(CudaCStep, PollNamesTheOffence) {
  TestProblem t({.kv_len = {70, 33},
                 .q_heads = 4,
                 .kv_heads = 2,
                 .head_dim = 16,
                 .v_head_dim = 16,
                 .dtype = DType::kF16,
                 .page_size = 16,
                 .q = q_noise(1),
                 .k = kv_noise(2),
                 .v = kv_noise(3)});
  t.csr({{0, 69}, {1, 33}});
  CStep step(t.problem);
  Error error;
  ASSERT_EQ(step.launch(error), TAMIS_OK) << error.text;
  EXPECT_EQ(step.poll(error), TAMIS_INDEX_OUT_OF_RANGE) << error.text;
  EXPECT_EQ(error.c.has & (TAMIS_HAS_REQUEST | TAMIS_HAS_ROW | TAMIS_HAS_VALUE),
            static_cast<uint32_t>(TAMIS_HAS_REQUEST | TAMIS_HAS_ROW | TAMIS_HAS_VALUE));
  EXPECT_EQ(error.c.request, 1);
  EXPECT_EQ(error.c.row, 1);
  EXPECT_EQ(error.c.value, 33);
  EXPECT_EQ(step.stats.epoch, 1u) << "statistics are filled either way";
  step.out.get();
  EXPECT_TRUE(all_nan(step.out.out()));
  EXPECT_TRUE(all_nan(step.out.lse()));
}

TEST_F(CudaCStep, ReusedSlotsKeepTheirRows) {
  const auto made = batch(4);
  CStep step(made->made.problem);
  const std::vector<int32_t> slot{4, 3, 2, 1, 0};
  const std::vector<uint32_t> generation{1, 1, 1, 1, 1}, live{1, 1, 1, 2, 1};  // slot 3, of request 1
  SlotView view{.slot = dense_view(slot.data(), DType::kI32, {5}),
                .generation = dense_view(generation.data(), DType::kU32, {5}),
                .live_generation = dense_view(live.data(), DType::kU32, {5})};
  const DeviceTensors on_device({&view.slot, &view.generation, &view.live_generation});
  const tamis_slots slots{sizeof slots, step.c.add(view.slot), step.c.add(view.generation),
                          step.c.add(view.live_generation)};
  step.output.slots = &slots;
  Error error;
  ASSERT_EQ(step.launch(error), TAMIS_OK) << error.text;
  ASSERT_EQ(step.poll(error), TAMIS_OK) << error.text;
  EXPECT_EQ(step.counters.values().stale_rows, 8u);
  step.expect_fences();
}

TEST_F(CudaCStep, IsCapturable) {
  const auto first = batch(5), second = batch(6);
  CStep step(first->made.problem);
  step.stream.wait();
  Error error;
  const Graph graph(step.stream, [&]() -> Status {
    EXPECT_EQ(step.launch(error), TAMIS_OK) << error.text;
    Error waits;
    EXPECT_EQ(step.poll(waits), TAMIS_NOT_CAPTURABLE);
    return {};
  });
  for (const auto* live : {&first, &second}) {
    const DeviceRan want = run_on_device((*live)->made.problem);
    step.device.rewrite((*live)->made.problem, step.stream);
    graph.replay();
    ASSERT_EQ(step.poll(error), TAMIS_OK) << error.text;
    step.out.get();
    EXPECT_TRUE(same_bits(step.out.out(), want.out));
  }
  step.expect_fences();
}

}  // namespace
}  // namespace tamis
