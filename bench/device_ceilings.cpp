#include "device_ceilings.h"

#include <algorithm>
#include <utility>

#include "core/checks.h"
#include "data.h"

namespace tamis::bench {
namespace {

constexpr double kMega = 1e-6;  // bytes per us to TB/s
constexpr Protocol kBrief{.warmup = 10, .samples = 101};

double median_us(const DeviceSeries& d) { return summarize(d.series.us).median; }
double rate(int64_t bytes, const DeviceSeries& d) {
  return static_cast<double>(bytes) / median_us(d) * kMega;
}

// What the 64K case reads for 1, 8 and 64 requests: 264 pages of 16 tokens of 512 bytes for 8 heads each.
constexpr int64_t kAmounts[] = {17301504, 8 * 17301504, 64 * int64_t{17301504}};

// Random chunks of the whole pool, each turn others.
Result<ScatteredRead> scattered(DeviceLab& lab, const DeviceBuffer& pool, int64_t chunk, int64_t bytes,
                                Random* random) {
  const int64_t turns = lab.turns(bytes, 2, 64), count = bytes / chunk, rows = chunk / 256;
  std::vector<int32_t> at(static_cast<size_t>(turns * count));
  for (int32_t& place : at) place = static_cast<int32_t>(random->below(pool.bytes() / chunk) * rows);
  const auto at_bytes = static_cast<int64_t>(at.size() * sizeof(int32_t));
  Result<DeviceBuffer> places = DeviceBuffer::make(at_bytes);
  if (!places.ok()) return places.status();
  if (Status s = places->upload(at.data(), at_bytes); !s.ok()) return s;
  std::vector<DevicePieces> pieces;
  for (int64_t t = 0; t < turns; ++t)
    pieces.push_back({.base = pool.data(),
                      .at = static_cast<const int32_t*>(places->data()) + t * count,
                      .count = count,
                      .rows = rows});
  const Result<ReaderShape> shape = best_shape(lab, pieces);
  if (!shape.ok()) return shape.status();
  const int64_t nodes = nodes_of_graph(turns, static_cast<double>(bytes) * 0.25e-6);
  const auto series = measure_device(lab, {reader(lab, "scattered", pieces, *shape, nodes)}, kBrief);
  if (!series.ok()) return series.status();
  return ScatteredRead{.chunk = chunk, .bytes = bytes, .tb_s = rate(bytes, series->front()), .shape = *shape};
}

std::string label(const ScatteredRead& s) { return text(s.chunk, "B.", (s.bytes + (1 << 19)) >> 20, "MiB"); }

}  // namespace

DeviceContender reader(DeviceLab& lab, std::string name, std::vector<DevicePieces> turns, ReaderShape shape,
                       int64_t nodes) {
  const auto count = static_cast<int64_t>(turns.size());
  return {.name = std::move(name),
          .enqueue =
              [&lab, turns = std::move(turns), shape](int64_t turn) {
                return read_pieces(turns[static_cast<size_t>(turn)], shape, lab.facts.multiprocessors,
                                   lab.sink.data(), lab.stream);
              },
          .turns = count,
          .nodes = nodes};
}

Result<ReaderShape> best_shape(DeviceLab& lab, const std::vector<DevicePieces>& turns) {
  const auto count = static_cast<int64_t>(turns.size());
  const int64_t nodes = nodes_of_graph(count, static_cast<double>(turns[0].bytes()) * 0.25e-6);
  std::vector<DeviceContender> contenders;
  for (const ReaderShape& shape : kReaderShapes)
    contenders.push_back(reader(lab, text(shape.ctas, "x", shape.loads), turns, shape, nodes));
  const auto series = measure_device(lab, contenders, {.warmup = 3, .samples = 31});
  if (!series.ok()) return series.status();
  size_t best = 0;
  for (size_t i = 0; i < series->size(); ++i)
    if (median_us((*series)[i]) < median_us((*series)[best])) best = i;
  return kReaderShapes[best];
}

Result<DeviceCeilings> measure_device_ceilings(DeviceLab& lab) {
  constexpr int64_t range = int64_t{2} << 30, whole = 4 * range;
  Result<DeviceBuffer> pool = DeviceBuffer::make(whole);
  if (!pool.ok()) return pool.status();
  if (Status s = fill_bf16(&*pool, 3, lab.stream); !s.ok()) return s;
  auto* bytes = static_cast<std::byte*>(pool->data());
  const auto copy = [&](int64_t) { return copy_range(bytes, bytes + range, range / 2, lab.stream); };
  const auto read = [&](int64_t) {
    return read_range(bytes, range, lab.facts.multiprocessors, lab.sink.data(), lab.stream);
  };
  // One vector: the kernel is there and ends at once.
  const auto node = [&](int64_t) {
    return read_range(bytes, 16, lab.facts.multiprocessors, lab.sink.data(), lab.stream);
  };
  const auto series = measure_device(lab,
                                     {{.name = "copy", .enqueue = copy},
                                      {.name = "read", .enqueue = read},
                                      {.name = "node", .enqueue = node, .nodes = 100}},
                                     kBrief);
  if (!series.ok()) return series.status();
  DeviceCeilings found{.copy_tb_s = rate(range, (*series)[0]),
                       .read_tb_s = rate(range, (*series)[1]),
                       .node_us = median_us((*series)[2]),
                       .scattered = {}};
  Random random(4);
  for (const int64_t chunk : {256, 4096})
    for (const int64_t amount : kAmounts) {
      Result<ScatteredRead> one = scattered(lab, *pool, chunk, amount, &random);
      if (!one.ok()) return one.status();
      found.scattered.push_back(*one);
    }
  return found;
}

Json to_json(const DeviceCeilings& c) {
  Json scattered = Json::object(), shapes = Json::object();
  for (const ScatteredRead& s : c.scattered) {
    scattered[label(s)] = s.tb_s;
    shapes[label(s)] = {{"ctas_a_multiprocessor", s.shape.ctas}, {"loads_in_flight", s.shape.loads}};
  }
  return {{"copy_tb_s", c.copy_tb_s},      {"read_tb_s", c.read_tb_s},   {"gemm_f32_tflop_s", nullptr},
          {"gemm_bf16_tflop_s", nullptr},  {"graph_node_us", c.node_us}, {"scattered_read_tb_s", scattered},
          {"scattered_read_shape", shapes}};
}

}  // namespace tamis::bench
