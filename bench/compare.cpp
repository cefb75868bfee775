#include "compare.h"

#include <algorithm>

namespace tamis::bench {
namespace {

struct Times {
  double p25, median, p75;
};

double number(const Json& reading, const char* key, double otherwise) {
  return reading.contains(key) && reading[key].is_number() ? reading[key].get<double>() : otherwise;
}

Times times(const Json& reading) {
  const double median = reading["median_us"].get<double>();
  return {number(reading, "p25_us", median), median, number(reading, "p75_us", median)};
}

// Time of the same work at its ceiling; 0 without one.
double ceiling_us(const Json& reading) {
  return number(reading, "fraction_of_ceiling", 0) * reading["median_us"].get<double>();
}

const Json* find(const Json& record, const Json& like) {
  for (const Json& r : record["readings"])
    if (r["name"] == like["name"] && r["peer"] == like["peer"]) return &r;
  return nullptr;
}

// Where two machines differ, in words; empty: nowhere that matters.
std::string difference(const Json& a, const Json& b) {
  const auto at = [](const Json& record, const char* path) {
    const Json::json_pointer pointer(path);
    return record.contains(pointer) ? record[pointer] : Json(nullptr);
  };
  for (const char* path : {"/gpu", "/cpu/model", "/cpu/cores"})
    if (const Json x = at(a, path), y = at(b, path); x != y)
      return std::string(path + 1) + " is " + x.dump() + " in the old record and " + y.dump() + " in the new";
  return "";
}

Change judge_change(const Json& before, const Json& after, double threshold) {
  Change c{.name = after["name"], .peer = after["peer"]};
  const Times was = times(before);
  Times is = times(after);
  c.old_us = was.median, c.new_us = is.median;
  c.ratio = was.median > 0 ? is.median / was.median : 0;
  // Order of keys is no difference.
  if (nlohmann::json(before["case"]) != nlohmann::json(after["case"])) {
    c.verdict = Verdict::kOtherCase;
    return c;
  }
  const double old_ceiling = ceiling_us(before), new_ceiling = ceiling_us(after);
  c.scaled = old_ceiling > 0 && new_ceiling > 0;
  const double scale = c.scaled ? old_ceiling / new_ceiling : 1;
  is = {is.p25 * scale, is.median * scale, is.p75 * scale};
  c.scaled_ratio = c.ratio * scale;
  if (is.median > was.median * (1 + threshold) && is.p25 > was.p75) c.verdict = Verdict::kSlower;
  if (is.median * (1 + threshold) < was.median && is.p75 < was.p25) c.verdict = Verdict::kFaster;
  return c;
}

}  // namespace

const char* verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kSame:
      return "same";
    case Verdict::kFaster:
      return "faster";
    case Verdict::kSlower:
      return "slower";
    case Verdict::kOnlyOld:
      return "only in old";
    case Verdict::kOnlyNew:
      return "only in new";
    case Verdict::kOtherCase:
      return "other case";
  }
  return "";
}

Result<std::vector<Change>> compare(const Json& old_record, const Json& new_record, double threshold) {
  if (const std::string why = difference(old_record, new_record); !why.empty())
    return Status(Code::kUnsupported, "records of different machines do not compare: " + why);
  std::vector<Change> changes;
  for (const Json& after : new_record["readings"]) {
    if (const Json* before = find(old_record, after))
      changes.push_back(judge_change(*before, after, threshold));
    else
      changes.push_back({.name = after["name"],
                         .peer = after["peer"],
                         .verdict = Verdict::kOnlyNew,
                         .new_us = after["median_us"].get<double>()});
  }
  for (const Json& before : old_record["readings"])
    if (find(new_record, before) == nullptr)
      changes.push_back({.name = before["name"],
                         .peer = before["peer"],
                         .verdict = Verdict::kOnlyOld,
                         .old_us = before["median_us"].get<double>()});
  return changes;
}

}  // namespace tamis::bench
