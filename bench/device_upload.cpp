// A problem's tensors, one by one, into device memory.
#include <string>

#include "device_problem.h"

namespace tamis::bench {
namespace {

// Bytes from a view's first element to the end of its last; 0 without elements.
Result<int64_t> bytes_spanned(const char* name, const TensorView& t) {
  if (t.elements() == 0) return int64_t{0};
  int64_t last = 0;
  for (int axis = 0; axis < t.rank; ++axis) {
    if (t.stride[axis] < 0 && t.shape[axis] > 1)
      return Status(Code::kUnsupported, std::string(name) + ": stride " + std::to_string(t.stride[axis]) +
                                            " of axis " + std::to_string(axis) +
                                            "; nearest: strides of 0 or more");
    last += (t.shape[axis] - 1) * t.stride[axis];
  }
  return (last + 1) * dtype_bytes(t.dtype);
}

// Turns a host view into a device view.
Status move_over(const char* name, TensorView* t, std::vector<DeviceBuffer>* buffers) {
  if (!t->present()) return {};
  const Result<int64_t> bytes = bytes_spanned(name, *t);
  if (!bytes.ok()) return bytes.status();
  if (*bytes == 0) {
    t->data = nullptr;
    return {};
  }
  if (t->data == nullptr) return {Code::kInvalidArgument, std::string(name) + ": has elements but no memory"};
  Result<DeviceBuffer> buffer = DeviceBuffer::make(*bytes);
  if (!buffer.ok()) return buffer.status();
  if (Status s = buffer->upload(t->data, *bytes); !s.ok()) return s;
  t->data = buffer->data();
  buffers->push_back(std::move(*buffer));
  return {};
}

}  // namespace

Result<DeviceProblem> DeviceProblem::upload(const Problem& host) {
  DeviceProblem made;
  made.problem_ = host;
  Problem& p = made.problem_;
  CacheView& c = p.cache;
  const std::pair<const char*, TensorView*> tensors[] = {{"q", &p.query.q},
                                                         {"cu_q", &p.query.cu_q},
                                                         {"q_pos", &p.query.q_pos},
                                                         {"k", &c.k},
                                                         {"v", &c.v},
                                                         {"kv_len", &c.kv_len},
                                                         {"page_table", &c.page_table},
                                                         {"cu_kv", &c.cu_kv},
                                                         {"page_stamps", &c.page_stamps},
                                                         {"table_stamps", &c.table_stamps},
                                                         {"k_scale", &c.k_quant.scale},
                                                         {"v_scale", &c.v_quant.scale},
                                                         {"cand_indptr", &p.candidates.indptr},
                                                         {"cand_indices", &p.candidates.indices},
                                                         {"cand_count", &p.candidates.count},
                                                         {"alibi_slopes", &p.score.alibi_slopes},
                                                         {"d_out", &p.gradients.d_out},
                                                         {"d_lse", &p.gradients.d_lse}};
  for (const auto& [name, tensor] : tensors)
    if (Status s = move_over(name, tensor, &made.buffers_); !s.ok()) return s;
  return made;
}

int64_t DeviceProblem::bytes() const {
  int64_t sum = 0;
  for (const DeviceBuffer& b : buffers_) sum += b.bytes();
  return sum;
}

}  // namespace tamis::bench
