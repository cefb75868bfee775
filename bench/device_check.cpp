#include "device_check.h"

#include <algorithm>
#include <set>

#include "core/checks.h"
#include "problem64k.h"

namespace tamis::bench {
namespace {

using H = Heads64k;

// One request as a problem on the host. The views point into it.
class HostRequest {
 public:
  HostRequest(const StepSets& sets, int64_t turn, int64_t request)
      : sets_(sets), work_(sets.work()), turn_(turn), request_(request) {}

  Status bring() {
    q_.resize(H::kQuery * H::kDim);
    TAMIS_RETURN_IF_ERROR(sets_.download_query(turn_, request_, q_.data()));
    problem.query = {.q = dense_view(q_.data(), DType::kBF16, {1, H::kQuery, H::kDim}),
                     .cu_q = dense_view(cu_q_.data(), DType::kI32, {2})};
    lengths_ = {static_cast<int32_t>(work_.kv_len)};
    problem.cache.kv_len = dense_view(lengths_.data(), DType::kI32, {1});
    TAMIS_RETURN_IF_ERROR(work_.dense ? bring_all() : bring_pages());
    return {};
  }

  Problem problem;

 private:
  // Rows of K, then of V, one after the other into k_ and v_.
  Status bring_rows(int64_t from, int64_t rows, int64_t to) {
    TAMIS_RETURN_IF_ERROR(sets_.download_rows(from, rows, &k_[to * H::kDim]));
    return sets_.download_rows(sets_.v_rows() + from, rows, &v_[to * H::kDim]);
  }

  void make_room(int64_t rows) {
    k_.resize(static_cast<size_t>(rows * H::kDim));
    v_.resize(static_cast<size_t>(rows * H::kDim));
  }

  Status bring_all() {
    const int64_t n = work_.kv_len, all = work_.requests * n, first = sets_.turn(turn_).first_row;
    make_room(H::kKv * n);
    for (int64_t head = 0; head < H::kKv; ++head)
      TAMIS_RETURN_IF_ERROR(bring_rows(first + head * all + request_ * n, n, head * n));
    bounds_ = {0, static_cast<int32_t>(n)};
    CacheView& c = problem.cache;
    c.layout = Layout::kHND;
    c.k = dense_view(k_.data(), DType::kBF16, {H::kKv, n, H::kDim});
    c.v = dense_view(v_.data(), DType::kBF16, {H::kKv, n, H::kDim});
    c.cu_kv = dense_view(bounds_.data(), DType::kI32, {2});
    problem.candidates = CandidateView::all();
    return {};
  }

  // Only touched pages are brought, one after the other; the table leads to them.
  Status bring_pages() {
    const StepTurn& turn = sets_.turn(turn_);
    std::set<int32_t> touched;
    for (int64_t head = 0; head < H::kKv; ++head) {
      const std::vector<int32_t>& row = turn.rows[request_ * H::kKv + head];
      indices_.insert(indices_.end(), row.begin(), row.end());
      indptr_.push_back(static_cast<int32_t>(indices_.size()));
      for (const int32_t e : with_window(work_, row))
        touched.insert(static_cast<int32_t>(e * work_.unit / work_.page));
    }
    const int64_t rows = work_.page * H::kKv, pages = static_cast<int64_t>(touched.size());
    make_room(pages * rows);
    table_.assign(static_cast<size_t>(work_.pages()), -1);
    int32_t next = 0;
    for (const int32_t page : touched) {
      const int64_t physical = turn.table[request_ * work_.pages() + page];
      TAMIS_RETURN_IF_ERROR(bring_rows(physical * rows, rows, next * rows));
      table_[page] = next++;
    }
    CacheView& c = problem.cache;
    c.layout = work_.layout;
    for (auto& [view, from] : {std::pair{&c.k, &k_}, {&c.v, &v_}})
      *view = work_.layout == Layout::kNHD
                  ? dense_view(from->data(), DType::kBF16, {pages, work_.page, H::kKv, H::kDim})
                  : dense_view(from->data(), DType::kBF16, {pages, H::kKv, work_.page, H::kDim});
    c.page_table = dense_view(table_.data(), DType::kI32, {1, work_.pages()});
    problem.candidates = {
        .form = CandidateForm::kCsr,
        .indptr = dense_view(indptr_.data(), DType::kI32, {H::kKv + 1}),
        .indices = dense_view(indices_.data(), DType::kI32, {static_cast<int64_t>(indices_.size())}),
        .unit = work_.unit,
        .index_heads = H::kKv};
    problem.mask.window = work_.window;
    return {};
  }

  const StepSets& sets_;
  const StepWork& work_;
  const int64_t turn_, request_;
  std::vector<uint16_t> q_, k_, v_;
  const std::vector<int32_t> cu_q_{0, 1};
  std::vector<int32_t> lengths_, bounds_, table_, indptr_{0}, indices_;
};

}  // namespace

std::vector<int32_t> tokens_of(const cuda::FetchedBundle& bundle, int32_t block) {
  std::vector<int32_t> tokens;
  for (size_t j = 0; j < bundle.blocks.size(); ++j)
    for (int32_t bit = 0; bit < block; ++bit)
      if (bundle.members[j] >> bit & 1) tokens.push_back(bundle.blocks[j] * block + bit);
  return tokens;
}

Result<Judged> judge_request(const StepSets& sets, int64_t turn, int64_t request) {
  HostRequest host(sets, turn, request);
  if (Status s = host.bring(); !s.ok()) return s;
  std::vector<uint16_t> out(H::kQuery * H::kDim);
  if (Status s = sets.download_result(turn, request, out.data()); !s.ok()) return s;
  return judge(host.problem, mutable_view(out.data(), DType::kBF16, {1, H::kQuery, H::kDim}), {0});
}

Result<JudgedSets> judge_sets(const StepSets& sets, int64_t turn, const StepMemory& memory,
                              const DeviceStream& stream) {
  const Result<cuda::FetchedStep> fetched = cuda::fetch(sets.plan(), memory.view, stream.handle());
  if (!fetched.ok()) return fetched.status();
  const StepWork& work = sets.work();
  const auto& rows = sets.turn(turn).rows;
  JudgedSets judged{.wrong = 0, .sets = static_cast<int64_t>(rows.size())};
  for (size_t r = 0; r < rows.size(); ++r) {
    std::vector<int32_t> want;
    for (const int32_t e : with_window(work, rows[r]))
      for (int64_t j = 0; j < work.unit; ++j) want.push_back(static_cast<int32_t>(e * work.unit + j));
    judged.wrong +=
        r >= fetched->bundles.size() || tokens_of(fetched->bundles[r], sets.plan().plan.block) != want;
  }
  return judged;
}

}  // namespace tamis::bench
