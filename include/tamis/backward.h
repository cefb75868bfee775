// Gradients of attention (docs/semantics.md section 7) from the index set and the LSE that the forward left.
//
// Nothing is selected again: the sets are those of `index`, whatever the candidates of the problem say by
// now. The gradients d_out (and d_lse) are the problem's. Tokens in no set get exactly 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "tamis/attention.h"
#include "tamis/bundle.h"
#include "tamis/index.h"
#include "tamis/problem.h"
#include "tamis/status.h"
#include "tamis/tensor.h"

namespace tamis {

// What the forward returned, unscaled and ungated. Without `out` the pass that it saves is made: dO . O is
// then summed edge by edge.
struct SavedForward {
  TensorView lse{};  // [total_q, Hq] f32
  TensorView out{};  // [total_q, Hq, Dv] f32, f16 or bf16; optional
};

// Where gradients go: f32, f16 or bf16, in any strides. Summed in f32. d_k and d_v have the shapes of k and
// v; those of int4 tensors have the full head size. All elements are written.
struct GradientView {
  MutableTensorView d_q{};  // [total_q, Hq, D]
  MutableTensorView d_k{}, d_v{};
};

struct BackwardOptions {
  BundleOptions bundle{};
  // Weights and score gradients of so many bytes are kept between the pass over queries and the pass over
  // keys. Bounds the workspace; another value gives another order of sums.
  int64_t slab_bytes = int64_t{16} << 20;
};

struct BackwardCounters {
  int64_t tasks = 0, slabs = 0, tiles = 0;
  int64_t runs = 0;    // of neighbouring slots, as the pass over keys meets them
  int64_t owners = 0;  // physical spans summed, over slabs and KV heads
  double clear_us = 0, query_us = 0, transpose_us = 0, key_us = 0;
};

// Tasks and slabs of one index set: made once, used for every layer that shares it.
class BackwardPlan {
 public:
  BackwardPlan();
  ~BackwardPlan();
  BackwardPlan(BackwardPlan&&) noexcept;
  BackwardPlan& operator=(BackwardPlan&&) noexcept;

  // Bytes run_backward needs for gradients as `gradients` has them.
  int64_t workspace_bytes(const GradientView& gradients) const;

  struct Storage;  // private to src/attention
  Storage& storage() { return *storage_; }
  const Storage& storage() const { return *storage_; }

 private:
  std::unique_ptr<Storage> storage_;
};

// `index` must be one that was normalized for this problem's sizes, lengths and positions (stale_plan), and
// must outlive the plan.
Result<BackwardPlan> plan_backward(const Problem& problem, const IndexSet& index,
                                   const BackwardOptions& options = {});

// dQ, dK and dV, bitwise equal for any number of threads. `workspace` starts on a multiple of 4 bytes, need
// not be initialized and is dead afterwards. Fails before anything is read or written: stale_plan for other
// sizes, lengths or positions; workspace_too_small with the bytes needed; invalid_argument without d_out.
// Only running out of memory for a thread's scratch (capacity_exceeded) shows later, and leaves gradients
// undefined.
Status run_backward(const BackwardPlan& plan, const Problem& problem, const SavedForward& saved,
                    const GradientView& gradients, std::span<std::byte> workspace, Context& context,
                    BackwardCounters* counters = nullptr);

struct BackwardReport {
  BackwardCounters counters;
  int64_t workspace_bytes = 0;
  double plan_us = 0, total_us = 0;
};

// Both, with memory of its own.
Status backward(const Problem& problem, const IndexSet& index, const SavedForward& saved,
                const BackwardOptions& options, const GradientView& gradients, Context& context,
                BackwardReport* report = nullptr);

}  // namespace tamis
