// From a Problem to the case file that reads as that problem.

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <new>

#include "core/checks.h"
#include "io/case_names.h"
#include "tamis/io.h"

namespace tamis::io {
namespace {

// The shortest text that reads as exactly this number.
std::string text_of(double value) {
  char text[32];
  const std::to_chars_result end = std::to_chars(text, text + sizeof text, value);
  return std::string(text, end.ptr);
}

// -0.0 == 0.0, but they are different scales and caps; the sign must survive.
bool is_zero(double value) { return value == 0 && !std::signbit(value); }

void write_options(const Problem& p, Metadata& m) {
  const CandidateView& c = p.candidates;
  m["tamis.case"] = "1";
  m["index_heads"] = std::to_string(c.index_heads);
  if (p.cache.layout != Layout::kNHD) m["kv_layout"] = name_of(kLayoutNames, p.cache.layout);
  if (c.unit != 1) m["unit"] = std::to_string(c.unit);
  if (c.query_block != 1) m["query_block"] = std::to_string(c.query_block);
  if (!p.mask.causal) m["causal"] = "0";
  if (p.mask.window != 0) m["window"] = std::to_string(p.mask.window);
  if (p.mask.sink != 0) m["sink"] = std::to_string(p.mask.sink);
  if (p.score.scale) m["scale"] = text_of(*p.score.scale);
  if (!is_zero(p.score.softcap)) m["softcap"] = text_of(p.score.softcap);
  if (c.duplicates != OnDuplicate::kMerge) m["duplicates"] = name_of(kDuplicateNames, c.duplicates);
  if (c.invalid != OnInvalid::kReject) m["invalid"] = name_of(kInvalidNames, c.invalid);
  if (!is_zero(p.dropout.p)) m["dropout_p"] = text_of(p.dropout.p);
  if (p.dropout.seed != 0) m["dropout_seed"] = std::to_string(p.dropout.seed);
}

void write_quantization(const std::string& name, const Quantization& quant, Metadata& m) {
  if (quant.format == Format::kPlain) return;
  m[name + "_format"] = name_of(kFormatNames, quant.format);
  if (quant.kind != ScaleKind::kTensor) m[name + "_scale_kind"] = name_of(kScaleKindNames, quant.kind);
}

Status write_index_only(const IndexOnly& only, Metadata& m) {
  const char* dtype = name_of(kKvBitNames, only.kv_bits);
  if (dtype == nullptr) {
    return invalid("kv_dtype", "none has ", only.kv_bits, " bits");
  }
  m["kv_dtype"] = dtype;
  m["q_heads"] = std::to_string(only.q_heads);
  m["kv_heads"] = std::to_string(only.kv_heads);
  m["head_dim"] = std::to_string(only.head_dim);
  m["v_head_dim"] = std::to_string(only.v_head_dim);
  if (only.page_size != 0) m["page_size"] = std::to_string(only.page_size);
  if (only.num_pages != 0) m["num_pages"] = std::to_string(only.num_pages);
  return {};
}

// Lists that say what kNone and kAll say, which a file has no word for: rows of no entries, or rows of all.
struct Lists {
  std::vector<int64_t> indptr{0};
  std::vector<int32_t> indices;
};

Status spell_out(const Problem& p, Lists& lists) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const auto up = [](int64_t n, int64_t by) { return n / by + (n % by != 0); };
  const CandidateView& c = p.candidates;
  const int64_t requests = p.cache.kv_len.shape[0];
  for (int64_t b = 0; b < requests; ++b) {
    const int64_t q_len = int64_t{p.query.cu_q.at<int32_t>({b + 1})} - p.query.cu_q.at<int32_t>({b});
    const int64_t rows = up(q_len, c.query_block) * c.index_heads;
    const int64_t entries = c.form == CandidateForm::kAll ? up(p.cache.kv_len.at<int32_t>({b}), c.unit) : 0;
    // Both factors are below 2^47 and 2^31, so the product can pass 2^63.
    int64_t added = 0;
    if (__builtin_mul_overflow(rows, entries, &added) || added > kMost - lists.indptr.back() ||
        rows > kMost - static_cast<int64_t>(lists.indptr.size())) {
      return {Code::kUnsupported, text("cand_indices: spelled out, the candidates take more than ", kMost,
                                       " rows or entries; write fewer requests to a file")};
    }
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t e = 0; e < entries; ++e) lists.indices.push_back(static_cast<int32_t>(e));
      lists.indptr.push_back(lists.indptr.back() + entries);
    }
  }
  return {};
}

NamedTensors tensors_of(const Problem& p) {
  const std::pair<const char*, const TensorView*> places[] = {
      {"q", &p.query.q},
      {"k", &p.cache.k},
      {"v", &p.cache.v},
      {"cu_q", &p.query.cu_q},
      {"q_pos", &p.query.q_pos},
      {"kv_len", &p.cache.kv_len},
      {"page_table", &p.cache.page_table},
      {"cu_kv", &p.cache.cu_kv},
      {"page_stamps", &p.cache.page_stamps},
      {"table_stamps", &p.cache.table_stamps},
      {"k_scale", &p.cache.k_quant.scale},
      {"v_scale", &p.cache.v_quant.scale},
      {"alibi_slopes", &p.score.alibi_slopes},
      {"d_out", &p.gradients.d_out},
      {"d_lse", &p.gradients.d_lse},
  };
  NamedTensors tensors;
  for (const auto& [name, view] : places) {
    if (view->present()) tensors.emplace_back(name, *view);
  }
  return tensors;
}

Status add_candidates(const Problem& p, Lists& lists, NamedTensors& tensors) {
  const CandidateView& c = p.candidates;
  switch (c.form) {
    case CandidateForm::kCsr:
      tensors.emplace_back("cand_indptr", c.indptr);
      tensors.emplace_back("cand_indices", c.indices);
      return {};
    case CandidateForm::kFixedWidth:
      tensors.emplace_back("cand_indices", c.indices);
      if (c.count.present()) tensors.emplace_back("cand_count", c.count);
      return {};
    case CandidateForm::kNone:
    case CandidateForm::kAll:
      break;
  }
  TAMIS_RETURN_IF_ERROR(spell_out(p, lists));
  const auto count = [](const auto& list) { return static_cast<int64_t>(list.size()); };
  tensors.emplace_back("cand_indptr", dense_view(lists.indptr.data(), DType::kI64, {count(lists.indptr)}));
  tensors.emplace_back("cand_indices", dense_view(lists.indices.data(), DType::kI32, {count(lists.indices)}));
  return {};
}

}  // namespace

Status write_case(const std::string& path, const Problem& problem, const Metadata& extra) try {
  // What read_case would refuse is refused here.
  const Result<Shape> shape = describe(problem);
  if (!shape.ok()) return shape.status();
  TAMIS_RETURN_IF_ERROR(check_arrays(problem, *shape));
  Metadata metadata = extra;
  for (const char* key : kCaseKeys) {
    if (metadata.count(key) > 0) return invalid(key, "is the problem's to say, not extra metadata");
  }
  write_options(problem, metadata);
  if (problem.index_only) {
    TAMIS_RETURN_IF_ERROR(write_index_only(*problem.index_only, metadata));
  } else {
    write_quantization("k", problem.cache.k_quant, metadata);
    write_quantization("v", problem.cache.v_quant, metadata);
  }
  Lists lists;
  NamedTensors tensors = tensors_of(problem);
  TAMIS_RETURN_IF_ERROR(add_candidates(problem, lists, tensors));
  return write_tensors(path, tensors, metadata);
} catch (const std::bad_alloc&) {
  return {Code::kIoError, "no memory to write a case"};
}

}  // namespace tamis::io
