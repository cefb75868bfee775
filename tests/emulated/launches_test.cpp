// What a step asks of the CUDA runtime, counted where there is no device: the linker puts the functions below
// in the runtime's place (tests/CMakeLists.txt names them). Each test has device numbers of its own, since
// the library keeps what a device once answered.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "cuda/steps.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

struct Calls {
  int get_device = 0, attribute = 0, function = 0, launch = 0, early = 0;
  bool operator==(const Calls&) const = default;
};

// Devices that keep to the rules of the real ones as far as a launch meets them.
struct Runtime {
  std::mutex mutex;
  Calls calls;
  std::map<int, int> major, shared;                               // of a device; absent: 9, and 227 KB
  std::set<std::pair<int, const void*>> may;                      // kernels that may take all shared memory
  cudaError_t get_device = cudaSuccess, attribute = cudaSuccess;  // what it answers

  int of(const std::map<int, int>& numbers, int device, int otherwise) const {
    const auto found = numbers.find(device);
    return found == numbers.end() ? otherwise : found->second;
  }
};
Runtime runtime;
thread_local int current_device = 0;

}  // namespace
}  // namespace tamis

using tamis::current_device;
using tamis::runtime;

extern "C" {

cudaError_t __wrap_cudaGetDevice(int* device) {
  const std::lock_guard lock(runtime.mutex);
  ++runtime.calls.get_device;
  *device = current_device;
  return runtime.get_device;
}

cudaError_t __wrap_cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  const std::lock_guard lock(runtime.mutex);
  ++runtime.calls.attribute;
  if (attribute == cudaDevAttrComputeCapabilityMajor)
    *value = runtime.of(runtime.major, device, 9);
  else if (attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin)
    *value = runtime.of(runtime.shared, device, 227 * 1024);
  else
    return cudaErrorInvalidValue;
  return runtime.attribute;
}

cudaError_t __wrap_cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  std::this_thread::sleep_for(std::chrono::milliseconds(5));  // others get by, if anything lets them
  const std::lock_guard lock(runtime.mutex);
  ++runtime.calls.function;
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize ||
      value > runtime.of(runtime.shared, current_device, 227 * 1024))
    return cudaErrorInvalidValue;
  runtime.may.insert({current_device, kernel});
  return cudaSuccess;
}

cudaError_t __wrap_cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void**) {
  const std::lock_guard lock(runtime.mutex);
  ++runtime.calls.launch;
  runtime.calls.early += static_cast<int>(config->numAttrs);
  if (config->dynamicSmemBytes > 48 * 1024 && !runtime.may.contains({current_device, kernel}))
    return cudaErrorInvalidValue;
  return cudaSuccess;
}
}

namespace tamis {
namespace {

// A step whose buffers lie on the host, where nobody looks into them.
struct Prepared {
  Prepared()
      : made({.kv_len = {4096, 4096},
              .q_heads = 8,
              .kv_heads = 2,
              .head_dim = 128,
              .v_head_dim = 128,
              .dtype = DType::kBF16,
              .page_size = 16,
              .k = [](auto...) { return 0.0; },
              .v = [](auto...) { return 0.0; }}) {
    made.problem.candidates.unit = 16;
    made.fixed({{0, 1}, {2, 3}});
    Result<cuda::StepPlan> planned = cuda::plan_step(made.problem);
    if (!planned.ok()) throw std::runtime_error(planned.status().message());
    plan = std::move(*planned);
    const Shape s = *describe(made.problem);
    out.resize(static_cast<size_t>(s.total_q * s.q_heads * s.v_head_dim));
    view.out = mutable_view(out.data(), DType::kF32, {s.total_q, s.q_heads, s.v_head_dim});
    char* place = line;
    buffers = {place, place + 256, place + 512, plan.bytes};
  }
  Status step() const { return cuda::step(plan, made.problem, view, buffers, nullptr); }

  TestProblem made;
  cuda::StepPlan plan;
  std::vector<float> out;
  OutView view;
  alignas(256) char line[768];
  cuda::StepBuffers buffers;
};

// Of a first and of later steps: the device is asked for at each of the three launches, its two facts once,
// and decode alone needs leave for its shared memory.
constexpr Calls kFirst{.get_device = 3, .attribute = 2, .function = 1, .launch = 3, .early = 3};
constexpr Calls kLater{.get_device = 3, .attribute = 0, .function = 0, .launch = 3, .early = 3};

Calls calls_of(const Prepared& p, int device, Code code = Code::kOk) {
  current_device = device;
  runtime.calls = {};
  const Status s = p.step();
  EXPECT_EQ(s.code(), code) << s.message();
  return runtime.calls;
}

TEST(Launches, ADeviceIsAskedOnce) {
  const Prepared p;
  EXPECT_EQ(calls_of(p, 1), kFirst);
  EXPECT_EQ(calls_of(p, 1), kLater);
  EXPECT_EQ(calls_of(p, 2), kFirst) << "another device has its own facts, and leave is of a device";
  EXPECT_EQ(calls_of(p, 1), kLater);
  EXPECT_EQ(calls_of(p, 2), kLater);
}

TEST(Launches, BeyondTheDevicesThatAreKept) {
  const Prepared p;
  const Calls each{.get_device = 3, .attribute = 6, .function = 1, .launch = 3, .early = 3};
  for (const int device : {64, 100, 64}) EXPECT_EQ(calls_of(p, device), each) << device;
}

TEST(Launches, NoEarlyStartBefore90) {
  const Prepared p;
  runtime.major[11] = 8;
  EXPECT_EQ(calls_of(p, 11).early, 0);
  EXPECT_EQ(calls_of(p, 11).early, 0);
  EXPECT_EQ(calls_of(p, 12).early, 3);
}

TEST(Launches, ADeviceOfTooLittleSharedMemory) {
  const Prepared p;
  runtime.shared[21] = 99 * 1024;
  for (int i = 0; i < 2; ++i) EXPECT_EQ(calls_of(p, 21, Code::kUnsupported).launch, 2) << "all but decode";
  EXPECT_EQ(calls_of(p, 22), kFirst);
  EXPECT_EQ(calls_of(p, 21, Code::kUnsupported).function, 0);
}

// cudaDeviceReset, or another context of the device.
TEST(Launches, LeaveThatWasLostIsGivenAgain) {
  const Prepared p;
  EXPECT_EQ(calls_of(p, 31), kFirst);
  runtime.may.clear();
  const Calls again = calls_of(p, 31);
  EXPECT_EQ(again.function, 1);
  EXPECT_EQ(again.launch, 4);
  EXPECT_EQ(calls_of(p, 31), kLater);
}

TEST(Launches, ErrorsOfTheRuntimeAreNotKept) {
  const Prepared p;
  runtime.get_device = cudaErrorInitializationError;
  EXPECT_EQ(calls_of(p, 41, Code::kDeviceError).launch, 0);
  runtime.get_device = cudaSuccess;
  runtime.attribute = cudaErrorInitializationError;
  EXPECT_EQ(calls_of(p, 41, Code::kDeviceError).launch, 0);
  runtime.attribute = cudaSuccess;
  EXPECT_EQ(calls_of(p, 41), kFirst);
}

TEST(Launches, ThreadsOverDevices) {
  constexpr int kThreads = 8, kDevices = 3, kSteps = 200;
  const std::array<Prepared, kThreads> prepared;
  runtime.calls = {};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([t, &p = prepared[t]] {
      for (int i = 0; i < kSteps; ++i) {
        current_device = 51 + (t + i) % kDevices;
        const Status s = p.step();
        EXPECT_TRUE(s.ok()) << s.message();
      }
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(runtime.calls.launch, 3 * kThreads * kSteps) << "nothing was launched before it had leave";
  EXPECT_LE(runtime.calls.function, kThreads * kDevices);
}

}  // namespace
}  // namespace tamis
