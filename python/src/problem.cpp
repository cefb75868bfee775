#include "problem.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>

#include "failure.h"

namespace tamis::python {

Problem::Problem() {
  tamis_problem_init(&c_);
  std::memset(tensors_, 0, sizeof tensors_);
}

Problem::Problem(const Problem& other)
    : join_q(other.join_q), join_kv(other.join_kv), c_(other.c_), only_(other.only_) {
  for (int i = 0; i < kTensors; ++i) {
    held_[i] = other.held_[i];
    tensors_[i] = other.tensors_[i];
  }
  point();
}

ProblemTensor problem_tensor(tamis_problem& c, int which) {
  const ProblemTensor all[kProblemTensors] = {{"q", &c.query.q},
                                              {"k", &c.cache.k},
                                              {"v", &c.cache.v},
                                              {"cu_q", &c.query.cu_q},
                                              {"q_pos", &c.query.q_pos},
                                              {"kv_len", &c.cache.kv_len},
                                              {"page_table", &c.cache.page_table},
                                              {"cu_kv", &c.cache.cu_kv},
                                              {"page_stamps", &c.cache.page_stamps},
                                              {"table_stamps", &c.cache.table_stamps},
                                              {"k_scale", &c.cache.k_quant.scale},
                                              {"v_scale", &c.cache.v_quant.scale},
                                              {"cand_indptr", &c.candidates.indptr},
                                              {"cand_indices", &c.candidates.indices},
                                              {"cand_count", &c.candidates.count},
                                              {"alibi_slopes", &c.score.alibi_slopes},
                                              {"d_out", &c.gradients.d_out},
                                              {"d_lse", &c.gradients.d_lse}};
  return all[which];
}

int Problem::find(const std::string& name) {
  tamis_problem any;
  for (int i = 0; i < kTensors; ++i)
    if (name == problem_tensor(any, i).name) return i;
  throw nb::key_error(name.c_str());
}

void Problem::point() {
  for (int i = 0; i < kTensors; ++i) *slot(i).in_c = held_[i] ? &tensors_[i] : nullptr;
  if (c_.index_only != nullptr) c_.index_only = &only_;
}

namespace {

// uint8 arrays hold the codes that the format names.
void read_codes(Array* array, const char* name, int32_t format) {
  if (array->tensor.dtype != TAMIS_U8) return;
  if (format == TAMIS_FORMAT_FP8_E4M3) array->read_as(TAMIS_F8_E4M3, name);
  if (format == TAMIS_FORMAT_FP8_E5M2) array->read_as(TAMIS_F8_E5M2, name);
}

// What frameworks make by themselves is of int64 or float64, and nothing is converted here: say how to.
void check_dtype(const Array& array, const std::string& name) {
  const int32_t dtype = array.tensor.dtype;
  if (name == "q" && dtype == TAMIS_F64)
    refuse_argument("q",
                    "dtype F64, expected F32, F16 or BF16; convert it (torch: .float(), NumPy: "
                    ".astype(np.float32)), and k and v with it");
  const bool list = name.rfind("cand_", 0) == 0;
  const bool lengths =
      name == "kv_len" || name == "cu_q" || name == "cu_kv" || name == "page_table" || name == "q_pos";
  if (!list && !(lengths && dtype == TAMIS_I64)) return;
  if (dtype == TAMIS_I32 || (name == "cand_indptr" && dtype == TAMIS_I64)) return;
  const char* argument = name == "cand_indices"  ? "indices"
                         : name == "cand_count"  ? "count"
                         : name == "cand_indptr" ? "indptr"
                                                 : name.c_str();
  refuse_argument(argument, "dtype ", dtype_name(dtype), ", expected I32",
                  name == "cand_indptr" ? " or I64" : "",
                  "; convert it once (torch: .int(), NumPy: .astype(np.int32))",
                  name == "cand_indices" && dtype == TAMIS_I64
                      ? ", or make the lists by tamis.Candidates.from_topk or from_csr, which take int64"
                      : "");
}

// Arrays may hold more entries than memory where they lie on one another, and reading them would not end.
void check_entries(const tamis_tensor& t) {
  double entries = 1, reach = 1;
  for (int axis = 0; axis < t.rank; ++axis) {
    entries *= static_cast<double>(t.shape[axis]);
    reach += static_cast<double>(t.shape[axis] - 1) * std::abs(static_cast<double>(t.stride[axis]));
  }
  if (entries > reach && entries > INT32_MAX)
    refuse_argument("indices", "more than ", INT32_MAX, " entries that lie on one another");
}

}  // namespace

void join(Array* array, const char* name, const tamis_problem& c) {
  const std::string side = std::strncmp(name, "d_", 2) == 0 ? name + 2 : name;
  const bool cache = side[0] == 'k' || side[0] == 'v';
  const int rank = side == "lse" || side == "k_scale" || side == "v_scale" ? 3 : 4;
  const tamis_tensor& t = array->tensor;
  if (t.rank != rank) refuse_argument(name, "rank ", t.rank, ", expected ", rank, " in a dense batch");
  if (c.query.cu_q != nullptr && t.shape[0] != c.query.cu_q->shape[0] - 1)
    refuse_argument(name, t.shape[0], " requests, the dense batch has ", c.query.cu_q->shape[0] - 1);
  if (!array->join_batch(cache && c.cache.layout == TAMIS_HND ? 2 : 1))
    refuse_argument(
        name,
        "a dense batch [B, S, ...] is taken as one run of B * S rows, and these strides are none: make it "
        "contiguous (torch: .contiguous(), NumPy: np.ascontiguousarray), or give cu_q and the rows yourself");
}

void Problem::set(const std::string& name, nb::object object, bool join_axes, bool shape_only) {
  const int i = find(name);
  const char* known = slot(i).name;
  if (object.is_none()) {
    held_[i].reset();
  } else {
    Array array(object, known);
    check_dtype(array, name);
    if (name == "cand_indices") check_entries(array.tensor);
    if (join_axes) join(&array, known, c_);
    if (name == "k") read_codes(&array, known, c_.cache.k_quant.format);
    if (name == "v") read_codes(&array, known, c_.cache.v_quant.format);
    tensors_[i] = array.tensor;
    if (shape_only) {
      array.let_go();
      tensors_[i].data = nullptr;
      object = nb::none();
    }
    held_[i] = std::make_shared<Held>(Held{std::move(object), std::move(array), join_axes});
  }
  point();
}

Problem Problem::refreshed() const {
  Problem p(*this);
  for (int i = 0; i < kTensors; ++i) {
    if (!held_[i] || held_[i]->object.is_none()) continue;
    const char* name = problem_tensor(p.c_, i).name;
    Array array(held_[i]->object, name);
    if (held_[i]->join) join(&array, name, p.c_);
    if (name == std::string("k")) read_codes(&array, name, c_.cache.k_quant.format);
    if (name == std::string("v")) read_codes(&array, name, c_.cache.v_quant.format);
    const tamis_tensor &now = array.tensor, &then = tensors_[i];
    bool same = now.rank == then.rank && now.dtype == then.dtype && array.place.agrees(held_[i]->array.place);
    for (int axis = 0; same && axis < then.rank; ++axis) same = now.shape[axis] == then.shape[axis];
    if (!same) refuse_argument(name, "has changed its shape, dtype or device since it was given");
    p.tensors_[i] = now;
    p.held_[i] = std::make_shared<Held>(Held{held_[i]->object, std::move(array), held_[i]->join});
  }
  return p;
}

nb::object Problem::get(const std::string& name) const {
  const int i = find(name);
  return held_[i] ? held_[i]->object : nb::none();
}

void Problem::set_index_only(int64_t q_heads, int64_t kv_heads, int64_t head_dim, int64_t v_head_dim,
                             int64_t page_size, int64_t num_pages, int32_t kv_bits) {
  only_ = {sizeof only_, q_heads, kv_heads, head_dim, v_head_dim, page_size, num_pages, kv_bits, 0};
  c_.index_only = &only_;
}

Place Problem::place() const {
  const Held* first = nullptr;
  const char* first_name = nullptr;
  for (int i = 0; i < kTensors; ++i) {
    if (!held_[i]) continue;
    const char* name = const_cast<Problem*>(this)->slot(i).name;
    const Place& here = held_[i]->array.place;
    if (first == nullptr || first->array.place.kind == Place::kManaged) {
      if (first == nullptr || here.device()) {
        first = held_[i].get();
        first_name = name;
        continue;
      }
    }
    if (!here.agrees(first->array.place))
      refuse_argument(name, "lies on ", place_name(here), ", ", first_name, " on ",
                      place_name(first->array.place), "; nothing is copied silently");
  }
  return first != nullptr ? first->array.place : Place{};
}

tamis_shape Problem::shape() const {
  Report report;
  tamis_shape shape{};
  shape.struct_size = sizeof shape;
  report.check(tamis_describe(&c_, &shape, report));
  return shape;
}

nb::bytes Problem::key() const {
  std::string key;
  const auto add = [&](const auto& value) {
    key.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  for (int i = 0; i < kTensors; ++i) {
    const tamis_tensor& t = tensors_[i];
    const int32_t rank = held_[i] ? t.rank : -1;
    add(rank);
    if (rank < 0) continue;
    add(t.dtype);
    for (int axis = 0; axis < rank; ++axis) add(t.shape[axis]);
  }
  const tamis_problem& c = c_;
  for (const int64_t number :
       {int64_t{c.cache.layout}, int64_t{c.cache.k_quant.format}, int64_t{c.cache.k_quant.kind},
        int64_t{c.cache.v_quant.format}, int64_t{c.cache.v_quant.kind}, int64_t{c.candidates.form},
        int64_t{c.candidates.duplicates}, int64_t{c.candidates.invalid}, int64_t{c.candidates.semantics},
        c.candidates.unit, c.candidates.query_block, c.candidates.index_heads, int64_t{c.mask.causal},
        c.mask.window, c.mask.sink, int64_t{c.score.has_scale}})
    add(number);
  for (const double number : {c.score.scale, c.score.softcap, c.dropout.p}) add(number);
  add(c.dropout.seed);
  return nb::bytes(key.data(), key.size());
}

RunArrays::RunArrays(const Problem& problem, nb::handle q, nb::handle k, nb::handle v, nb::handle out,
                     nb::handle lse)
    : q_(q, "q"), k_(k, "k"), v_(v, "v"), out_(out, "out"), c_(problem.c()) {
  if (!lse.is_none()) lse_.emplace(lse, "lse");
  const struct {
    Array* array;
    const char* name;
  } all[] = {{&q_, "q"}, {&k_, "k"}, {&v_, "v"}, {&out_, "out"}, {lse_ ? &*lse_ : nullptr, "lse"}};
  for (const auto& [array, name] : all)
    if (array != nullptr && !array->place.agrees(q_.place))
      refuse_argument(name, "lies on ", place_name(array->place), ", q on ", place_name(q_.place));
  read_codes(&k_, "k", c_.cache.k_quant.format);
  read_codes(&v_, "v", c_.cache.v_quant.format);
  out_.check_written("out");
  if (lse_) lse_->check_written("lse");
  if (problem.join_q) {
    join(&q_, "q", c_);
    join(&out_, "out", c_);
    if (lse_) join(&*lse_, "lse", c_);
  }
  if (problem.join_kv) {
    join(&k_, "k", c_);
    join(&v_, "v", c_);
  }
  c_.query.q = &q_.tensor;
  c_.cache.k = &k_.tensor;
  c_.cache.v = &v_.tensor;
  output_.struct_size = sizeof output_;
  output_.out = &out_.tensor;
  output_.lse = lse_ ? &lse_->tensor : nullptr;
}

namespace {

// The numbers of a problem; enums are those of tamis_c_types.h, which the front end spells out.
void set_numbers(Problem* p, nb::dict numbers) {
  tamis_problem& c = p->c();
  const struct {
    const char* name;
    int32_t* number;
  } small[] = {{"kv_layout", &c.cache.layout},
               {"k_format", &c.cache.k_quant.format},
               {"v_format", &c.cache.v_quant.format},
               {"k_scale_kind", &c.cache.k_quant.kind},
               {"v_scale_kind", &c.cache.v_quant.kind},
               {"form", &c.candidates.form},
               {"duplicates", &c.candidates.duplicates},
               {"invalid", &c.candidates.invalid},
               {"causal", &c.mask.causal}};
  const struct {
    const char* name;
    int64_t* number;
  } large[] = {{"unit", &c.candidates.unit},
               {"query_block", &c.candidates.query_block},
               {"index_heads", &c.candidates.index_heads},
               {"window", &c.mask.window},
               {"sink", &c.mask.sink}};
  const struct {
    const char* name;
    double* number;
  } real[] = {{"softcap", &c.score.softcap}, {"dropout_p", &c.dropout.p}};
  for (auto [key, value] : numbers) {
    const std::string name = nb::cast<std::string>(key);
    bool known = true;
    if (name == "scale") {
      c.score.has_scale = value.is_none() ? 0 : 1;
      c.score.scale = value.is_none() ? 0 : number_of<double>(name, value);
    } else if (name == "dropout_seed") {
      c.dropout.seed = number_of<uint64_t>(name, value);
    } else {
      known = false;
    }
    for (const auto& n : small)
      if (name == n.name) known = true, *n.number = number_of<int32_t>(name, value);
    for (const auto& n : large)
      if (name == n.name) known = true, *n.number = number_of<int64_t>(name, value);
    for (const auto& n : real)
      if (name == n.name) known = true, *n.number = number_of<double>(name, value);
    if (!known) throw nb::key_error(name.c_str());
  }
}

nb::dict shape_of(const Problem& p) {
  const tamis_shape s = p.shape();
  nb::dict d;
  d["requests"] = s.requests;
  d["total_q"] = s.total_q;
  d["q_heads"] = s.q_heads;
  d["kv_heads"] = s.kv_heads;
  d["index_heads"] = s.index_heads;
  d["group"] = s.group;
  d["head_dim"] = s.head_dim;
  d["v_head_dim"] = s.v_head_dim;
  d["page_size"] = s.page_size;
  d["pages"] = s.pages;
  d["max_pages"] = s.max_pages;
  d["kv_rows"] = s.kv_rows;
  d["scale"] = s.scale;
  return d;
}

}  // namespace

void register_problem(nb::module_& m) {
  nb::class_<Problem>(m, "Problem", "What is to be computed, as arrays and numbers.")
      .def(nb::init<>())
      .def(
          "copy", [](const Problem& p) { return new Problem(p.refreshed()); }, nb::rv_policy::take_ownership,
          "Another problem that shares the arrays, read where they lie now.")
      .def("set", &Problem::set, nb::arg("name"), nb::arg("array").none(), nb::arg("join") = false,
           nb::arg("shape_only") = false)
      .def("get", &Problem::get, nb::arg("name"))
      .def("set_numbers", &set_numbers, nb::arg("numbers"),
           nb::sig("def set_numbers(self, numbers: dict[str, object]) -> None"))
      .def("set_index_only", &Problem::set_index_only, nb::arg("q_heads"), nb::arg("kv_heads"),
           nb::arg("head_dim"), nb::arg("v_head_dim"), nb::arg("page_size"), nb::arg("num_pages"),
           nb::arg("kv_bits"))
      .def_prop_ro(
          "row_shape",
          [](const Problem& p) {
            const tamis_candidates& c = p.c().candidates;
            return nb::make_tuple(c.query_block, c.unit, c.index_heads);
          },
          nb::for_getter(nb::sig("def row_shape(self) -> tuple[int, int, int]")),
          "(query_block, unit, index_heads) of the candidates.")
      .def_rw("join_q", &Problem::join_q)
      .def_rw("join_kv", &Problem::join_kv)
      .def("shape", &shape_of, nb::sig("def shape(self) -> dict[str, int | float]"),
           "Checks all that needs no element of any array.")
      .def_prop_ro(
          "place",
          [](const Problem& p) {
            const Place place = p.place();
            return nb::make_tuple(place.device(), place.id);
          },
          nb::for_getter(nb::sig("def place(self) -> tuple[bool, int]")),
          "(on a device, number of the device) of all arrays.")
      .def("key", &Problem::key);
}

}  // namespace tamis::python
