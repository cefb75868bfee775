#include "core/pool.h"

#include <exception>
#include <new>

namespace tamis {

Context::Pool::Pool(int threads) : arenas_(threads) {
  workers_.reserve(threads - 1);
  try {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { serve(i); });
  } catch (const std::exception&) {
    // No more threads or memory to be had: those that started do the work, and threads() says how many.
  }
}

Context::Pool::~Pool() {
  stop_ = true;
  round_.fetch_add(1);
  round_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Context::Pool::serve(int worker) {
  for (uint32_t seen = 0;;) {
    round_.wait(seen);
    seen = round_.load();
    if (stop_) return;
    work(worker);
    if (running_.fetch_sub(1) == 1) running_.notify_one();
  }
}

void Context::Pool::work(int worker) {
  for (int64_t i = next_.fetch_add(1); i < count_; i = next_.fetch_add(1)) (*job_)(worker, i);
}

void Context::Pool::for_each(int64_t count, const std::function<void(int, int64_t)>& f) {
  job_ = &f;
  count_ = count;
  next_.store(0);
  if (workers_.empty() || count < 2) {
    work(0);
    return;
  }
  running_.store(static_cast<uint32_t>(workers_.size()));
  round_.fetch_add(1);
  round_.notify_all();
  work(0);
  for (uint32_t left = running_.load(); left != 0; left = running_.load()) running_.wait(left);
}

std::byte* Context::Pool::scratch(int worker, size_t bytes) {
  constexpr size_t line = 64;
  Arena& arena = arenas_[worker];
  if (arena.size < bytes + line) {
    arena.memory.reset(new (std::nothrow) std::byte[bytes + line]);
    arena.size = arena.memory ? bytes + line : 0;
  }
  if (!arena.memory) return nullptr;
  void* at = arena.memory.get();
  size_t space = arena.size;
  return static_cast<std::byte*>(std::align(line, bytes, at, space));
}

}  // namespace tamis
