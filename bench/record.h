// One JSON file a run: environment, ceilings, readings. docs/benchmarks.md describes every key.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "protocol.h"
#include "work.h"

namespace tamis::bench {

inline constexpr int kSchema = 1;

// What ran how fast. Derived figures (TB/s, TFLOP/s, fraction of the ceiling) are worked out when it is
// written.
struct Reading {
  std::string name;
  std::string peer{};  // empty: Tamis; else who did the same work
  Json description{};  // the `case`
  Summary time{};      // us
  int64_t warmup = 0;
  double wall_us = 0;  // host time of one event, mean
  int64_t bytes = 0, flops = 0;
  std::string ceiling{};               // which; empty: none applies
  std::optional<double> ceiling_us{};  // what the same work would take at it
  std::optional<double> max_error{};   // against the float64 reference
  int64_t checked_rows = 0;            // (query, query head) that the error was taken over
  std::string note{};
  Json more = Json::object();  // further keys of this kind of reading
};

struct Skipped {
  std::string name, why;
};

struct Record {
  Json environment;
  Json ceilings = Json::object();
  std::vector<Reading> readings;
  std::vector<Skipped> skipped;
};

// A reading with times and counts of a series; the rest is the caller's.
Reading reading_of(const Series& series);

Json to_json(const Record& record);
Json to_json(const Reading& reading);

// The keys every record and every reading has, beyond those of their kind.
const std::vector<std::string>& record_keys();
const std::vector<std::string>& reading_keys();

// The file appears whole or not at all.
Status write_record(const std::string& path, const Json& record);

// A file that is not a record of this schema is an io_error.
Result<Json> read_record(const std::string& path);

}  // namespace tamis::bench
