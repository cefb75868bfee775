// What a step left on the device, brought to the host: the only functions that wait.
#include <cuda_runtime_api.h>

#include <algorithm>

#include "attention/step_args.h"
#include "core/checks.h"
#include "core/launch.h"

namespace tamis::cuda {
namespace {

Status check_not_capturing(const char* call, cudaStream_t stream) {
  cudaStreamCaptureStatus state = cudaStreamCaptureStatusNone;
  const cudaError_t code = cudaStreamIsCapturing(stream, &state);
  // Of the default stream, which would wait for the one that is captured.
  if (code == cudaErrorStreamCaptureImplicit) {
    cudaGetLastError();
    return {Code::kNotCapturable,
            text(call, ": waits for the default stream, and another one is being captured")};
  }
  TAMIS_RETURN_IF_ERROR(device::cuda_status(code, call));
  if (state == cudaStreamCaptureStatusNone) return {};
  return {Code::kNotCapturable, text(call, ": waits for the device, the stream is being captured")};
}

template <class T>
Status download(std::vector<T>* to, const T* from, int64_t count, cudaStream_t stream) {
  to->resize(static_cast<size_t>(count));
  if (count == 0) return {};
  TAMIS_RETURN_IF_ERROR(device::cuda_status(
      cudaMemcpyAsync(to->data(), from, sizeof(T) * to->size(), cudaMemcpyDeviceToHost, stream), "fetch"));
  return device::cuda_status(cudaStreamSynchronize(stream), "fetch");
}

std::string describe_offence(const StepPlan& plan, const index::OffenceRecord& r) {
  switch (static_cast<Code>(r.code)) {
    case Code::kIndexOutOfRange:
      return text("cand_indices: row ", r.row, " of request ", r.request, " holds ", r.value,
                  ", outside its tokens");
    case Code::kDuplicateIndex:
      return text("cand_indices: row ", r.row, " of request ", r.request, " holds ", r.value, " twice");
    case Code::kPageUnmapped:
      return text("page_table: page ", r.page, " of request ", r.request, " is touched but unmapped");
    case Code::kPageOutOfRange:
      return text("page_table: page ", r.page, " of request ", r.request, " is ", r.value,
                  ", no page of the cache");
    case Code::kForeignPage:
      return text("table_stamps: page ", r.page, " of request ", r.request,
                  " was mapped with another stamp than "
                  "physical page ",
                  r.value, " has now");
    case Code::kStalePlan:
      return "plan: the index set or the scratch is not the one that was scheduled last";
    case Code::kCapacityExceeded:
      if (r.row >= 0 && plan.places.an_entry > 0)
        return text("unit, window or sink: the bundle of row ", r.row, " needs ", r.value,
                    " blocks, more than those of the plan's problem bring");
      if (r.row >= 0)
        return text("row_entries: the bundle of row ", r.row, " needs ", r.value, " blocks, the plan holds ",
                    plan.plan.capacities.row_entries);
      if (r.request >= 0)
        return text("kv_len: ", r.value, " of request ", r.request, ", the plan holds ", plan.max_kv_len);
      return text("tasks: ", r.value, " are needed, more than the plan holds");
    default:
      break;
  }
  if (r.row >= 0 && r.request < 0) return text("cu_q: its queries need ", r.value, " candidate rows");
  if (r.row >= 0) return text("cand_count or cand_indptr: ", r.value, " of row ", r.row);
  return text("cu_q, kv_len or cu_kv: ", r.value, " of request ", r.request);
}

Status status_of(const StepPlan& plan, const index::OffenceRecord& r) {
  if (r.code == 0) return {};
  Where where;
  if (r.request >= 0) where.request = r.request;
  if (r.row >= 0) where.row = r.row;
  if (r.page >= 0) where.page = r.page;
  if (static_cast<Code>(r.code) != Code::kStalePlan) where.value = r.value;
  if (static_cast<Code>(r.code) == Code::kCapacityExceeded) {
    if (r.row >= 0 && plan.places.an_entry == 0) where.limit = plan.plan.capacities.row_entries + 1;
    if (r.row < 0 && r.request >= 0) where.limit = plan.max_kv_len + 1;
  }
  return {static_cast<Code>(r.code), describe_offence(plan, r), where};
}

// The sums over all bundles, which no kernel needs.
Status add_counts(const StepPlan& plan, const StepBuffers& buffers, cudaStream_t stream, StepStats* stats) {
  const index::DeviceIndex index = index_of(plan, buffers);
  std::vector<index::DeviceBundle> bundle;
  std::vector<index::DeviceCounts> counts;
  std::vector<int32_t> blocks;
  TAMIS_RETURN_IF_ERROR(download(&bundle, index.bundle, plan.bundles, stream));
  TAMIS_RETURN_IF_ERROR(download(&counts, index.counts, plan.bundles, stream));
  TAMIS_RETURN_IF_ERROR(download(&blocks, index.count, plan.bundles, stream));
  for (size_t b = 0; b < bundle.size(); ++b) {
    const index::DeviceCounts& c = counts[b];
    stats->raw += c.raw;
    stats->padding += c.padding;
    stats->invalid += c.invalid;
    stats->duplicates += c.duplicates;
    stats->unique += c.unique;
    stats->future += c.future;
    stats->gaps += c.gaps;
    stats->touched_pages += c.touched;
    stats->selected += c.selected;
    stats->blocks += std::max(blocks[b], 0);
    stats->bundles += bundle[b].request >= 0;
    stats->empty_bundles += bundle[b].request >= 0 && blocks[b] == 0;
  }
  return {};
}

}  // namespace

Status poll(const StepPlan& plan, const StepBuffers& buffers, Stream stream, StepStats* stats) {
  const cudaStream_t s = static_cast<cudaStream_t>(stream);
  TAMIS_RETURN_IF_ERROR(check_buffers(plan, buffers));
  TAMIS_RETURN_IF_ERROR(check_not_capturing("poll", s));
  std::vector<DeviceControl> read;
  TAMIS_RETURN_IF_ERROR(download(&read, static_cast<const DeviceControl*>(buffers.control), 1, s));
  const DeviceControl& c = read[0];
  if (stats != nullptr) {
    *stats = {.tasks = c.tasks, .parts = c.parts, .most_parts = c.most_parts, .epoch = c.epoch};
    if (c.epoch != 0) TAMIS_RETURN_IF_ERROR(guarded([&] { return add_counts(plan, buffers, s, stats); }));
  }
  return status_of(plan, c.verdict);
}

namespace {

// What fetch() answers for buffers that hold no step of this plan and control, and for numbers that no step
// leaves: nothing is read by those.
Status no_step(const char* what) { return {Code::kStalePlan, text("plan: ", what)}; }

// The heads of the buffers against those that schedule() leaves.
Status check_heads(const StepPlan& plan, const StepBuffers& buffers, const DeviceControl& control,
                   const index::IndexHead& index, const ScratchHead& scratch) {
  const uint64_t stamp = stamp_of(static_cast<const DeviceControl*>(buffers.control), control.epoch);
  if (control.epoch == 0) return no_step("no step was scheduled with this control buffer");
  if (index.stamp != stamp || index.mark.plan != index_mark_of(plan))
    return no_step("the index set is not the one that was scheduled last");
  if (scratch.stamp != stamp || scratch.plan != mark_of(plan))
    return no_step("the scratch is not the one that was scheduled last");
  if (scratch.tasks < 0 || scratch.tasks > plan.tasks) return no_step("the scratch was overwritten");
  return {};
}

// Entries of one bundle, from the arrays as they lie on the device.
struct Arrays {
  std::vector<index::DeviceBundle> bundle;
  std::vector<int32_t> count, blocks;
  std::vector<uint32_t> places;
  std::vector<uint64_t> members;
};

// Whether the entries of a bundle are among those that were read.
bool lies_inside(const StepPlan& plan, const Arrays& arrays, int64_t b) {
  const int64_t begin = arrays.bundle[b].begin, count = arrays.count[b];
  if (count < -1) return false;
  if (plan.every_token) return count <= plan.plan.capacities.row_entries;
  const auto entries = static_cast<int64_t>(arrays.blocks.size());
  return count <= 0 || (begin >= 0 && begin <= entries && count <= entries - begin);
}

FetchedBundle bundle_of(const StepPlan& plan, const Arrays& arrays, int64_t b) {
  const index::DeviceBundle& d = arrays.bundle[b];
  FetchedBundle out{.request = d.request, .first_query = d.first_query, .last_query = d.last_query};
  for (int32_t j = 0; j < arrays.count[b]; ++j) {
    if (plan.every_token) {
      out.blocks.push_back(j);
      out.slots.push_back(-1);
      out.members.push_back(~uint64_t{0});
      continue;
    }
    out.blocks.push_back(arrays.blocks[d.begin + j]);
    const uint32_t place = arrays.places[d.begin + j];
    out.slots.push_back(place == index::kUntouched ? -1 : int64_t{place} * plan.plan.block + d.base_slot);
    for (int32_t l = 0; l < plan.lists; ++l)
      out.members.push_back(arrays.members[(d.begin + j) * plan.lists + l]);
  }
  return out;
}

void add_tasks(const std::vector<DeviceTask>& tasks, FetchedStep* out) {
  for (const DeviceTask& t : tasks) {
    out->tasks.push_back({t.bundle, t.kv_head, t.begin, t.end, t.part});
    if (t.part >= 0 && t.part == t.first_part)
      out->merges.push_back({t.bundle, t.kv_head, t.first_part, t.parts});
  }
}

}  // namespace

Result<FetchedStep> fetch(const StepPlan& plan, const StepBuffers& buffers, Stream stream) {
  const cudaStream_t s = static_cast<cudaStream_t>(stream);
  TAMIS_RETURN_IF_ERROR(check_not_capturing("fetch", s));
  TAMIS_RETURN_IF_ERROR(poll(plan, buffers, stream));
  const int64_t entries = plan.every_token ? 0 : plan.plan.capacities.entries;
  const index::DeviceIndex index = index_of(plan, buffers);
  const DeviceScratch scratch = scratch_of(plan, buffers);
  return guarded([&]() -> Result<FetchedStep> {
    Arrays arrays;
    std::vector<DeviceControl> control;
    std::vector<index::IndexHead> index_head;
    std::vector<ScratchHead> head;
    std::vector<DeviceTask> tasks;
    TAMIS_RETURN_IF_ERROR(download(&control, static_cast<const DeviceControl*>(buffers.control), 1, s));
    TAMIS_RETURN_IF_ERROR(download(&index_head, index.head, 1, s));
    TAMIS_RETURN_IF_ERROR(download(&head, scratch.head, 1, s));
    TAMIS_RETURN_IF_ERROR(check_heads(plan, buffers, control[0], index_head[0], head[0]));
    TAMIS_RETURN_IF_ERROR(download(&arrays.bundle, index.bundle, plan.bundles, s));
    TAMIS_RETURN_IF_ERROR(download(&arrays.count, index.count, plan.bundles, s));
    TAMIS_RETURN_IF_ERROR(download(&arrays.blocks, index.blocks, entries, s));
    TAMIS_RETURN_IF_ERROR(download(&arrays.places, index.places, entries, s));
    TAMIS_RETURN_IF_ERROR(download(&arrays.members, index.members, entries * plan.lists, s));
    TAMIS_RETURN_IF_ERROR(download(&tasks, scratch.tasks, head[0].tasks, s));
    FetchedStep out;
    for (int64_t b = 0; b < plan.bundles; ++b) {
      if (!lies_inside(plan, arrays, b)) return no_step("the index set was overwritten");
      out.bundles.push_back(bundle_of(plan, arrays, b));
    }
    add_tasks(tasks, &out);
    return out;
  });
}

}  // namespace tamis::cuda
