#include "problem64k.h"

#include <algorithm>
#include <optional>
#include <set>

#include "keep.h"
#include "names.h"
#include "tamis/explain.h"

namespace tamis::bench {
namespace {

using H = Heads64k;

// K and V of decode turns: pages [turn * requests * pages of a request, ...) belong to one turn.
class DecodeMaker {
 public:
  DecodeMaker(const Decode& d, Context& context)
      : d_(d), context_(context), random_(d.seed), keep_(std::make_shared<Keep>()) {}

  Result<Work> make() {
    if (d_.spread == Spread::kHot)
      return Status(Code::kUnsupported, "distribution: hot lists are the device's");
    if (d_.spread == Spread::kRecorded) {
      Result<Trace> trace = Trace::read(d_.trace, d_.scale);
      if (!trace.ok()) return trace.status();
      trace_ = std::move(*trace);
    }
    const int64_t rows = d_.requests * H::kKv;
    const int64_t turn_bytes =
        rows * (d_.scale.listed() + Scale::kInWindow) * Scale::kPage * 2 * H::kDim * dtype_bytes(d_.dtype);
    turns_ = d_.turns > 0 ? d_.turns : enough_turns(turn_bytes);
    if (Status s = make_pool(); !s.ok()) return s;
    for (int64_t t = 0; t < turns_; ++t)
      if (Status s = add_turn(t); !s.ok()) return s;
    return describe_work();
  }

 private:
  int64_t turn_pages() const { return d_.requests * d_.scale.pages(); }

  Status make_pool() {
    const int64_t pages = turns_ * turn_pages();
    for (TensorView* t : {&k_, &v_}) {
      const uint64_t seed = random_.next();
      Result<TensorView> made =
          d_.layout == Layout::kNHD
              ? keep_->random(d_.dtype, {pages, Scale::kPage, H::kKv, H::kDim}, seed, context_)
              : keep_->random(d_.dtype, {pages, H::kKv, Scale::kPage, H::kDim}, seed, context_);
      if (!made.ok()) return made.status();
      *t = *made;
    }
    std::vector<int32_t> cu_q(d_.requests + 1), lengths(d_.requests, static_cast<int32_t>(d_.scale.kv_len()));
    for (int64_t b = 0; b <= d_.requests; ++b) cu_q[b] = static_cast<int32_t>(b);
    cu_q_ = keep_->ints(std::move(cu_q));
    kv_len_ = keep_->ints(std::move(lengths));
    return {};
  }

  std::vector<int32_t> pages_of(int64_t turn, int64_t request, int64_t head) {
    if (d_.spread == Spread::kUniform) return uniform_pages(random_, d_.scale);
    if (d_.spread == Spread::kClustered) return clustered_pages(random_, d_.scale);
    return trace_->pages(head, turn + request * turns_);
  }

  Status add_turn(int64_t turn) {
    std::vector<int32_t> table = random_.sample(turn_pages(), turn_pages());
    for (int32_t& page : table) page += static_cast<int32_t>(turn * turn_pages());
    std::vector<int32_t> indptr{0}, indices;
    Pieces pieces = shape_of_pieces();
    for (int64_t b = 0; b < d_.requests; ++b)
      for (int64_t h = 0; h < H::kKv; ++h) {
        const std::vector<int32_t> pages = pages_of(turn, b, h);
        indices.insert(indices.end(), pages.begin(), pages.end());
        indptr.push_back(static_cast<int32_t>(indices.size()));
        add_pieces(pages, &table[b * d_.scale.pages()], h, &pieces);
      }
    Result<TensorView> q =
        keep_->random(d_.dtype, {d_.requests, H::kQuery, H::kDim}, random_.next(), context_);
    if (!q.ok()) return q.status();
    Problem p;
    p.query = {.q = *q, .cu_q = cu_q_};
    p.cache = {.k = k_,
               .v = v_,
               .layout = d_.layout,
               .kv_len = kv_len_,
               .page_table = keep_->ints(std::move(table), {d_.requests, d_.scale.pages()})};
    p.candidates = {.form = CandidateForm::kCsr,
                    .indptr = keep_->ints(std::move(indptr)),
                    .indices = keep_->ints(std::move(indices)),
                    .unit = Scale::kPage,
                    .index_heads = H::kKv};
    p.mask.window = Scale::kWindow;
    work_.turns.push_back(p);
    work_.reads.push_back(std::move(pieces));
    return {};
  }

  Pieces shape_of_pieces() const {
    const int64_t row = H::kDim * dtype_bytes(d_.dtype);
    Pieces pieces;
    if (d_.layout == Layout::kHND) {
      pieces.rows = 1, pieces.row_bytes = Scale::kPage * row, pieces.row_stride = 0;
    } else {
      pieces.rows = Scale::kPage, pieces.row_bytes = row, pieces.row_stride = H::kKv * row;
    }
    return pieces;
  }

  // K and V of the listed pages and of the window, in ascending logical order.
  void add_pieces(const std::vector<int32_t>& listed, const int32_t* table, int64_t head,
                  Pieces* pieces) const {
    std::set<int32_t> pages(listed.begin(), listed.end());
    for (int64_t p = d_.scale.pages() - Scale::kWindow / Scale::kPage; p < d_.scale.pages(); ++p)
      pages.insert(static_cast<int32_t>(p));
    const KvStrides stride = kv_strides(k_, d_.layout);
    for (const int32_t page : pages)
      for (const TensorView* t : {&k_, &v_})
        pieces->at.push_back(static_cast<const std::byte*>(t->data) +
                             (table[page] * stride.page + head * stride.head) * dtype_bytes(d_.dtype));
  }

  Result<Work> describe_work() {
    const Result<Accounting> account = explain(work_.turns[0], AccountingOptions{});
    if (!account.ok()) return account.status();
    work_.bytes = account->bytes.logical;
    work_.flops = account->flops_logical;
    work_.description = {{"requests", d_.requests},
                         {"q_heads", H::kQuery},
                         {"kv_heads", H::kKv},
                         {"head_dim", H::kDim},
                         {"kv_len", d_.scale.kv_len()},
                         {"page_size", Scale::kPage},
                         {"window", Scale::kWindow},
                         {"listed_per_head", d_.scale.listed()},
                         {"distribution", spread_name(d_.spread)},
                         {"dtype", short_name(d_.dtype)},
                         {"layout", layout_name(d_.layout)},
                         {"turns", turns_},
                         {"working_set_bytes", turns_ * work_.bytes}};
    // Of a batch the first and the last request are judged.
    work_.judged = d_.requests == 1 ? std::vector<int64_t>{0} : std::vector<int64_t>{0, d_.requests - 1};
    work_.storage = keep_;
    return std::move(work_);
  }

  const Decode d_;
  Context& context_;
  Random random_;
  std::shared_ptr<Keep> keep_;
  std::optional<Trace> trace_;
  int64_t turns_ = 0;
  TensorView k_, v_, cu_q_, kv_len_;
  Work work_;
};

}  // namespace

int64_t enough_turns(int64_t bytes_of_a_turn) { return 5 * last_level_cache() / bytes_of_a_turn + 1; }

Result<Work> decode_work(const Decode& decode, Context& context) {
  return DecodeMaker(decode, context).make();
}

Result<Work> dense_work(const Dense& dense, Context& context) {
  auto keep = std::make_shared<Keep>();
  Random random(dense.seed);
  const int64_t n = dense.kv_len, row = H::kDim * dtype_bytes(dense.dtype);
  Work work;
  work.description = {{"requests", 1},
                      {"q_heads", H::kQuery},
                      {"kv_heads", H::kKv},
                      {"head_dim", H::kDim},
                      {"kv_len", n},
                      {"distribution", "all"},
                      {"dtype", short_name(dense.dtype)},
                      {"layout", layout_name(Layout::kHND)}};
  work.bytes = 2 * H::kKv * n * row;
  work.flops = 4 * H::kQuery * n * H::kDim;
  work.judged = {0};
  work.storage = keep;
  const int64_t turns = enough_turns(work.bytes);
  work.description["turns"] = turns;
  work.description["working_set_bytes"] = turns * work.bytes;
  const TensorView cu_q = keep->ints({0, 1}), bounds = keep->ints({0, static_cast<int32_t>(n)});
  for (int64_t t = 0; t < turns; ++t) {
    const Result<TensorView> q = keep->random(dense.dtype, {1, H::kQuery, H::kDim}, random.next(), context),
                             k = keep->random(dense.dtype, {H::kKv, n, H::kDim}, random.next(), context),
                             v = keep->random(dense.dtype, {H::kKv, n, H::kDim}, random.next(), context);
    for (const Result<TensorView>* made : {&q, &k, &v})
      if (!made->ok()) return made->status();
    Problem p;
    p.query = {.q = *q, .cu_q = cu_q};
    p.cache = {.k = *k,
               .v = *v,
               .layout = Layout::kHND,
               .kv_len = keep->ints({static_cast<int32_t>(n)}),
               .cu_kv = bounds};
    p.candidates = CandidateView::all();
    work.turns.push_back(p);
    // Pieces of 64 tokens, the K and the V of each after the other, as a kernel reads them.
    Pieces pieces{.at = {}, .rows = 1, .row_bytes = 64 * row, .row_stride = 0};
    for (int64_t token = 0; token < H::kKv * n; token += 64)
      for (const TensorView* side : {&*k, &*v})
        pieces.at.push_back(static_cast<const std::byte*>(side->data) + token * row);
    work.reads.push_back(std::move(pieces));
  }
  return work;
}

}  // namespace tamis::bench
