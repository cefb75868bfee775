// Which bytes of shared memory were written in a way that products do not see before fence_async(). Known of
// cp.async and store_matrix(); ordinary stores leave no trace.
#pragma once

#include <cstdint>
#include <vector>

namespace tamis::emulated {

struct Thread;

class Proxies {
 public:
  explicit Proxies(int64_t shared_bytes);

  // By the thread of this number; or by the copy engine, which needs no fence.
  void written(uint32_t address, uint32_t bytes, unsigned thread);
  void written_by_engine(uint32_t address, uint32_t bytes);

  // Who wrote the 16 bytes at this address, where neither that thread nor a reader (`fenced`: when) had a
  // fence since then; null otherwise.
  const Thread* unfenced(uint32_t address, const Thread* threads, uint32_t fenced) const;

 private:
  struct Mark {
    uint32_t time = 0;  // 0: nothing to fear
    uint32_t thread = 0;
  };
  std::vector<Mark> marks_;  // of 16 bytes each
};

// Of the thread that runs.
void fence_async();

}  // namespace tamis::emulated
