#include "device_prefill_sets.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/checks.h"

namespace tamis::bench {
namespace {

constexpr int64_t kRow = 2 * PrefillWork::kDim;  // bytes of a token of one head
constexpr size_t kQ = 0, kK = 1, kV = 2, kOut = 3;

std::vector<int32_t> one_request(int64_t n) { return {0, static_cast<int32_t>(n)}; }

bool is_nan(uint16_t bf16) { return (bf16 & 0x7FFF) > 0x7F80; }

}  // namespace

cuda::StepOptions prefill_options(const PrefillWork& w) {
  cuda::StepOptions options{.engine = cuda::Engine::kPrefill, .pairs = w.pairs};
  if (w.masked) {
    options.block = static_cast<int32_t>(std::min<int64_t>(w.block, 64));
    options.load = cuda::Load::kBlocks;
  }
  return options;
}

PrefillArrays::PrefillArrays(const PrefillWork& work, const PrefillLists& lists)
    : work_(work),
      lists_(lists),
      cu_q_(one_request(work.queries)),
      cu_kv_(one_request(work.kv_len)),
      length_{static_cast<int32_t>(work.kv_len)} {
  if (work.page > 0) table_ = Random(work.seed + 1).sample(work.kv_len / work.page, work.kv_len / work.page);
  if (work.listing == Listing::kAll) return;
  for (int64_t r = 0; r < work.rows(); ++r) {
    const std::vector<int32_t> row = lists.row(r);
    indices_.insert(indices_.end(), row.begin(), row.end());
    indptr_.push_back(static_cast<int32_t>(indices_.size()));
  }
}

Problem PrefillArrays::problem(const void* q, const void* k, const void* v) const {
  Problem p;
  p.query = {.q = dense_view(q, DType::kBF16, {work_.queries, work_.q_heads, PrefillWork::kDim}),
             .cu_q = dense_view(cu_q_.data(), DType::kI32, {2})};
  p.cache = {.k = cache_view(k),
             .v = cache_view(v),
             .layout = work_.layout,
             .kv_len = dense_view(length_.data(), DType::kI32, {1})};
  if (work_.page > 0)
    p.cache.page_table = dense_view(table_.data(), DType::kI32, {1, static_cast<int64_t>(table_.size())});
  else
    p.cache.cu_kv = dense_view(cu_kv_.data(), DType::kI32, {2});
  p.mask.causal = work_.causal;
  if (work_.listing == Listing::kAll) {
    p.candidates = CandidateView::all();
    p.candidates.query_block = work_.query_block;
    return p;
  }
  p.candidates = {.form = CandidateForm::kFixedWidth,
                  .indices = dense_view(lists_.indices.data(), DType::kI32, {work_.rows(), lists_.width}),
                  .unit = work_.unit(),
                  .query_block = work_.query_block,
                  .index_heads = work_.kv_heads};
  if (!lists_.count.empty())
    p.candidates.count = dense_view(lists_.count.data(), DType::kI32, {work_.rows()});
  return p;
}

Problem PrefillArrays::judged_problem(const void* q, const void* k, const void* v) const {
  Problem p = problem(q, k, v);
  if (work_.listing == Listing::kAll) return p;
  CandidateView& c = p.candidates;
  c.form = CandidateForm::kCsr;
  c.count = {};
  c.indptr = dense_view(indptr_.data(), DType::kI32, {static_cast<int64_t>(indptr_.size())});
  c.indices = dense_view(indices_.data(), DType::kI32, {static_cast<int64_t>(indices_.size())});
  return p;
}

TensorView PrefillArrays::cache_view(const void* data) const {
  const int64_t n = work_.kv_len, h = work_.kv_heads, p = work_.page, dim = PrefillWork::kDim;
  const bool nhd = work_.layout == Layout::kNHD;
  if (p == 0)
    return nhd ? dense_view(data, DType::kBF16, {n, h, dim}) : dense_view(data, DType::kBF16, {h, n, dim});
  return nhd ? dense_view(data, DType::kBF16, {n / p, p, h, dim})
             : dense_view(data, DType::kBF16, {n / p, h, p, dim});
}

Result<std::unique_ptr<PrefillSet>> PrefillSet::make(DeviceLab& lab, const PrefillWork& work,
                                                     const std::string& trace) {
  std::unique_ptr<PrefillSet> made(new PrefillSet(work));
  Result<PrefillLists> lists = draw_lists(work, trace);
  if (!lists.ok()) return lists.status();
  made->lists_ = std::move(*lists);
  made->counted_ = count_selected(work, made->lists_);
  if (Status s = made->build(lab); !s.ok()) return s;
  return made;
}

Status PrefillSet::build(DeviceLab& lab) {
  host_.emplace(work_, lists_);
  Problem host = host_->problem(nullptr, nullptr, nullptr);
  host.query.q = host.cache.k = host.cache.v = {};  // made on the device
  Result<DeviceProblem> arrays = DeviceProblem::upload(host);
  if (!arrays.ok()) return arrays.status();
  arrays_ = std::move(*arrays);
  TAMIS_RETURN_IF_ERROR(add_values(lab));
  Result<cuda::StepPlan> plan = cuda::plan_step(problem_, prefill_options(work_));
  if (!plan.ok()) return plan.status();
  plan_ = std::move(*plan);
  return {};
}

Result<void*> PrefillSet::room(int64_t bytes) {
  Result<DeviceBuffer> buffer = DeviceBuffer::make(bytes);
  if (!buffer.ok()) return buffer.status();
  buffers_.push_back(std::move(*buffer));
  return buffers_.back().data();
}

Status PrefillSet::add_values(DeviceLab& lab) {
  const int64_t q = work_.queries * work_.q_heads, kv = work_.kv_len * work_.kv_heads;
  for (const int64_t bytes : {q * kRow, kv * kRow, kv * kRow, q * kRow, q * 4}) {
    const Result<void*> made = room(bytes);
    if (!made.ok()) return made.status();
  }
  for (const size_t i : {kQ, kK, kV})
    TAMIS_RETURN_IF_ERROR(fill_bf16(&buffers_[i], work_.seed + 1000 + i, lab.stream));
  const int64_t dim = PrefillWork::kDim;
  const Problem views = host_->problem(buffers_[kQ].data(), buffers_[kK].data(), buffers_[kV].data());
  problem_ = arrays_->problem();
  problem_.query.q = views.query.q, problem_.cache.k = views.cache.k, problem_.cache.v = views.cache.v;
  out_.out = mutable_view(buffers_[kOut].data(), DType::kBF16, {work_.queries, work_.q_heads, dim});
  out_.lse = mutable_view(buffers_[kOut + 1].data(), DType::kF32, {work_.queries, work_.q_heads});
  return {};
}

Status PrefillSet::poison() { return buffers_[kOut].fill(0xFF); }

Status PrefillSet::bring(size_t buffer, std::vector<uint16_t>* to) {
  if (!to->empty()) return {};
  to->resize(static_cast<size_t>(buffers_[buffer].bytes() / 2));
  return buffers_[buffer].download(to->data(), buffers_[buffer].bytes());
}

Result<Judged> PrefillSet::judge_result() {
  std::vector<uint16_t> result;
  for (const auto& [buffer, to] : {std::pair{kQ, &host_q_}, {kK, &host_k_}, {kV, &host_v_}, {kOut, &result}})
    if (Status s = bring(buffer, to); !s.ok()) return s;
  Result<Judged> judged =
      judge(host_->judged_problem(host_q_.data(), host_k_.data(), host_v_.data()),
            mutable_view(result.data(), DType::kBF16, {work_.queries, work_.q_heads, PrefillWork::kDim}),
            judged_queries(work_, counted_));
  if (judged.ok() && std::any_of(result.begin(), result.end(), is_nan))
    judged->max_error = std::numeric_limits<double>::infinity();
  return judged;
}

std::vector<int64_t> judged_queries(const PrefillWork& work, const PrefillCount& counted) {
  const int64_t of_a_query = counted.pairs / std::max<int64_t>(1, work.queries * work.kv_heads);
  const int64_t most = std::clamp<int64_t>(1 + 16384 / std::max<int64_t>(1, of_a_query), 1, 8);
  std::vector<int64_t> found{work.queries - 1, 0, std::min<int64_t>(127, work.queries - 1),
                             std::min<int64_t>(128, work.queries - 1)};
  Random random(work.seed + 2);
  while (static_cast<int64_t>(found.size()) < most) found.push_back(random.below(work.queries));
  found.resize(static_cast<size_t>(most));
  return found;
}

}  // namespace tamis::bench
