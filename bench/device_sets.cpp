#include "device_sets.h"

#include <algorithm>
#include <utility>

#include "core/checks.h"
#include "problem64k.h"

namespace tamis::bench {
namespace {

using H = Heads64k;

constexpr int64_t kRow = 256;                             // bytes of a token of one head
constexpr int64_t kLeastPool = int64_t{8} << 30;          // lists of different turns hardly ever meet in it
constexpr int64_t kQueryBytes = H::kQuery * H::kDim * 2;  // of a request; results have as many

std::vector<int32_t> counted(int64_t n, int64_t step) {
  std::vector<int32_t> out(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<int32_t>(i * step);
  return out;
}

// Rows of one width, padded where they are shorter. The width is the work's, not the rows', so that all turns
// are one shape; `count` stays empty where every row of every turn fills it.
struct FixedWidth {
  std::vector<int32_t> indices, count;
  int64_t width = 0;

  FixedWidth(const StepWork& work, const std::vector<std::vector<int32_t>>& rows)
      : width((work.most_listed() + 3) / 4 * 4) {  // rows start on 16 bytes
    for (const auto& row : rows) {
      indices.insert(indices.end(), row.begin(), row.end());
      indices.resize(indices.size() + static_cast<size_t>(width) - row.size(), -1);
    }
    if (work.spread != Spread::kHot && work.listed == width) return;
    for (const auto& row : rows) count.push_back(static_cast<int32_t>(row.size()));
  }
};

}  // namespace

Result<StepMemory> StepMemory::make(const cuda::StepPlan& plan, const DeviceStream& stream) {
  StepMemory made;
  made.view.bytes = plan.bytes;
  for (const auto& [buffer, view, bytes] : {std::tuple{&made.control, &made.view.control, plan.bytes.control},
                                            {&made.index, &made.view.index, plan.bytes.index},
                                            {&made.scratch, &made.view.scratch, plan.bytes.scratch}}) {
    Result<DeviceBuffer> b = DeviceBuffer::make(std::max<int64_t>(bytes, 256));
    if (!b.ok()) return b.status();
    *buffer = std::move(*b);
    *view = buffer->data();
    if (Status s = buffer->fill(0xFF); !s.ok()) return s;
  }
  if (Status s = cuda::clear(plan, made.view, stream.handle()); !s.ok()) return s;
  return made;
}

Result<std::unique_ptr<StepSets>> StepSets::make(DeviceLab& lab, const StepWork& work,
                                                 const std::string& trace) {
  std::optional<Trace> recorded;
  if (work.spread == Spread::kRecorded) {
    Result<Trace> read = Trace::read(trace, Scale{});
    if (!read.ok()) return read.status();
    recorded = std::move(*read);
  }
  std::unique_ptr<StepSets> made(new StepSets(work));
  if (Status s = made->build(lab, recorded ? &*recorded : nullptr); !s.ok()) return s;
  return made;
}

Status StepSets::build(DeviceLab& lab, const Trace* trace) {
  TAMIS_RETURN_IF_ERROR(make_pool(lab));
  RowMaker maker(work_, trace);
  if (work_.index_only)
    for (int64_t p = 0; p < pool_pages_; ++p) stamps_.push_back(maker.random().next() | 1);
  for (int64_t t = 0; t < turn_count_; ++t) TAMIS_RETURN_IF_ERROR(add_turn(lab, &maker, t));
  Result<cuda::StepPlan> plan = cuda::plan_step(turns_[0].problem);
  if (!plan.ok()) return plan.status();
  plan_ = std::move(*plan);
  return {};
}

// As many turns as keep the L2 cold, and a pool that holds what they need.
Status StepSets::make_pool(DeviceLab& lab) {
  const int64_t rows = work_.requests * H::kKv;
  int64_t tokens = 0;  // of a head
  if (work_.dense) {
    turn_count_ = lab.turns(2 * rows * work_.kv_len * kRow, 1, 8);
    tokens = turn_count_ * work_.requests * work_.kv_len;
  } else if (work_.index_only) {
    turn_count_ = lab.turns(20 * rows * work_.listed + 12 * work_.requests * work_.pages(), 2, 64);
    pool_pages_ = std::max(work_.pages(), (int64_t{1} << 20) / work_.page);
    tokens = pool_pages_ * work_.page;
  } else {
    turn_count_ = lab.turns(2 * rows * work_.listed * work_.unit * kRow, 2, 256);
    pool_pages_ = std::max(work_.requests * work_.pages(), kLeastPool / (2 * H::kKv * kRow * work_.page));
    tokens = pool_pages_ * work_.page;
  }
  Result<DeviceBuffer> pool = DeviceBuffer::make(2 * tokens * H::kKv * kRow);
  if (!pool.ok()) return pool.status();
  pool_ = std::move(*pool);
  return fill_bf16(&pool_, work_.seed, lab.stream);
}

Result<void*> StepSets::room(int64_t bytes) {
  Result<DeviceBuffer> buffer = DeviceBuffer::make(bytes);
  if (!buffer.ok()) return buffer.status();
  buffers_.push_back(std::move(*buffer));
  return buffers_.back().data();
}

// Queries, results, and the views of K and V.
Status StepSets::add_values(DeviceLab& lab, StepTurn* turn) {
  const int64_t b = work_.requests, dim = H::kDim;
  const Result<void*> q = room(b * kQueryBytes), out = room(b * kQueryBytes), lse = room(b * H::kQuery * 4);
  for (const Result<void*>* made : {&q, &out, &lse})
    if (!made->ok()) return made->status();
  turn->query = buffers_.size() - 3, turn->result = buffers_.size() - 2;
  TAMIS_RETURN_IF_ERROR(fill_bf16(&buffers_[turn->query], work_.seed + 1000 + turns_.size(), lab.stream));
  turn->problem.query.q = dense_view(*q, DType::kBF16, {b, H::kQuery, dim});
  turn->out.out = mutable_view(*out, DType::kBF16, {b, H::kQuery, dim});
  turn->out.lse = mutable_view(*lse, DType::kF32, {b, H::kQuery});
  CacheView& c = turn->problem.cache;
  auto* at = static_cast<const std::byte*>(pool_.data()) + turn->first_row * kRow;
  for (auto& [view, from] : {std::pair{&c.k, at}, {&c.v, at + v_rows() * kRow}}) {
    if (work_.dense)
      *view = dense_view(from, DType::kBF16, {H::kKv, b * work_.kv_len, dim});
    else if (work_.layout == Layout::kNHD)
      *view = dense_view(from, DType::kBF16, {pool_pages_, work_.page, H::kKv, dim});
    else
      *view = dense_view(from, DType::kBF16, {pool_pages_, H::kKv, work_.page, dim});
  }
  return {};
}

Status StepSets::add_turn(DeviceLab& lab, RowMaker* maker, int64_t index) {
  const int64_t b = work_.requests;
  StepTurn turn;
  Problem host;
  const std::vector<int32_t> cu_q = counted(b + 1, 1), cu_kv = counted(b + 1, work_.kv_len),
                             lengths(static_cast<size_t>(b), static_cast<int32_t>(work_.kv_len));
  host.query.cu_q = dense_view(cu_q.data(), DType::kI32, {b + 1});
  host.cache.kv_len = dense_view(lengths.data(), DType::kI32, {b});
  host.cache.layout = work_.dense ? Layout::kHND : work_.layout;
  std::vector<uint64_t> table_stamps;
  std::vector<int32_t> at;
  std::optional<FixedWidth> lists;
  if (work_.dense) {
    host.candidates = CandidateView::all();
    host.cache.cu_kv = dense_view(cu_kv.data(), DType::kI32, {b + 1});
    turn.first_row = index * H::kKv * b * work_.kv_len;
    turn.selected = b * H::kKv * work_.kv_len;
  } else {
    TAMIS_RETURN_IF_ERROR(add_pieces_of(maker, index, &turn, &at));
    for (const std::vector<int32_t>& row : turn.rows)
      if (static_cast<int64_t>(row.size()) > work_.most_listed())
        return {Code::kInvalidArgument,
                text("trace: a row lists ", row.size(), " entries, the case ", work_.listed)};
    lists.emplace(work_, turn.rows);
    host.cache.page_table = dense_view(turn.table.data(), DType::kI32, {b, work_.pages()});
    host.candidates = {.form = CandidateForm::kFixedWidth,
                       .indices = dense_view(lists->indices.data(), DType::kI32, {b * H::kKv, lists->width}),
                       .unit = work_.unit,
                       .index_heads = H::kKv};
    if (!lists->count.empty())
      host.candidates.count = dense_view(lists->count.data(), DType::kI32, {b * H::kKv});
    host.mask.window = work_.window;
  }
  if (work_.index_only) {
    for (const int32_t page : turn.table) table_stamps.push_back(stamps_[page]);
    host.cache.page_stamps = dense_view(stamps_.data(), DType::kU64, {pool_pages_});
    host.cache.table_stamps = dense_view(table_stamps.data(), DType::kU64, {b, work_.pages()});
  }
  Result<DeviceProblem> arrays = DeviceProblem::upload(host);
  if (!arrays.ok()) return arrays.status();
  turn.problem = arrays->problem();
  arrays_.push_back(std::move(*arrays));
  TAMIS_RETURN_IF_ERROR(add_values(lab, &turn));
  if (!at.empty()) {
    const auto bytes = static_cast<int64_t>(at.size() * sizeof(int32_t));
    const Result<void*> places = room(bytes);
    if (!places.ok()) return places.status();
    TAMIS_RETURN_IF_ERROR(buffers_.back().upload(at.data(), bytes));
    turn.reads = {.base = pool_.data(),
                  .at = static_cast<const int32_t*>(*places),
                  .count = static_cast<int64_t>(at.size()),
                  .rows = work_.unit,
                  .row_stride = work_.layout == Layout::kNHD ? H::kKv * kRow : kRow};
  }
  turns_.push_back(std::move(turn));
  return {};
}

// Page table and rows of a turn, and where in the pool the rows lead.
Status StepSets::add_pieces_of(RowMaker* maker, int64_t index, StepTurn* turn,
                               std::vector<int32_t>* at) const {
  const int64_t b = work_.requests, pages = work_.pages();
  if (work_.index_only) {
    for (int64_t r = 0; r < b; ++r) {
      const std::vector<int32_t> own = maker->random().sample(pool_pages_, pages);
      turn->table.insert(turn->table.end(), own.begin(), own.end());
    }
  } else {
    turn->table = maker->random().sample(pool_pages_, b * pages);
  }
  for (int64_t r = 0; r < b; ++r) {
    std::vector<std::vector<int32_t>> rows = maker->rows(index, r);
    for (int64_t head = 0; head < H::kKv; ++head) {
      const std::vector<int32_t> entries = with_window(work_, rows[head]);
      turn->selected += static_cast<int64_t>(entries.size()) * work_.unit;
      if (!work_.index_only) add_pieces(work_, entries, &turn->table[r * pages], head, v_rows(), at);
      turn->rows.push_back(std::move(rows[head]));
    }
  }
  return {};
}

int64_t StepSets::bytes() const {
  int64_t selected = 0;
  for (const StepTurn& turn : turns_) selected += turn.selected;
  return selected / count() * 2 * kRow;
}

// Q K and P V for the query heads of each KV head.
int64_t StepSets::flops() const { return bytes() / (2 * kRow) * (H::kQuery / H::kKv) * 4 * H::kDim; }

Json StepSets::description() const {
  Json out = describe_step(work_);
  out["turns"] = count();
  out["working_set_bytes"] = count() * bytes();
  return out;
}

Status StepSets::poison(int64_t t) { return buffers_[turn(t).result].fill(0xFF); }

Status StepSets::download_query(int64_t t, int64_t request, void* to) const {
  return buffers_[turn(t).query].download(to, kQueryBytes, request * kQueryBytes);
}
Status StepSets::download_result(int64_t t, int64_t request, void* to) const {
  return buffers_[turn(t).result].download(to, kQueryBytes, request * kQueryBytes);
}
Status StepSets::download_rows(int64_t row, int64_t rows, void* to) const {
  return pool_.download(to, rows * kRow, row * kRow);
}

}  // namespace tamis::bench
