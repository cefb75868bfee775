// Memory with properties that a vector cannot have: far larger than the machine's, or with a wall behind it.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

namespace tamis::testing {

// `bytes` of zeros of which only the touched pages cost memory. Null data when the system refuses.
class SparseBuffer {
 public:
  explicit SparseBuffer(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {
    void* p =
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    data_ = p == MAP_FAILED ? nullptr : p;
  }
  ~SparseBuffer() {
    if (data_) munmap(data_, bytes_);
  }
  SparseBuffer(const SparseBuffer&) = delete;

  void* data() const { return data_; }

 private:
  size_t bytes_;
  void* data_;
};

// A copy of `bytes` bytes whose end is the end of readable memory: a read behind it faults.
class WalledCopy {
 public:
  WalledCopy(const void* from, size_t bytes) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    room_ = (bytes + page - 1) / page * page;
    size_ = room_ + page;
    void* p = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return;
    base_ = static_cast<unsigned char*>(p);
    data_ = base_ + room_ - bytes;
    std::memcpy(data_, from, bytes);
    mprotect(base_ + room_, page, PROT_NONE);
  }
  ~WalledCopy() {
    if (base_) munmap(base_, size_);
  }
  WalledCopy(const WalledCopy&) = delete;

  const void* data() const { return data_; }

 private:
  unsigned char *base_ = nullptr, *data_ = nullptr;
  size_t room_ = 0, size_ = 0;
};

}  // namespace tamis::testing
