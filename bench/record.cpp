#include "record.h"

#include <fstream>
#include <iterator>

#include "io/json_text.h"
#include "tamis/io.h"

namespace tamis::bench {
namespace {

Json text_or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }
Json number_or_null(const std::optional<double>& x) { return x ? Json(*x) : Json(nullptr); }

// Work per us, in millions: bytes give TB/s, FLOP give TFLOP/s. Null without work.
Json rate(int64_t work, double us) {
  return work > 0 && us > 0 ? Json(static_cast<double>(work) / us * 1e-6) : Json(nullptr);
}

Status bad(const std::string& path, const std::string& what) { return {Code::kIoError, path + ": " + what}; }

}  // namespace

Reading reading_of(const Series& series) {
  Reading r{.name = series.name};
  r.time = summarize(series.us);
  r.warmup = series.warmup;
  r.wall_us = r.time.samples > 0 ? series.whole_us / static_cast<double>(r.time.samples) : 0;
  r.note = series.note;
  return r;
}

Json to_json(const Reading& r) {
  const Summary& t = r.time;
  std::optional<double> fraction;
  if (r.ceiling_us && t.median > 0) fraction = *r.ceiling_us / t.median;
  Json out{{"name", r.name},
           {"case", r.description},
           {"samples", t.samples},
           {"warmup", r.warmup},
           {"median_us", t.median},
           {"p25_us", t.p25},
           {"p75_us", t.p75},
           {"p95_us", t.p95},
           {"p99_us", t.p99},
           {"min_us", t.min},
           {"max_us", t.max},
           {"wall_us", r.wall_us},
           {"bytes", r.bytes},
           {"flops", r.flops},
           {"tb_s", rate(r.bytes, t.median)},
           {"tflop_s", rate(r.flops, t.median)},
           {"fraction_of_ceiling", number_or_null(fraction)},
           {"ceiling", text_or_null(r.ceiling)},
           {"max_error", number_or_null(r.max_error)},
           {"checked_rows", r.checked_rows},
           {"peer", r.peer},
           {"note", r.note}};
  out.update(r.more);
  return out;
}

Json to_json(const Record& record) {
  Json out = record.environment;
  out["ceilings"] = record.ceilings;
  out["readings"] = Json::array();
  for (const Reading& r : record.readings) out["readings"].push_back(to_json(r));
  out["skipped"] = Json::array();
  for (const Skipped& s : record.skipped) out["skipped"].push_back({{"name", s.name}, {"why", s.why}});
  return out;
}

const std::vector<std::string>& record_keys() {
  static const std::vector<std::string> keys = {
      "schema", "date",        "gpu", "driver",          "cuda",     "compiler", "commit",
      "clocks", "power_limit", "ecc", "other_processes", "ceilings", "readings"};
  return keys;
}

const std::vector<std::string>& reading_keys() {
  static const std::vector<std::string> keys = {
      "name",  "case", "samples", "median_us",           "p95_us",    "p99_us", "wall_us", "bytes",
      "flops", "tb_s", "tflop_s", "fraction_of_ceiling", "max_error", "peer"};
  return keys;
}

Status write_record(const std::string& path, const Json& record) {
  return io::write_text(path, record.dump(1) + '\n');
}

Result<Json> read_record(const std::string& path) {
  std::ifstream file(path);
  if (!file) return bad(path, "cannot be read");
  Json record = io::parse_json(std::string(std::istreambuf_iterator<char>(file), {}));
  if (record.is_discarded() || !record.is_object()) return bad(path, "is not a JSON object");
  for (const std::string& key : record_keys())
    if (!record.contains(key)) return bad(path, "is not a record: '" + key + "' is missing");
  if (record["schema"] != kSchema) return bad(path, "has schema " + record["schema"].dump());
  if (!record["readings"].is_array()) return bad(path, "readings is not a list");
  for (const Json& r : record["readings"]) {
    for (const std::string& key : reading_keys())
      if (!r.is_object() || !r.contains(key)) return bad(path, "a reading has no '" + key + "'");
    if (!r["name"].is_string() || !r["peer"].is_string() || !r["median_us"].is_number())
      return bad(path, "a reading has a name, peer or median_us of the wrong kind");
  }
  return record;
}

}  // namespace tamis::bench
