// What both programs of this folder have in common: errors end them, memory of the device is owned.
#pragma once

#include <cuda_runtime_api.h>
#include <tamis/cuda.h>

#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

inline void check(cudaError_t code) {
  if (code == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(code));
  std::exit(1);
}

inline void check(const tamis::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s: %s\n", tamis::code_name(status.code()), status.message().c_str());
  std::exit(1);
}

// Memory of the device: the caller's, as all memory of a step is.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(int64_t count) : count_(count) { check(cudaMalloc(&data_, bytes())); }
  explicit DeviceArray(const std::vector<T>& from) : DeviceArray(static_cast<int64_t>(from.size())) {
    check(cudaMemcpy(data_, from.data(), bytes(), cudaMemcpyHostToDevice));
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;

  T* data() const { return static_cast<T*>(data_); }
  size_t bytes() const { return sizeof(T) * static_cast<size_t>(count_); }
  void write(const std::vector<T>& from, cudaStream_t stream) {
    check(cudaMemcpyAsync(data_, from.data(), bytes(), cudaMemcpyHostToDevice, stream));
  }
  std::vector<T> read() const {
    std::vector<T> to(static_cast<size_t>(count_));
    check(cudaMemcpy(to.data(), data_, bytes(), cudaMemcpyDeviceToHost));
    return to;
  }

 private:
  void* data_ = nullptr;
  int64_t count_;
};

inline uint16_t bf16(float x) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16); }

// V in which every number of a slot is the slot's own; bf16 holds them exactly up to 256.
inline std::vector<uint16_t> numbered_slots(int64_t slots, int64_t numbers_a_slot) {
  std::vector<uint16_t> v(static_cast<size_t>(slots * numbers_a_slot));
  for (size_t i = 0; i < v.size(); ++i)
    v[i] = bf16(static_cast<float>(i / static_cast<size_t>(numbers_a_slot)));
  return v;
}
