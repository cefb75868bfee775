// The thread pool of a Context: a fixed set of threads that share out the indices of one loop at a time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "tamis/attention.h"

namespace tamis {

class Context::Pool {
 public:
  explicit Pool(int threads);
  ~Pool();

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls f(worker, i) once for each i in [0, count), in no order, and returns when all are done. The calling
  // thread is worker 0. f must not throw.
  void for_each(int64_t count, const std::function<void(int, int64_t)>& f);

  // Memory of one worker on a 64-byte line, at least `bytes`; kept and reused. Null when there is none to be
  // had.
  std::byte* scratch(int worker, size_t bytes);

 private:
  struct Arena {
    std::unique_ptr<std::byte[]> memory;
    size_t size = 0;
  };

  void serve(int worker);
  void work(int worker);

  std::vector<std::thread> workers_;
  std::vector<Arena> arenas_;  // [threads]
  const std::function<void(int, int64_t)>* job_ = nullptr;
  int64_t count_ = 0;
  std::atomic<int64_t> next_{0};
  std::atomic<uint32_t> round_{0};    // changes when a job starts, or at the end
  std::atomic<uint32_t> running_{0};  // workers that have not finished the job
  bool stop_ = false;
};

}  // namespace tamis
