// Fills a VectorTable. Included by one .cpp per instruction set, which names it a namespace of its own: the
// library's has the same functions under other compiler options.
#pragma once

#include "kernels/cpu/pack.h"
#include "kernels/cpu/panel.h"
#include "kernels/cpu/vec.h"
#include "kernels/vectors_table.h"

namespace tamis::cpu::TAMIS_ISA {

// Calls f with the type of an element.
template <class F>
void with_type(Element element, const F& f) {
  switch (element) {
    case Element::kF32:
      return f(F32{});
    case Element::kF16:
      return f(F16{});
    case Element::kBF16:
      return f(BF16{});
    case Element::kInt8:
      return f(Int8{});
    case Element::kE4M3:
      return f(E4M3{});
    case Element::kE5M2:
      return f(E5M2{});
    case Element::kInt4:
      return f(Int4{});
  }
}

template <class Step>
void panel_case(const PanelCase& x) {
  using Unit = typename Step::Unit;
  const PanelLeft<Unit> a{static_cast<const Unit*>(x.a), x.row_stride, x.step_stride};
  const PanelRight<Unit> b{static_cast<const Unit*>(x.b), x.b_stride, x.steps};
  if (x.start == 0) return panel<Step, Start::kZero>(a, x.rows, b, x.scale, x.c, x.c_stride, x.columns);
  if (x.start == 1) return panel<Step, Start::kScaled>(a, x.rows, b, x.scale, x.c, x.c_stride, x.columns);
  panel<Step, Start::kAdd>(a, x.rows, b, x.scale, x.c, x.c_stride, x.columns);
}

constexpr VectorTable vectors(const char* name) {
  VectorTable t{};
  t.name = name;
  t.width = W;
  t.widen = [](Element element, const void* from, float* to) {
    with_type(element, [&](auto type) { store(to, widen(type, from)); });
  };
  t.widen_some = [](Element element, const void* from, int count, float* to) {
    with_type(element, [&](auto type) { store(to, widen_some(type, from, count)); });
  };
  t.widen_row = [](const Side& side, const void* data, const float* scale, float* to) {
    widen_row(side, Row{static_cast<const char*>(data), scale}, to);
  };
  t.transpose_square = [](uint32_t* square) {
    UintVec x[W];
    memcpy(x, square, sizeof x);
    transpose_square(x);
    memcpy(square, x, sizeof x);
  };
  t.transpose_units = [](const char* const* rows, int count, int64_t units, int columns, uint32_t* to,
                         int64_t stride) { transpose_units(rows, count, units, columns, to, stride); };
  t.panel = &panel_case<F32Step>;
  t.exp_negative = [](const float* x, float* to) { store(to, exp_negative(load(x))); };
  t.tanh = [](const float* x, float* to) { store(to, tanh(load(x))); };
  t.sum = [](const float* x) { return sum(load(x)); };
  t.max_of = [](const float* x) { return max_of(load(x)); };
  t.sums = [](const float* x, float* to) {
    const Vec4 four = sums(load(x), load(x + W), load(x + 2 * W), load(x + 3 * W));
    memcpy(to, &four, sizeof four);
  };
  t.select = [](uint32_t bits, const float* yes, const float* no, float* to) {
    store(to, select(lanes(bits), load(yes), load(no)));
  };
  t.pack_bits = [](uint64_t word, uint64_t mask) { return pack_bits(word, mask); };
  t.bad_rows = [](const float* rows, int64_t stride, int count, int64_t dim) {
    return bad_rows(rows, stride, count, dim);
  };
#if defined(__AVX512BF16__)
  t.panel_pairs = &panel_case<BF16Step>;
  t.join_pairs = [](const uint16_t* const* rows, int count, int64_t dim, uint32_t* to, int64_t stride) {
    Row row[kTile];
    for (int c = 0; c < count; ++c) row[c] = {reinterpret_cast<const char*>(rows[c]), nullptr};
    Side side{};
    side.element = Element::kBF16;
    side.head_dim = dim;
    return join_pairs(side, Columns{row, count, nullptr, 0, 0, 0}, to, stride);
  };
  t.transpose_pairs = [](const uint16_t* const* rows, int count, int64_t dim, uint32_t* to) {
    Row row[kTile];
    for (int c = 0; c < count; ++c) row[c] = {reinterpret_cast<const char*>(rows[c]), nullptr};
    Side side{};
    side.element = Element::kBF16;
    side.head_dim = dim;
    transpose_pairs(side, Columns{row, count, nullptr, 0, 0, 0}, to);
  };
#endif
  return t;
}

}  // namespace tamis::cpu::TAMIS_ISA
