// Readings of the left half of the line: normalize, plan, and the use of one plan by many layers.
#include "core/checks.h"
#include "run.h"
#include "tamis/reference.h"

namespace tamis::bench {
namespace {

size_t place(const Work& work, int64_t turn) { return static_cast<size_t>(turn) % work.turns.size(); }

Result<Readings> one_reading(Session& session, const Work& work, const Contender& contender) {
  session.say(contender.name + ": measuring");
  const Result<std::vector<Series>> series = measure({contender}, session.protocol);
  if (!series.ok()) return series.status();
  Readings readings;
  for (const Series& s : *series) {
    readings.push_back(reading_of(s));
    readings.back().description = described(session, work);
  }
  return readings;
}

// The number of sets that differ from the reference's: right is 0.
Result<int64_t> wrong_sets(const Problem& problem, const IndexView& index, int64_t heads, int64_t* rows) {
  const Result<reference::Sets> want = reference::build_sets(problem);
  if (!want.ok()) return want.status();
  *rows = static_cast<int64_t>(want->indptr.size()) - 1;
  int64_t wrong = 0;
  for (int64_t r = 0; r < *rows; ++r) {
    const std::vector<int32_t> got = expand_set(problem, index, r / heads, r % heads);
    const auto* tokens = want->tokens.data();
    wrong += got != std::vector<int32_t>(tokens + want->indptr[r], tokens + want->indptr[r + 1]);
  }
  return wrong;
}

// The steps of all turns, normalized.
Result<std::vector<Step>> normalized(const Work& work) {
  std::vector<Step> steps(work.turns.size());
  for (size_t t = 0; t < steps.size(); ++t)
    if (Status s = normalize_step(work.turns[t], Path::kDirect, &steps[t]); !s.ok()) return s;
  return steps;
}

}  // namespace

Result<Readings> normalize_reading(Session& session, const std::string& name, const Work& work) {
  Step step;
  const auto call = [&](int64_t turn, Parts*) {
    return normalize_step(work.turns[place(work, turn)], Path::kDirect, &step);
  };
  Result<Readings> readings = one_reading(session, work, {.name = name, .call = call});
  if (!readings.ok()) return readings;
  const Problem& first = work.turns[0];
  if (Status s = normalize_step(first, Path::kDirect, &step); !s.ok()) return s;
  Reading& r = readings->front();
  const Result<int64_t> wrong =
      wrong_sets(first, step.index.view(), first.candidates.index_heads, &r.checked_rows);
  if (!wrong.ok()) return wrong.status();
  r.max_error = static_cast<double>(*wrong);
  r.more["error_counts"] = "sets that differ";
  r.more["raw_entries"] = step.index.stats().counts.raw;
  return readings;
}

Result<Readings> plan_reading(Session& session, const std::string& name, const Work& work) {
  Result<std::vector<Step>> steps = normalized(work);
  if (!steps.ok()) return steps.status();
  const auto call = [&](int64_t turn, Parts* parts) {
    return plan_step(work.turns[place(work, turn)], Path::kDirect, &(*steps)[place(work, turn)], parts);
  };
  return one_reading(session, work, {.name = name, .call = call});
}

Result<Readings> reuse_reading(Session& session, const std::string& name, const Work& work, int64_t layers) {
  Result<std::vector<Step>> steps = normalized(work);
  if (!steps.ok()) return steps.status();
  const auto call = [&](int64_t turn, Parts*) -> Status {
    const Problem& problem = work.turns[place(work, turn)];
    Step& step = (*steps)[place(work, turn)];
    TAMIS_RETURN_IF_ERROR(plan_step(problem, Path::kDirect, &step));
    for (int64_t layer = 0; layer < layers; ++layer) {
      const Result<Shape> shape = describe(problem);
      if (!shape.ok()) return shape.status();
      if (fingerprint(problem, *shape, step.plan.block, step.plan.backend) != step.plan.fingerprint ||
          schedule_stamp(step.bundles.view()) != step.schedule.stamp)
        return {Code::kStalePlan, "plan: does not fit the step it was made for"};
    }
    return {};
  };
  Result<Readings> readings = one_reading(session, work, {.name = name, .call = call});
  if (!readings.ok()) return readings;
  Reading& r = readings->front();
  r.description["layers"] = layers;
  r.more["per_layer_us"] = r.time.median / static_cast<double>(layers);
  return readings;
}

}  // namespace tamis::bench
