#include "emulated/hopper/products.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "emulated/hopper/machine.h"
#include "emulated/hopper/operands.h"
#include "emulated/hopper/sanitizer.h"

namespace tamis::emulated {
namespace {

// Where element i of a thread's accumulators lies in d[64, columns] (hopper.cuh).
int place(unsigned thread, int i, int columns) {
  const int t = static_cast<int>(thread % 128);
  return (16 * (t / 32) + t % 32 / 4 + 8 * (i / 2 % 2)) * columns + 8 * (i / 4) + t % 4 * 2 + i % 2;
}

void make(Cta& cta, const Product& p) {
  const Request& r = p.request;
  const Operands from{cta, r.format, p.fenced};
  float a[64 * 16], b[16 * 128];
  if (r.registers) {
    read_registers(r.format, p.a_registers, a);
    from.lines(r.b, r.columns, b);
  } else {
    from.rows(r.a, 64, a, 16, 1);
    from.rows(r.b, r.columns, b, 1, r.columns);
  }
  if (!r.add) std::fill_n(p.into->value, 64 * r.columns, 0.f);
  multiply_add(p.into->value, a, b, r.columns);
}

// The oldest group of a warpgroup.
void make_group(Cta& cta, int64_t number) {
  Warpgroup& w = cta.groups[static_cast<size_t>(number)];
  for (; w.first < w.groups.front().end; ++w.first) {
    make(cta, w.products.front());
    w.products.pop_front();
  }
  w.groups.pop_front();
  ++w.done;
  for (Thread* t : std::exchange(w.waiting, {})) wake(*t);
}

Warpgroup& group_of(const Thread& self) {
  if (self.group == nullptr) fail("products need 128 threads, the warpgroup has fewer");
  return *self.group;
}

// What the products on d that are under way write to; null where there are none.
Accumulator* under_way(Thread& self, float* d, int columns) {
  for (ThreadProducts::Target& t : self.products.targets) {
    if (t.d == d && t.of->columns == columns) {
      t.group = self.products.committed;
      return t.of;
    }
    if (t.d < d + columns / 2 && d < t.d + t.of->columns / 2)
      fail("a product on accumulators that overlap others under way");
  }
  return nullptr;
}

Accumulator* take(Warpgroup& w, int columns) {
  auto unused =
      std::find_if(w.accumulators.begin(), w.accumulators.end(), [](const auto& a) { return a->free; });
  if (unused == w.accumulators.end()) unused = w.accumulators.insert(unused, std::make_unique<Accumulator>());
  (*unused)->columns = columns;
  (*unused)->free = false;
  return unused->get();
}

[[noreturn]] void disagree(const Request& p, const Request& q) {
  if (p.fresh != q.fresh) fail("threads of a warpgroup ask for a product on different accumulators");
  fail("threads of a warpgroup ask for different products: a %llx and %llx, b %llx and %llx, add %d and %d",
       static_cast<unsigned long long>(p.a), static_cast<unsigned long long>(q.a),
       static_cast<unsigned long long>(p.b), static_cast<unsigned long long>(q.b), p.add, q.add);
}

}  // namespace

void multiply(Format format, float* d, int columns, uint64_t a, const uint32_t* registers, uint64_t b,
              int add) {
  pause();
  Thread& self = *machine->now;
  Warpgroup& w = group_of(self);
  ThreadProducts& mine = self.products;
  if (!mine.fenced) fail("a product without products_fence() since the last products_wait()");
  Accumulator* const into = under_way(self, d, columns);
  const Request request{format, registers != nullptr, add != 0, into == nullptr, columns, a, b};
  const size_t at = static_cast<size_t>(mine.issued++ - w.first);
  if (at == w.products.size()) {
    Product& made = w.products.emplace_back();
    made.request = request;
    made.into = into != nullptr ? into : take(w, columns);
    made.fenced = 0;
  }
  Product& p = w.products[at];
  if (p.request != request) disagree(p.request, request);
  if (into != nullptr && p.into != into)
    fail("threads of a warpgroup ask for a product on different accumulators");
  p.fenced = std::max(p.fenced, self.fenced);
  if (into == nullptr) {
    ++p.into->holders;
    for (int i = 0; i < columns / 2; ++i) p.into->value[place(self.number, i, columns)] = d[i];
    std::memset(d, kPoison, static_cast<size_t>(columns / 2) * sizeof *d);
    mine.targets.push_back({d, mine.committed, p.into});
  }
  if (registers != nullptr) {
    std::memcpy(p.a_registers[self.number % 128], registers, 16);
    ThreadProducts::Source source{registers, {}, mine.committed};
    std::memcpy(source.seen, registers, 16);
    mine.sources.push_back(source);
  }
}

void products_fence() { machine->now->products.fenced = true; }

void products_commit() {
  Thread& self = *machine->now;
  Warpgroup& w = group_of(self);
  const size_t at = static_cast<size_t>(self.products.committed++ - w.done);
  if (at == w.groups.size()) w.groups.push_back({self.products.issued});
  Group& group = w.groups[at];
  if (group.end != self.products.issued) fail("threads of a warpgroup commit different products");
  if (++group.committed == 128) later(make_group, *self.cta, self.group - self.cta->groups.data());
  pause();
}

void products_wait(int pending) {
  pause();
  Thread& self = *machine->now;
  Warpgroup& w = group_of(self);
  ThreadProducts& mine = self.products;
  const int64_t wanted = mine.committed - pending;
  while (w.done < wanted) {
    w.waiting.push_back(&self);
    block({"products_wait()", Waiting::kProducts, static_cast<uint32_t>(wanted - 1), 0});
  }
  std::erase_if(mine.sources, [&](const ThreadProducts::Source& s) {
    if (s.group >= wanted) return false;
    if (!allowed(s.a, 16)) fail("registers of A went out of scope while a product read them");
    if (std::memcmp(s.a, s.seen, 16) != 0) fail("registers of A were changed while a product read them");
    return true;
  });
  std::erase_if(mine.targets, [&](const ThreadProducts::Target& t) {
    if (t.group >= wanted) return false;
    const int columns = t.of->columns;
    for (int i = 0; i < columns / 2; ++i) {
      uint32_t held;
      std::memcpy(&held, t.d + i, 4);
      if (held != ~0u) fail("an accumulator was written while a product on it was under way");
      t.d[i] = t.of->value[place(self.number, i, columns)];
    }
    t.of->free = --t.of->holders == 0;
    return true;
  });
  mine.fenced = false;
}

}  // namespace tamis::emulated
