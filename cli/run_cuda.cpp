// How a device computes a problem for `tamis run`: everything is copied there, stepped through, and copied
// back.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "bench/device_problem.h"
#include "cuda_plan.h"
#include "tamis/cuda.h"

namespace tamis::cli {
namespace {

using bench::DeviceBuffer;
using bench::DeviceEvent;
using bench::DeviceProblem;
using bench::DeviceStream;

// Everything a step needs on the device, made for one plan.
struct Step {
  cuda::StepPlan plan;
  DeviceBuffer control, index, scratch;

  cuda::StepBuffers buffers() const {
    return {control.data(), index.data(), scratch.data(), {control.bytes(), index.bytes(), scratch.bytes()}};
  }
};

struct Results {
  DeviceBuffer out, lse, counters;
  OutView view;
};

// Stage borders of one step.
struct Events {
  std::vector<DeviceEvent> at;

  static Result<Events> make(int count) {
    Events made;
    for (int i = 0; i < count; ++i) {
      Result<DeviceEvent> event = DeviceEvent::make();
      if (!event.ok()) return event.status();
      made.at.push_back(std::move(*event));
    }
    return made;
  }
};

// The first status that is not ok, of steps that are taken only as long as all before went well.
template <class... Steps>
Status in_order(const Steps&... steps) {
  Status status;
  (void)((status = steps(), status.ok()) && ...);
  return status;
}

Status make_buffer(int64_t bytes, DeviceBuffer* buffer) {
  Result<DeviceBuffer> made = DeviceBuffer::make(bytes);
  if (!made.ok()) return made.status();
  *buffer = std::move(*made);
  return {};
}

Result<Step> make_step(const cuda::StepPlan& plan, const DeviceStream& stream) {
  Step step{.plan = plan, .control = {}, .index = {}, .scratch = {}};
  const Status made = in_order([&] { return make_buffer(plan.bytes.control, &step.control); },
                               [&] { return make_buffer(plan.bytes.index, &step.index); },
                               [&] { return make_buffer(plan.bytes.scratch, &step.scratch); },
                               [&] { return cuda::clear(plan, step.buffers(), stream.handle()); });
  if (!made.ok()) return made;
  return step;
}

// A row that nobody writes must show: results start as NaN.
Result<Results> make_results(const Shape& s) {
  Results r;
  const int64_t rows = s.total_q * s.q_heads, floats = sizeof(float);
  const Status made = in_order([&] { return make_buffer(rows * s.v_head_dim * floats, &r.out); },
                               [&] { return make_buffer(rows * floats, &r.lse); },
                               [&] { return make_buffer(sizeof(cuda::StepCounters), &r.counters); },
                               [&] { return r.out.fill(0xFF); }, [&] { return r.lse.fill(0xFF); },
                               [&] { return r.counters.fill(0); });
  if (!made.ok()) return made;
  r.view = {.out = mutable_view(r.out.data(), DType::kF32, {s.total_q, s.q_heads, s.v_head_dim}),
            .lse = mutable_view(r.lse.data(), DType::kF32, {s.total_q, s.q_heads})};
  return r;
}

// --load auto: how dense the lists lie within their blocks is known once the sets are made, so they are made
// once before the choice is final.
Status settle_load(const Problem& host, const DeviceProblem& device, const RunOptions& options,
                   const DeviceStream& stream, Step* step, std::string* reason) {
  cuda::StepStats stats;
  const cuda::StepPlan& plan = step->plan;
  const Status tried =
      in_order([&] { return cuda::normalize(plan, device.problem(), step->buffers(), stream.handle()); },
               [&] { return cuda::schedule(plan, step->buffers(), stream.handle()); },
               [&] { return cuda::poll(plan, step->buffers(), stream.handle(), &stats); });
  if (!tried.ok()) return tried;
  const double density = stats.density(plan.plan.block);
  Result<CudaPlan> better = plan_cuda(host, options, density);
  if (!better.ok()) return better.status();
  if (better->step.load == plan.load) return {};
  *reason = better->reason + fmt::format("{}load {}: density {:.3f}", better->reason.empty() ? "" : "; ",
                                         cuda::load_name(better->step.load), density);
  Result<Step> remade = make_step(better->step, stream);
  if (!remade.ok()) return remade.status();
  *step = std::move(*remade);
  return {};
}

// One step, its stages between events. Merging is part of the attention kernel.
Result<Times> timed_step(const Step& step, const DeviceProblem& device, const OutView& out,
                         const DeviceStream& stream, std::vector<DeviceEvent>* at, cuda::StepStats* stats,
                         cuda::StepCounters* counters) {
  const cuda::StepBuffers buffers = step.buffers();
  const Problem& p = device.problem();
  std::vector<DeviceEvent>& event = *at;
  const Status done =
      in_order([&] { return event[0].record(stream); },
               [&] { return cuda::normalize(step.plan, p, buffers, stream.handle()); },
               [&] { return event[1].record(stream); },
               [&] { return cuda::schedule(step.plan, buffers, stream.handle()); },
               [&] { return event[2].record(stream); },
               [&] { return cuda::run(step.plan, p, out, buffers, stream.handle(), counters); },
               [&] { return event[3].record(stream); },
               [&] { return cuda::poll(step.plan, buffers, stream.handle(), stats); },
               [&] { return stream.synchronize(); });
  if (!done.ok()) return done;
  std::array<double, 4> us{};  // the three stages, and all of it
  for (int i = 0; i < 4; ++i) {
    const Result<double> time = event[i < 3 ? i + 1 : 3].microseconds_since(event[i < 3 ? i : 0]);
    if (!time.ok()) return time.status();
    us[i] = *time;
  }
  return Times{.normalize = us[0], .plan = us[1], .attention = us[2], .total = us[3]};
}

Percentiles task_lengths(const std::vector<Task>& tasks) {
  if (tasks.empty()) return {};
  std::vector<int64_t> blocks;
  for (const Task& t : tasks) blocks.push_back(t.end - t.begin);
  std::sort(blocks.begin(), blocks.end());
  const auto rank = [&](size_t percent) { return blocks[(blocks.size() * percent + 99) / 100 - 1]; };
  return {rank(50), rank(95), blocks.back()};  // nearest rank
}

// The bundles of a step laid out as the rows of an index, so that sets are read off them as off any other.
struct FetchedIndex {
  std::vector<RowInfo> rows;
  std::vector<int64_t> begin;
  std::vector<int32_t> count, blocks;
  std::vector<uint64_t> members;

  IndexView view(int32_t block) const {
    return {.rows = static_cast<int64_t>(rows.size()),
            .entries = static_cast<int64_t>(blocks.size()),
            .block = block,
            .words = 1,
            .row = rows.data(),
            .begin = begin.data(),
            .count = count.data(),
            .blocks = blocks.data(),
            .members = members.data()};
  }
};

Status inconsistent(size_t bundle, const char* what) {
  return {Code::kDeviceError, fmt::format("index: bundle {} of the device {}", bundle, what)};
}

// Row (query block, index head) is list g % lists of bundle query block * bundles_a_block + g / lists.
Result<FetchedIndex> rows_of(const cuda::StepPlan& plan, const Problem& p, const cuda::FetchedStep& fetched) {
  FetchedIndex index;
  const int64_t heads = p.candidates.index_heads, lists = plan.lists;
  for (size_t n = 0; n < fetched.bundles.size(); ++n) {
    const cuda::FetchedBundle& b = fetched.bundles[n];
    if (b.request < 0) continue;  // capacity that this step does not use
    if (b.request >= p.cache.kv_len.shape[0]) return inconsistent(n, "names a request that is not there");
    // Where every token is a candidate no list is kept.
    std::vector<int32_t> every;
    if (plan.every_token) {
      const int64_t kv_len = p.cache.kv_len.at<int32_t>({b.request}), block = plan.plan.block;
      for (int64_t j = 0; j * block < kv_len; ++j) every.push_back(static_cast<int32_t>(j));
    } else if (b.members.size() != b.blocks.size() * lists) {
      return inconsistent(n, "has other member words than blocks");
    }
    const std::vector<int32_t>& blocks = plan.every_token ? every : b.blocks;
    for (int64_t l = 0; l < lists; ++l) {
      const int64_t head = static_cast<int64_t>(n) % plan.bundles_a_block * lists + l;
      if (head >= heads) return inconsistent(n, "has more lists than there are index heads");
      index.rows.push_back({.request = b.request,
                            .index_head = static_cast<int32_t>(head),
                            .first_query = b.first_query,
                            .last_query = b.last_query});
      index.begin.push_back(static_cast<int64_t>(index.blocks.size()));
      index.count.push_back(static_cast<int32_t>(blocks.size()));
      for (size_t j = 0; j < blocks.size(); ++j)
        index.members.push_back(plan.every_token ? ~uint64_t{0} : b.members[j * lists + l]);
      index.blocks.insert(index.blocks.end(), blocks.begin(), blocks.end());
    }
  }
  const int64_t expected = count_query_blocks(p) * heads;
  if (static_cast<int64_t>(index.rows.size()) != expected)
    return Status(Code::kDeviceError,
                  fmt::format("index: the device has {} rows, the case {}", index.rows.size(), expected));
  return index;
}

Status fetch_sets(const Step& step, const Problem& host, const DeviceStream& stream, Computed* c,
                  reference::Sets* sets) {
  const Result<cuda::FetchedStep> fetched = cuda::fetch(step.plan, step.buffers(), stream.handle());
  if (!fetched.ok()) return fetched.status();
  c->task_blocks = task_lengths(fetched->tasks);
  const Result<FetchedIndex> index = rows_of(step.plan, host, *fetched);
  if (!index.ok()) return index.status();
  *sets = expand_all(host, index->view(step.plan.plan.block), c->candidates);
  return {};
}

Status bring_back(const Shape& s, const Results& results, Computed* c) {
  cuda::StepCounters counters{};
  c->out.resize(s.total_q * s.q_heads * s.v_head_dim);
  c->lse.resize(s.total_q * s.q_heads);
  const Status done = in_order([&] { return results.out.download(c->out.data(), results.out.bytes()); },
                               [&] { return results.lse.download(c->lse.data(), results.lse.bytes()); },
                               [&] { return results.counters.download(&counters, sizeof counters); });
  if (!done.ok()) return done;
  c->empty_rows = count_empty_rows(c->lse, s);
  c->stale_rows = static_cast<int64_t>(counters.stale_rows);
  c->tiles = static_cast<int64_t>(counters.tiles);
  c->columns = static_cast<int64_t>(counters.tokens_loaded);
  return {};
}

// What `--ring auto` came to.
void describe_ring(const cuda::StepPlan& plan, const CudaDevice& device, Computed* c) {
  const cuda::Ring ring = cuda::ring_on(plan, device);
  c->ring = cuda::ring_name(ring);
  if (plan.ring == cuda::Ring::kAuto && ring == cuda::Ring::kShort)
    c->reason += fmt::format("{}ring short: {} has {} bytes of shared memory a CTA",
                             c->reason.empty() ? "" : "; ", device.name, device.shared_bytes);
}

void describe_step(const cuda::StepPlan& plan, const cuda::StepStats& stats, Computed* c) {
  c->candidates = {stats.raw, stats.padding, stats.invalid, stats.duplicates, stats.unique};
  c->path = path_name(plan.plan.path);
  c->kernel = plan.kernel;
  c->load = cuda::load_name(plan.load);
  c->block = plan.plan.block;
  c->splits = std::max<int64_t>(1, stats.most_parts);
  c->tasks = stats.tasks;
  c->workspace_bytes = plan.bytes.control + plan.bytes.index + plan.bytes.scratch;
}

}  // namespace

Result<Computed> compute_cuda(const Problem& p, const Shape& s, const RunOptions& options,
                              reference::Sets* sets) {
  if (Status status = check_arrays(p, s); !status.ok()) return status;
  if (Status status = check_values(p); !status.ok()) return status;
  Result<CudaPlan> plan = plan_cuda(p, options);
  if (!plan.ok()) return plan.status();
  const auto devices = cuda_devices();
  if (!devices.ok()) return devices.status();
  if (Status status = check_device(plan->step.kernel, devices->front()); !status.ok()) return status;

  const Result<DeviceStream> stream = DeviceStream::make();
  if (!stream.ok()) return stream.status();
  const Result<DeviceProblem> device = DeviceProblem::upload(p);
  if (!device.ok()) return device.status();
  Result<Step> step = make_step(plan->step, *stream);
  if (!step.ok()) return step.status();
  const Result<Results> results = make_results(s);
  if (!results.ok()) return results.status();
  Result<Events> events = Events::make(4);
  if (!events.ok()) return events.status();

  Computed c{.reason = plan->reason};
  if (options.load == "auto")
    if (Status status = settle_load(p, *device, options, *stream, &*step, &c.reason); !status.ok())
      return status;
  // The first step loads the kernels into the device: it is counted, the others are timed.
  cuda::StepStats stats;
  std::vector<Times> times;
  for (int i = 0; i <= options.repeat; ++i) {
    auto* counters = static_cast<cuda::StepCounters*>(i == 0 ? results->counters.data() : nullptr);
    const Result<Times> time =
        timed_step(*step, *device, results->view, *stream, &events->at, &stats, counters);
    if (!time.ok()) return time.status();
    if (i > 0) times.push_back(*time);
  }
  c.time = medians(times);
  describe_step(step->plan, stats, &c);
  describe_ring(step->plan, devices->front(), &c);
  if (Status status = bring_back(s, *results, &c); !status.ok()) return status;
  if (sets != nullptr)
    if (Status status = fetch_sets(*step, p, *stream, &c, sets); !status.ok()) return status;
  return c;
}

}  // namespace tamis::cli
