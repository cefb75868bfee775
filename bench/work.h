// What a bench runs: problems of one shape that differ in lists and data, taken in turn, so that no cache
// holds what the next turn reads.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "stream.h"
#include "tamis/problem.h"

namespace tamis::bench {

using Json = nlohmann::ordered_json;

struct Work {
  Json description{};             // the `case` of a reading
  std::vector<Problem> turns{};   // they point into `storage`
  std::vector<Pieces> reads{};    // the K and V bytes each turn reads; empty where arithmetic binds
  int64_t bytes = 0, flops = 0;   // of one turn: K and V of the selected tokens, their products
  std::vector<int64_t> judged{};  // queries that are compared with the reference
  std::shared_ptr<void> storage{};
};

// Turns needed until a cycle of them reads more than five times the last-level cache.
int64_t enough_turns(int64_t bytes_of_a_turn);

}  // namespace tamis::bench
