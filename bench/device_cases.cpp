#include "device_cases.h"

#include <iterator>
#include <utility>

#include "core/checks.h"
#include "device_decode.h"
#include "device_environment.h"

namespace tamis::bench {
namespace {

const std::string kPrefix = "cuda.";

template <class Read>
Case device_case(std::string reading, std::string what, const StepWork& work, Read read) {
  const auto run = [work, read](Session& session, const std::string& n) -> Result<Readings> {
    return read(session, n.substr(kPrefix.size()), work);
  };
  return {.name = kPrefix + reading,
          .what = std::move(what),
          .run = run,
          .needs_trace = work.spread == Spread::kRecorded,
          .device = true};
}

// A step with its parts apart; without: attention and the whole.
Case step(std::string reading, std::string what, const StepWork& work, bool parts = false) {
  return device_case(std::move(reading), std::move(what), work,
                     [parts](Session& session, const std::string& n, const StepWork& w) {
                       return step_readings(session, n, w, parts);
                     });
}

std::string of_requests(int64_t requests) {
  return requests == 1 ? std::string("one request") : text(requests, " requests");
}

// decode.b8.32k.p16.s6.uniform: 8 requests of 32K tokens, pages of 16, lists of 6.25 % of them.
struct Cell {
  int64_t requests, thousands;
  int64_t page = 16;
  int64_t sixty_fourths = 4;  // share of the pages that a row lists
  Spread spread = Spread::kUniform;
};

Case cell(const Cell& c) {
  StepWork w{.requests = c.requests,
             .kv_len = c.thousands * 1024,
             .page = c.page,
             .unit = c.page,
             .spread = c.spread};
  w.listed = w.pages() * c.sixty_fourths / 64;
  const int64_t percent = 100 * c.sixty_fourths / 64;
  return step(text("decode.b", c.requests, ".", c.thousands, "k.p", c.page, ".s", percent, ".",
                   spread_name(c.spread)),
              text(of_requests(c.requests), " of ", c.thousands, "K tokens, ", w.listed, " pages of ", c.page,
                   ", ", spread_name(c.spread)),
              w);
}

constexpr Cell kCells[] = {
    // batch and context
    {1, 8},
    {1, 32},
    {1, 128},
    {8, 8},
    {8, 32},
    {8, 128},
    {64, 8},
    {64, 32},
    {64, 128},
    // share
    {8, 64, 16, 1},
    {8, 64, 16, 8},
    {8, 64, 16, 16},
    {64, 64, 16, 1},
    // page
    {1, 64, 64},
    {8, 64, 64},
    {64, 64, 64},
    // distribution
    {8, 64, 16, 4, Spread::kClustered},
    {64, 64, 16, 4, Spread::kClustered},
    {1, 64, 16, 4, Spread::kHot},
    {8, 64, 16, 4, Spread::kHot},
    {64, 64, 16, 4, Spread::kHot},
    {8, 64, 16, 4, Spread::kRecorded},
};

// Lists alone: as many rows, over one pool that all requests share, with stamps.
StepWork lists(int64_t requests, int64_t kv_len, int64_t unit, int64_t listed, int64_t window) {
  return {.requests = requests,
          .kv_len = kv_len,
          .listed = listed,
          .unit = unit,
          .window = window,
          .index_only = true};
}

Case normalize(std::string reading, const StepWork& work) {
  return device_case(std::move(reading),
                     text(8 * work.requests, " lists of ", work.listed, " entries to an index set, of ",
                          work.kv_len / 1024, "K tokens, with stamps"),
                     work, device_normalize_reading);
}

}  // namespace

std::vector<Case> device_cases() {
  constexpr int64_t k64 = 65536, m1 = 1048576;
  std::vector<Case> all{
      normalize("normalize.tokens.512x2048.64k", lists(64, k64, 1, 2048, 0)),
      normalize("normalize.tokens.512x2048.1m", lists(64, m1, 1, 2048, 0)),
      normalize("normalize.tokens.8x2048.64k", lists(1, k64, 1, 2048, 0)),
      normalize("normalize.pages.512x264.64k", lists(64, k64, 16, 264, 0)),
      device_case("plan.512", "schedule of 512 rows of 264 pages, and what the host spends on a plan",
                  lists(64, k64, 16, 256, 256), device_plan_reading),
  };
  for (const int64_t b : {1, 8, 64})
    all.push_back(
        step(text("decode64k.b", b), "64K selected decode, " + of_requests(b), {.requests = b}, true));
  all.push_back(step("decode64k.hnd.b8", "64K selected decode, 8 requests, HND",
                     {.requests = 8, .layout = Layout::kHND}));
  all.push_back(step("decode64k.tokens2048.b64", "2048 single tokens of 64K, 64 requests",
                     {.requests = 64, .listed = 2048, .unit = 1, .window = 0}));
  for (const int64_t b : {1, 8, 64})
    all.push_back(step(text("decode64k.b", b, ".dense"), "every token of 64K, contiguous, " + of_requests(b),
                       {.requests = b, .dense = true}));
  for (const Cell& c : kCells) all.push_back(cell(c));
  std::vector<Case> prefill = device_prefill_cases();
  std::move(prefill.begin(), prefill.end(), std::back_inserter(all));
  return all;
}

Result<std::unique_ptr<DeviceLab>> start_device(Session* session, Record* record) {
  Result<std::unique_ptr<DeviceLab>> lab = DeviceLab::make();
  if (!lab.ok()) return lab;
  add_device_environment((*lab)->facts, &record->environment);
  session->say("ceilings of the device");
  const Result<DeviceCeilings> ceilings = measure_device_ceilings(**lab);
  if (!ceilings.ok()) return ceilings.status();
  session->device = lab->get();
  session->device_read_tb_s = ceilings->read_tb_s;
  record->ceilings = to_json(*ceilings);
  return lab;
}

void finish_device(const DeviceLab& lab, Record* record) {
  add_device_afterwards(lab.facts, &record->environment);
}

}  // namespace tamis::bench
