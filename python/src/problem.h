// A problem of the C interface with the Python arrays it is made of.
#pragma once

#include <nanobind/nanobind.h>
#include <tamis/tamis_c.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "array.h"

namespace tamis::python {

// An array with the object that keeps it alive; None where only the shape is of interest (q, k and v of a
// plan).
struct Held {
  nb::object object;
  Array array;
  bool join;
};

// The tensors of a problem: what docs/semantics.md section 11 calls them, and where they stand.
struct ProblemTensor {
  const char* name;
  const tamis_tensor** in_c;
};
inline constexpr int kProblemTensors = 18;
ProblemTensor problem_tensor(tamis_problem& problem, int which);

// Arrays are read in once, when they are set; copies of a problem share them. It has to stay where it is, for
// the C struct points into it.
class Problem {
 public:
  Problem();
  Problem(const Problem& other);
  Problem& operator=(const Problem&) = delete;

  // `name` is one of docs/semantics.md section 11. None takes the array away. `join` makes [B, S, ...] of a
  // dense batch into [B * S, ...]; `shape_only` forgets where the array lies in memory, and lets it go.
  void set(const std::string& name, nb::object array, bool join, bool shape_only);

  // The array that was set under a name, or None.
  nb::object get(const std::string& name) const;

  void set_index_only(int64_t q_heads, int64_t kv_heads, int64_t head_dim, int64_t v_head_dim,
                      int64_t page_size, int64_t num_pages, int32_t kv_bits);

  // A copy that has looked anew where the arrays lie: resize_ or set_ of torch may have moved them. Refuses
  // those that have changed their shape, dtype or device.
  Problem refreshed() const;

  // One place for all arrays, or a refusal that names the first two that differ. Host for a problem of none.
  Place place() const;

  const tamis_problem& c() const { return c_; }
  tamis_problem& c() { return c_; }
  tamis_shape shape() const;

  // Everything that plans are made from: extents, dtypes, presence, numbers. Equal for problems of one plan.
  nb::bytes key() const;

  bool join_q = false, join_kv = false;  // arrays of a dense batch are to be joined

 private:
  static constexpr int kTensors = kProblemTensors;
  ProblemTensor slot(int which) { return problem_tensor(c_, which); }
  static int find(const std::string& name);
  void point();  // the C struct at the tensors

  tamis_problem c_;
  tamis_index_only only_{};
  std::shared_ptr<Held> held_[kTensors];
  tamis_tensor tensors_[kTensors];
};

// Joins an array of a dense batch of the problem's requests with the axis of its rows.
void join(Array* array, const char* name, const tamis_problem& c);

// q, k, v, out and lse of one run, read in. Copies the problem's struct and points it at them.
class RunArrays {
 public:
  RunArrays(const Problem& problem, nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse);

  const tamis_problem* problem() const { return &c_; }
  const tamis_output* output() const { return &output_; }
  const Array& q() const { return q_; }

 private:
  Array q_, k_, v_, out_;
  std::optional<Array> lse_;
  tamis_problem c_;
  tamis_output output_{};
};

void register_problem(nb::module_& m);

}  // namespace tamis::python
