#include "emulated/hopper/scheduler.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "emulated/hopper/machine.h"
#include "emulated/hopper/threads.h"

EmulatedIndex threadIdx, blockIdx, blockDim, gridDim;

namespace tamis::emulated {

Machine* machine = nullptr;

namespace {

// Ends the run: no stack but the caller's is entered again.
[[noreturn]] void leave() {
  Fiber& from = machine->now != nullptr ? machine->now->fiber : machine->home;
  Fiber::change(from, machine->caller, true);
  std::abort();
}

void describe(const Thread& t, char* text, size_t room) {
  const Waiting& w = t.waiting;
  if (t.ended || !t.waits) {
    std::snprintf(text, room, t.ended ? "have ended" : "can go on");
    return;
  }
  if (w.kind == Waiting::kWarp) {
    for (const Meeting& m : t.warp->open)
      if (m.mask == w.a) {
        std::snprintf(text, room, "%s of lanes %08x, of which %08x came", w.what, w.a, m.arrived);
        return;
      }
  }
  if (w.kind == Waiting::kBarrier) {
    const Barrier& b = t.cta->barriers.at(w.a);
    std::snprintf(text, room,
                  "barrier %u, parity %u (in phase %llu; %u of %u arrivals and %lld bytes missing)", w.a, w.b,
                  static_cast<unsigned long long>(b.phase), b.pending, b.expected,
                  static_cast<long long>(b.bytes));
    return;
  }
  if (w.kind == Waiting::kProducts) {
    const int64_t at = w.a - t.group->done;
    const int committed = at >= 0 && at < static_cast<int64_t>(t.group->groups.size())
                              ? t.group->groups[static_cast<size_t>(at)].committed
                              : 0;
    std::snprintf(text, room, "%s: group %u, which %d of 128 threads committed", w.what, w.a, committed);
    return;
  }
  std::snprintf(text, room, "%s", w.what);
}

// Every live CTA, by runs of threads that wait for the same.
void tell_states(std::string& to) {
  char text[256], next[256], line[400];
  for (const auto& cta : machine->ctas) {
    const auto threads = static_cast<unsigned>(machine->grid.threads);
    for (unsigned first = 0, end; first < threads; first = end) {
      describe(cta->threads[first], text, sizeof text);
      for (end = first + 1; end < threads; ++end) {
        describe(cta->threads[end], next, sizeof next);
        if (std::strcmp(text, next) != 0) break;
      }
      std::snprintf(line, sizeof line, "\n  CTA (%u, %u), threads %u-%u: %s", cta->x, cta->y, first, end - 1,
                    text);
      to += line;
    }
  }
}

// The run cannot go on, or must not.
[[noreturn]] void stop(const char* why) {
  machine->report.error = why;
  tell_states(machine->report.error);
  leave();
}

uint64_t draw_word() {  // splitmix64
  uint64_t z = machine->random += 0x9E3779B97F4A7C15;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
  z = (z ^ z >> 27) * 0x94D049BB133111EB;
  return z ^ z >> 31;
}

void happen() {
  const Event event = machine->events.front();
  std::pop_heap(machine->events.begin(), machine->events.end());
  machine->events.pop_back();
  event.act(*event.cta, event.number);
}

// Warps have priorities that change now and then, so that some run far ahead of others (the idea of
// probabilistic concurrency testing, Burckhardt et al., ASPLOS 2010); how much they count differs from seed
// to seed.
Thread* pick() {
  Machine& m = *machine;
  if (static_cast<int64_t>(++m.steps) > m.grid.step_limit) stop("no end within the limit of steps");
  while (!m.events.empty() && (m.events.front().due <= m.steps || m.ready.empty())) happen();
  if (m.ready.empty()) stop("deadlock: no thread can go on");
  size_t best = draw(static_cast<uint32_t>(m.ready.size()));
  for (uint32_t i = 1; i < m.looks; ++i) {
    const size_t other = draw(static_cast<uint32_t>(m.ready.size()));
    if (m.ready[other]->warp->priority > m.ready[best]->warp->priority) best = other;
  }
  Thread* thread = m.ready[best];
  m.ready[best] = m.ready.back();
  m.ready.pop_back();
  if (m.looks > 1 && draw(512) == 0) thread->warp->priority = draw(1u << 30);
  return thread;
}

void enter(Thread& t) {
  machine->now = &t;
  threadIdx.x = t.number;
  blockIdx.x = t.cta->x;
  blockIdx.y = t.cta->y;
}

// From the running thread to one that is drawn, which may be itself.
void go_on(Thread& from) {
  Thread* next = pick();
  if (next == &from) return;
  enter(*next);
  Fiber::change(from.fiber, next->fiber, false);
}

void thread_main() {
  Fiber::arrived();
  Machine& m = *machine;
  Thread& self = *m.now;
  m.body(self.cta->arena.memory());
  if (!self.products.targets.empty() || self.products.issued > 0)
    if (self.group->done < self.products.committed || !self.products.targets.empty())
      fail("a thread ended while products were under way");
  copy_wait_all();
  self.ended = true;
  --self.cta->alive;
  sync_without(*self.cta);
  if (self.cta->alive == 0) {
    m.finished = self.cta;
    m.now = nullptr;
    Fiber::change(self.fiber, m.home, true);
  }
  Thread* next = pick();
  enter(*next);
  Fiber::change(self.fiber, next->fiber, true);
  std::abort();
}

void start_cta() {
  Machine& m = *machine;
  const int threads = m.grid.threads;
  m.ctas.push_back(std::make_unique<Cta>(m.grid.shared_bytes, threads));
  Cta& cta = *m.ctas.back();
  cta.x = static_cast<unsigned>(m.started % m.grid.ctas_x);
  cta.y = static_cast<unsigned>(m.started / m.grid.ctas_x);
  ++m.started;
  cta.of_cluster = &cta.cluster;
  if (m.grid.cluster == 2 && cta.x % 2 == 1) {
    cta.peer = m.ctas[m.ctas.size() - 2].get();
    cta.peer->peer = &cta;
    cta.of_cluster = cta.peer->of_cluster;
  }
  for (Warp& w : cta.warps) w.priority = draw(1u << 30);
  for (int i = 0; i < threads; ++i) {
    cta.threads[i].fiber.prepare(thread_main);
    m.ready.push_back(&cta.threads[i]);
  }
}

void end_cta(Cta& cta) {
  for (const Box& box : cta.boxes)
    if (box.under_way) fail("CTA (%u, %u) ended while a box was under way", cta.x, cta.y);
  for (const auto& [at, barrier] : cta.barriers)
    if (barrier.bytes != 0)
      fail("CTA (%u, %u) ended while barrier %u missed %lld bytes", cta.x, cta.y, at,
           static_cast<long long>(barrier.bytes));
  if (cta.peer != nullptr) cta.peer->peer = nullptr;
  if (!cta.arena.intact()) fail("CTA (%u, %u) wrote behind its shared memory", cta.x, cta.y);
  std::erase_if(machine->ctas, [&](const auto& alive) { return alive.get() == &cta; });
}

void home_main() {
  Fiber::arrived();
  Machine& m = *machine;
  const int64_t all = int64_t{m.grid.ctas_x} * m.grid.ctas_y;
  while (true) {
    while (m.started < all && static_cast<int>(m.ctas.size()) + m.grid.cluster <= m.grid.resident)
      for (int i = 0; i < m.grid.cluster; ++i) start_cta();
    if (m.ctas.empty()) leave();
    Thread* next = pick();
    enter(*next);
    Fiber::change(m.home, next->fiber, false);
    end_cta(*std::exchange(m.finished, nullptr));
  }
}

}  // namespace

Cta::Cta(int64_t shared_bytes, int count)
    : arena(shared_bytes),
      alive(count),
      threads(new Thread[static_cast<size_t>(count)]),
      warps(static_cast<size_t>(count) / 32),
      groups(static_cast<size_t>(count) / 128),
      proxies(shared_bytes) {
  for (int i = 0; i < count; ++i) {
    Thread& t = threads[i];
    t.number = static_cast<unsigned>(i);
    t.cta = this;
    t.warp = &warps[static_cast<size_t>(i) / 32];
    t.warp->lane[i % 32] = &t;
    if (static_cast<size_t>(i) / 128 < groups.size()) t.group = &groups[static_cast<size_t>(i) / 128];
  }
}

Machine::Machine(const Grid& g, const std::function<void(char*)>& b)
    : grid(g), body(b), random(g.seed * 0xD1342543DE82EF95 + 1), looks(1) {
  constexpr uint32_t kLooks[] = {1, 2, 4, 16};
  random ^= random >> 29;
  looks = kLooks[g.seed % 4];
}

void fail(const char* format, ...) {
  char text[600];
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  machine->report.error = text;
  if (machine->now != nullptr) {
    const Thread& t = *machine->now;
    std::snprintf(text, sizeof text, " [CTA (%u, %u), thread %u ran]", t.cta->x, t.cta->y, t.number);
    machine->report.error += text;
  }
  leave();
}

void block(const Waiting& why) {
  Thread& self = *machine->now;
  self.waiting = why;
  self.waits = true;
  go_on(self);
}

void wake(Thread& thread) {
  if (!std::exchange(thread.waits, false)) return;
  machine->ready.push_back(&thread);
}

void yield() {
  machine->ready.push_back(machine->now);
  go_on(*machine->now);
}

void pause() {
  if (draw(8) == 0) yield();
}

uint32_t draw(uint32_t below) { return static_cast<uint32_t>((draw_word() >> 32) * below >> 32); }

void later(void (*act)(Cta& cta, int64_t number), Cta& cta, int64_t number) {
  Machine& m = *machine;
  uint64_t due = m.steps;
  switch (draw(4)) {
    case 0:
      break;  // at the next change of threads
    case 1:
      due += draw(1000);
      break;  // soon
    case 2:
      due += draw(1 << draw(20));
      break;  // later
    default:
      due += (uint64_t{1} << 50) + draw(1000);
      break;  // when nobody can go on
  }
  m.events.push_back({due, act, &cta, number});
  std::push_heap(m.events.begin(), m.events.end());
}

Report run(const Grid& grid, const std::function<void(char* shared)>& body) {
  if (grid.threads < 32 || grid.threads > 1024 || grid.threads % 32 != 0)
    return {"a CTA has 32 to 1024 threads, in warps of 32"};
  if (grid.shared_bytes < 0 || grid.shared_bytes > Arena::kMost)
    return {"a CTA cannot have that much shared memory"};
  if (grid.cluster < 1 || grid.cluster > 2 || grid.ctas_x % grid.cluster != 0 || grid.resident < grid.cluster)
    return {"a cluster has 1 or 2 CTAs, a grid whole ones, and all of one are alive at a time"};
  if (machine != nullptr) return {"one run at a time"};
  Machine here(grid, body);
  machine = &here;
  blockDim = {static_cast<unsigned>(grid.threads), 1, 1};
  gridDim = {static_cast<unsigned>(grid.ctas_x), static_cast<unsigned>(grid.ctas_y), 1};
  here.home.prepare(home_main);
  Fiber::change(here.caller, here.home, false);
  here.report.steps = static_cast<int64_t>(here.steps);
  machine = nullptr;
  return std::move(here.report);
}

}  // namespace tamis::emulated
