// From a tensor file to a Problem. What the metadata and the presence of tensors decide is decided here; what
// the tensors' types and extents and the options' ranges must be is describe()'s to say.

#include <charconv>
#include <cmath>
#include <new>

#include "core/checks.h"
#include "io/case_names.h"
#include "io/text.h"
#include "tamis/io.h"

namespace tamis::io {
namespace {

// Reads options out of the metadata. A missing key leaves its default; the first fault is kept and the reads
// after it do nothing.
class Options {
 public:
  explicit Options(const Metadata& metadata) : metadata_(metadata) {}

  const Status& status() const { return status_; }

  const std::string* find(const std::string& key) const {
    const auto it = metadata_.find(key);
    return it == metadata_.end() ? nullptr : &it->second;
  }

  Options& require(const std::string& key, const char* why) {
    if (find(key) == nullptr) fail(key, why);
    return *this;
  }

  // The whole text must be the number: no blanks, no plus sign, no rest.
  template <class T>
  void number(const std::string& key, const char* kind, T& out) {
    const std::string* text = find(key);
    if (!status_.ok() || text == nullptr) return;
    T value{};
    const char* end = text->data() + text->size();
    const auto [stop, error] = std::from_chars(text->data(), end, value);
    const bool good = error == std::errc() && stop == end && std::isfinite(static_cast<double>(value));
    if (!good) return fail(key, in_quotes(*text), " is not ", kind);
    out = value;
  }
  void integer(const std::string& key, int64_t& out) { number(key, "a 64-bit integer", out); }
  void real(const std::string& key, double& out) { number(key, "a finite number", out); }

  template <class E, size_t N>
  void choice(const std::string& key, const Name<E> (&table)[N], E& out) {
    const std::string* text = find(key);
    if (!status_.ok() || text == nullptr) return;
    if (const Name<E>* name = find_name(table, *text)) {
      out = name->value;
      return;
    }
    std::string known;
    for (const Name<E>& name : table) {
      if (*name.text != '\0') known.append(" ").append(name.text);
    }
    fail(key, in_quotes(*text), " is not one of", known);
  }

 private:
  template <class... Args>
  void fail(const std::string& key, const Args&... why) {
    if (status_.ok()) status_ = invalid(key.c_str(), why...);
  }

  const Metadata& metadata_;
  Status status_;
};

void read_options(Options& options, Problem& p) {
  options.choice("kv_layout", kLayoutNames, p.cache.layout);
  options.integer("unit", p.candidates.unit);
  options.integer("query_block", p.candidates.query_block);
  options.require("index_heads", "is required").integer("index_heads", p.candidates.index_heads);
  options.choice("causal", kFlagNames, p.mask.causal);
  options.integer("window", p.mask.window);
  options.integer("sink", p.mask.sink);
  if (options.find("scale") != nullptr) options.real("scale", p.score.scale.emplace());
  options.real("softcap", p.score.softcap);
  options.choice("duplicates", kDuplicateNames, p.candidates.duplicates);
  options.choice("invalid", kInvalidNames, p.candidates.invalid);
  options.choice("semantics", kSemanticsNames, p.candidates.semantics);
  options.real("dropout_p", p.dropout.p);
  options.number("dropout_seed", "an unsigned 64-bit integer", p.dropout.seed);
}

// What stands in for q, k and v where a file has none of them.
IndexOnly read_index_only(Options& options) {
  IndexOnly only;
  for (const char* key : {"q_heads", "kv_heads", "head_dim", "v_head_dim", "kv_dtype"}) {
    options.require(key, "is required when there is no q, k and v");
  }
  options.integer("q_heads", only.q_heads);
  options.integer("kv_heads", only.kv_heads);
  options.integer("head_dim", only.head_dim);
  options.integer("v_head_dim", only.v_head_dim);
  options.integer("page_size", only.page_size);
  options.integer("num_pages", only.num_pages);
  options.choice("kv_dtype", kKvBitNames, only.kv_bits);
  return only;
}

void read_quantization(Options& options, Problem& p) {
  options.choice("k_format", kFormatNames, p.cache.k_quant.format);
  options.choice("v_format", kFormatNames, p.cache.v_quant.format);
  options.choice("k_scale_kind", kScaleKindNames, p.cache.k_quant.kind);
  options.choice("v_scale_kind", kScaleKindNames, p.cache.v_quant.kind);
}

void attach_tensors(const TensorFile& file, Problem& p) {
  const std::pair<const char*, TensorView*> places[] = {
      {"q", &p.query.q},
      {"cu_q", &p.query.cu_q},
      {"q_pos", &p.query.q_pos},
      {"k", &p.cache.k},
      {"v", &p.cache.v},
      {"kv_len", &p.cache.kv_len},
      {"page_table", &p.cache.page_table},
      {"cu_kv", &p.cache.cu_kv},
      {"page_stamps", &p.cache.page_stamps},
      {"table_stamps", &p.cache.table_stamps},
      {"k_scale", &p.cache.k_quant.scale},
      {"v_scale", &p.cache.v_quant.scale},
      {"cand_indptr", &p.candidates.indptr},
      {"cand_indices", &p.candidates.indices},
      {"cand_count", &p.candidates.count},
      {"alibi_slopes", &p.score.alibi_slopes},
      {"d_out", &p.gradients.d_out},
      {"d_lse", &p.gradients.d_lse},
  };
  for (const auto& [name, view] : places) {
    if (const auto it = file.tensors.find(name); it != file.tensors.end()) *view = it->second;
  }
}

// A Problem knows forms that a file has no word for, so a missing list is a fault here and not in describe().
Status choose_form(CandidateView& candidates) {
  if (candidates.indptr.present()) {
    if (candidates.count.present()) {
      return invalid("cand_count", "belongs to the fixed-width form, cand_indptr says CSR");
    }
    candidates.form = CandidateForm::kCsr;
    return {};
  }
  if (!candidates.indices.present()) return invalid("cand_indices", "tensor is missing");
  candidates.form = CandidateForm::kFixedWidth;
  return {};
}

Status read_problem(const TensorFile& file, Problem& p) {
  Options options(file.metadata);
  const std::string* version = options.find("tamis.case");
  if (version == nullptr) return invalid("tamis.case", "is missing, so this is not a case file");
  if (*version != "1") return invalid("tamis.case", in_quotes(*version), " is not 1");
  read_options(options, p);
  const auto has = [&](const char* name) { return file.tensors.count(name) > 0; };
  if (!has("q") && !has("k") && !has("v")) {
    p.index_only = read_index_only(options);
  } else {
    read_quantization(options, p);
    for (const char* name : {"q", "k", "v"}) {
      if (options.status().ok() && !has(name)) return invalid(name, "tensor is missing");
    }
  }
  TAMIS_RETURN_IF_ERROR(options.status());
  attach_tensors(file, p);
  return choose_form(p.candidates);
}

Result<Case> build_case(Result<TensorFile> file) try {
  if (!file.ok()) return file.status();
  Case c{.problem = {}, .file = std::move(*file)};
  TAMIS_RETURN_IF_ERROR(read_problem(c.file, c.problem));
  const Result<Shape> shape = describe(c.problem);
  if (!shape.ok()) return shape.status();
  TAMIS_RETURN_IF_ERROR(check_arrays(c.problem, *shape));
  return c;
} catch (const std::bad_alloc&) {
  return Status(Code::kIoError, "no memory to read a case");
}

}  // namespace

Result<Case> read_case(const std::string& path, const ReadLimits& limits) {
  return build_case(read_tensors(path, limits));
}

Result<Case> parse_case(const void* data, size_t size, const ReadLimits& limits) {
  return build_case(parse_tensors(data, size, limits));
}

}  // namespace tamis::io
