// tamis quantize: a case with K, V or both in a quantized format (docs/quantization.md).
#include <fmt/core.h>

#include <memory>
#include <optional>

#include "cli.h"
#include "format.h"
#include "io/case_names.h"
#include "run_files.h"
#include "tamis/accuracy.h"
#include "tamis/io.h"
#include "tamis/quant.h"
#include "tamis/reference.h"

namespace tamis::cli {
namespace {

struct Options {
  std::string file, out, k, v;
  bool json = false;
};

struct Wanted {
  Format format;
  ScaleKind kind;
};

// "int8" or "int8:page"; nothing when it is neither.
std::optional<Wanted> parse_wanted(const std::string& text) {
  const size_t colon = text.find(':');
  const auto* format = io::find_name(io::kFormatNames, text.substr(0, colon));
  const auto* kind =
      io::find_name(io::kScaleKindNames, colon == std::string::npos ? "tensor" : text.substr(colon + 1));
  if (format == nullptr || kind == nullptr || format->value == Format::kPlain) return {};
  return Wanted{format->value, kind->value};
}

// One side of the cache, before and after.
struct Side {
  const char* name;
  Wanted wanted;
  int64_t bytes_before, bytes_after, scale_bytes;
  ErrorMeasure error;  // of committed tokens
  Quantized quantized;
};

// Tokens of a page, or of a contiguous cache.
int64_t tokens_of(const TensorView& x, Layout layout) {
  return x.shape[x.rank - (layout == Layout::kHND ? 2 : 3)];
}

int64_t bytes_of(const TensorView& t) { return t.elements() * dtype_bytes(t.dtype); }

// The values of used slots alone: what lies in the others is nobody's.
Result<ErrorMeasure> error_of(const TensorView& x, const Quantized& q, const QuantizeOptions& o) {
  const Result<Dequantized> read = dequantize(q.codes, o.layout, q.quantization, o.name);
  if (!read.ok()) return read.status();
  Result<Dequantized> wide = dequantize(x, o.layout, {}, o.name);
  if (!wide.ok()) return wide.status();
  const KvStrides at = kv_strides(wide->view, o.layout);
  const int64_t pages = x.rank == 4 ? x.shape[0] : 1, tokens = tokens_of(x, o.layout);
  const int64_t heads = x.shape[x.rank - (o.layout == Layout::kHND ? 3 : 2)], dim = x.shape[x.rank - 1];
  const auto* used = static_cast<const uint8_t*>(o.used.data);
  for (int64_t slot = 0; slot < pages * tokens; ++slot) {
    if (used[slot]) continue;
    for (int64_t h = 0; h < heads; ++h)
      std::fill_n(wide->values.begin() + slot / tokens * at.page + slot % tokens * at.token + h * at.head,
                  dim, 0.f);
  }
  return measure_error(read->view, wide->view);
}

Result<Side> quantize_side(const char* name, const TensorView& x, const Quantization& now,
                           const Wanted& wanted, const CacheView& cache, const std::vector<uint8_t>& used) {
  if (now.format != Format::kPlain)
    return Status(Code::kInvalidArgument,
                  fmt::format("{}_format: is {} already", name, io::name_of(io::kFormatNames, now.format)));
  QuantizeOptions o{.layout = cache.layout, .name = name};
  const int64_t slots = static_cast<int64_t>(used.size());
  o.used = x.rank == 4 ? dense_view(used.data(), DType::kU8, {x.shape[0], tokens_of(x, cache.layout)})
                       : dense_view(used.data(), DType::kU8, {slots});
  Result<Quantized> q = quantize(x, wanted.format, wanted.kind, o);
  if (!q.ok()) return q.status();
  const Result<ErrorMeasure> error = error_of(x, *q, o);
  if (!error.ok()) return error.status();
  const int64_t codes = bytes_of(q->codes), scales = bytes_of(q->quantization.scale);
  return Side{.name = name,
              .wanted = wanted,
              .bytes_before = bytes_of(x),
              .bytes_after = codes + scales,
              .scale_bytes = scales,
              .error = *error,
              .quantized = std::move(*q)};
}

// What the output loses, or why that cannot be told.
struct OutputLoss {
  std::optional<ErrorMeasure> error;
  std::string reason;
};

OutputLoss output_loss(const Problem& original, const Problem& quantized) {
  const Result<Shape> shape = describe(original);
  if (!shape.ok()) return {{}, shape.status().message()};
  const std::vector<float> none(shape->total_q * shape->q_heads * shape->v_head_dim);
  const Result<AccuracySplit> split = accuracy_split(
      original, quantized,
      dense_view(none.data(), DType::kF32, {shape->total_q, shape->q_heads, shape->v_head_dim}));
  if (!split.ok()) return {{}, split.status().message()};
  return {split->quantization, ""};
}

// The file as it was, with the codes, scales and formats of the sides in place of their values.
Status write_quantized(const std::string& path, const io::TensorFile& file, const std::vector<Side>& sides) {
  io::Metadata metadata = file.metadata;
  std::map<std::string, TensorView> tensors = file.tensors;
  for (const Side& s : sides) {
    const std::string name = s.name;
    metadata[name + "_format"] = io::name_of(io::kFormatNames, s.wanted.format);
    metadata[name + "_scale_kind"] = io::name_of(io::kScaleKindNames, s.wanted.kind);
    tensors[name] = s.quantized.codes;
    tensors[name + "_scale"] = s.quantized.quantization.scale;
  }
  return io::write_tensors(path, {tensors.begin(), tensors.end()}, metadata);
}

struct Report {
  std::vector<Side> sides;
  OutputLoss output;
};

Json error_json(const ErrorMeasure& e) { return {{"max_abs", e.max_abs}, {"rel_rms", e.relative_rms}}; }

Json report_json(const Report& r) {
  Json out = Json::object();
  for (const Side& s : r.sides)
    out[s.name] = {{"format", io::name_of(io::kFormatNames, s.wanted.format)},
                   {"scale_kind", io::name_of(io::kScaleKindNames, s.wanted.kind)},
                   {"bytes_before", s.bytes_before},
                   {"bytes_after", s.bytes_after},
                   {"scale_bytes", s.scale_bytes},
                   {"saturated", s.quantized.saturated_codes},
                   {"error", error_json(s.error)}};
  out["output"] = r.output.error ? error_json(*r.output.error) : Json(nullptr);
  if (!r.output.reason.empty()) out["output_reason"] = r.output.reason;
  return out;
}

std::string error_text(const ErrorMeasure& e) {
  return fmt::format("{:.3e} at most, {:.3e} relative RMS", e.max_abs, e.relative_rms);
}

std::string report_text(const Report& r, const Options& o) {
  std::string out = fmt::format("{}\n", o.file);
  for (const Side& s : r.sides) {
    out += line(s.name, fmt::format("{}, a scale per {}", io::name_of(io::kFormatNames, s.wanted.format),
                                    io::name_of(io::kScaleKindNames, s.wanted.kind)));
    out += line(
        "", fmt::format("{} became {}, {} of it scales; {} values saturated", bytes_text(s.bytes_before),
                        bytes_text(s.bytes_after), bytes_text(s.scale_bytes), s.quantized.saturated_codes));
    out += line("", fmt::format("error of committed tokens: {}", error_text(s.error)));
  }
  out += line("output", r.output.error
                            ? fmt::format("error of the exact result: {}", error_text(*r.output.error))
                            : fmt::format("cannot be computed: {}", r.output.reason));
  return out + line("case", o.out);
}

Status quantize_case(const Options& options, Report* report) {
  if (same_file(options.out, options.file))
    return {Code::kInvalidArgument, fmt::format("out: {} is the case itself", options.out)};
  const Result<io::Case> found = io::read_case(options.file);
  if (!found.ok()) return found.status();
  const Problem& p = found->problem;
  const Result<std::vector<uint8_t>> used = used_slots(p);
  if (!used.ok()) return used.status();
  Problem quantized = p;
  for (const bool is_k : {true, false}) {
    const std::optional<Wanted> wanted = parse_wanted(is_k ? options.k : options.v);
    if (!wanted) continue;
    Result<Side> side = quantize_side(is_k ? "k" : "v", is_k ? p.cache.k : p.cache.v,
                                      is_k ? p.cache.k_quant : p.cache.v_quant, *wanted, p.cache, *used);
    if (!side.ok()) return side.status();
    (is_k ? quantized.cache.k : quantized.cache.v) = side->quantized.codes;
    (is_k ? quantized.cache.k_quant : quantized.cache.v_quant) = side->quantized.quantization;
    report->sides.push_back(std::move(*side));
  }
  report->output = output_loss(p, quantized);
  return write_quantized(options.out, found->file, report->sides);
}

int run_quantize(const Options& options) {
  Report report;
  if (const Status s = quantize_case(options, &report); !s.ok()) return fail(s);
  if (options.json)
    fmt::print("{}\n", report_json(report).dump(1));
  else
    fmt::print("{}", report_text(report, options));
  return kDone;
}

}  // namespace

void add_quantize(CLI::App& app, int* exit) {
  auto o = std::make_shared<Options>();
  CLI::App* c = app.add_subcommand("quantize", "Write a case with K, V or both in a quantized format");
  const auto known = CLI::Validator(
      [](std::string& text) {
        return parse_wanted(text) ? std::string()
                                  : "'" + text +
                                        "' is not int8, fp8_e4m3, fp8_e5m2 or int4, with tensor, head, page, "
                                        "channel, page_channel or token behind a colon";
      },
      "FORMAT[:KIND]");
  c->add_option("CASE", o->file, "Case file (docs/case-format.md)")->required();
  c->add_option("--out", o->out, "The case file to write")->required();
  CLI::Option* k = c->add_option("--k", o->k, "Format of K, and its scale kind (tensor)")->check(known);
  CLI::Option* v = c->add_option("--v", o->v, "Format of V, and its scale kind (tensor)")->check(known);
  c->add_flag("--json", o->json, "One JSON object instead of a table");
  c->callback([o, k, v, exit] {
    if (k->empty() && v->empty()) throw CLI::RequiredError("--k or --v");
    *exit = run_quantize(*o);
  });
}

}  // namespace tamis::cli
