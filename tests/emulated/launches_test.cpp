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
#include <tuple>
#include <vector>

#include "cuda/steps.h"

namespace tamis {
namespace {

using namespace testing;  // NOLINT: the vocabulary of support/

struct Calls {
  int get_device = 0, attribute = 0, code = 0, function = 0, launch = 0, early = 0;
  bool operator==(const Calls&) const = default;
};

// What was launched last: of a step that is decode.
struct Launched {
  const void* kernel = nullptr;
  size_t shared_bytes = 0;
};

// Devices that keep to the rules of the real ones as far as a launch meets them.
struct Runtime {
  std::mutex mutex;
  Calls calls;
  Launched last;
  std::map<int, int> major, shared;                               // of a device; absent: 9, and 227 KB
  std::map<int, int> ptx;                                         // of the code it runs; absent: 90
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

cudaError_t __wrap_cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  const std::lock_guard lock(runtime.mutex);
  ++runtime.calls.code;
  *attributes = {};
  attributes->ptxVersion = runtime.of(runtime.ptx, current_device, 90);
  attributes->binaryVersion = 10 * runtime.of(runtime.major, current_device, 9);
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
  const int most = runtime.of(runtime.shared, current_device, 227 * 1024);
  if (config->dynamicSmemBytes > static_cast<size_t>(most) ||
      (config->dynamicSmemBytes > 48 * 1024 && !runtime.may.contains({current_device, kernel})))
    return cudaErrorInvalidValue;
  runtime.last = {kernel, config->dynamicSmemBytes};
  return cudaSuccess;
}
}

namespace tamis {
namespace {

// What tells the kernels of decode apart.
struct Kind {
  DType dtype = DType::kBF16;
  int64_t head_dim = 128, group = 4;  // above 8: CTAs of 16 columns, where there are such
  bool many = false;                  // a list for each query head
  cuda::StepOptions options{};
};

// A step whose buffers lie somewhere: nobody looks into them.
struct Prepared {
  explicit Prepared(const Kind& kind = {})
      : made({.kv_len = {64, 64},
              .q_heads = 2 * kind.group,
              .kv_heads = 2,
              .head_dim = kind.head_dim,
              .v_head_dim = kind.head_dim,
              .dtype = kind.dtype,
              .page_size = 16,
              .k = [](auto...) { return 0.0; },
              .v = [](auto...) { return 0.0; }}) {
    made.problem.candidates.unit = 16;
    if (kind.many) made.problem.candidates.index_heads = 2 * kind.group;
    made.fixed(Rows(static_cast<size_t>(2 * made.problem.candidates.index_heads), {0, 1}));
    Result<cuda::StepPlan> planned = cuda::plan_step(made.problem, kind.options);
    if (!planned.ok()) throw std::runtime_error(planned.status().message());
    plan = std::move(*planned);
    const Shape s = *describe(made.problem);
    out.resize(static_cast<size_t>(s.total_q * s.q_heads * s.v_head_dim));
    view.out = mutable_view(out.data(), DType::kF32, {s.total_q, s.q_heads, s.v_head_dim});
    place();
  }
  void place() {  // one behind the other
    const uintptr_t control = uintptr_t{1} << 20,
                    index = control + static_cast<uintptr_t>(plan.bytes.control),
                    scratch = index + static_cast<uintptr_t>(plan.bytes.index);
    const auto at = [](uintptr_t address) { return reinterpret_cast<void*>(address); };
    buffers = {at(control), at(index), at(scratch), plan.bytes};
  }
  Status step() const { return cuda::step(plan, made.problem, view, buffers, nullptr); }

  TestProblem made;
  cuda::StepPlan plan;
  std::vector<float> out;
  OutView view;
  cuda::StepBuffers buffers;
};

// Of a first and of later steps: the device is asked for at each of the three launches, its two facts once,
// what its code was compiled for once a kernel, and decode alone needs leave for its shared memory.
constexpr Calls kFirst{.get_device = 3, .attribute = 2, .code = 3, .function = 1, .launch = 3, .early = 3};
constexpr Calls kLater{.get_device = 3, .attribute = 0, .code = 0, .function = 0, .launch = 3, .early = 3};

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
  const Calls each{.get_device = 3, .attribute = 6, .code = 3, .function = 1, .launch = 3, .early = 3};
  for (const int device : {64, 100, 64}) EXPECT_EQ(calls_of(p, device), each) << device;
}

TEST(Launches, NoEarlyStartBefore90) {
  const Prepared p;
  runtime.major[11] = 8;
  EXPECT_EQ(calls_of(p, 11).early, 0);
  EXPECT_EQ(calls_of(p, 11).early, 0);
  EXPECT_EQ(calls_of(p, 12).early, 3);
  EXPECT_EQ(calls_of(p, 11).code, 0) << "nothing to ask";
}

// Code that a device has compiled for itself from PTX of 8.0 does not wait for its predecessor.
TEST(Launches, NoEarlyStartOfCodeThatDoesNotWait) {
  const Prepared p;
  for (const auto& [device, major] : {std::pair{13, 9}, {14, 10}, {15, 12}}) {
    runtime.major[device] = major;
    runtime.ptx[device] = 80;
    const Calls first = calls_of(p, device), later = calls_of(p, device);
    EXPECT_EQ(first.early + later.early, 0) << major;
    EXPECT_EQ(first.code, 3);
    EXPECT_EQ(later.code, 0);
  }
  runtime.major[16] = 10;
  runtime.ptx[16] = 100;
  EXPECT_EQ(calls_of(p, 16).early, 3);
  EXPECT_EQ(calls_of(p, 13).early, 0) << "what is known is of a device";
  EXPECT_EQ(calls_of(p, 16), kLater);
}

// What a CTA may have on devices of compute capability 8.6, 8.9 and 12.x; and less than on any from 8.0 on.
constexpr int k99 = 99 * 1024, kLess = 64 * 1024;

TEST(Launches, ADeviceOfTooLittleSharedMemory) {
  const Prepared p;
  runtime.shared[21] = kLess;
  for (int i = 0; i < 2; ++i) EXPECT_EQ(calls_of(p, 21, Code::kUnsupported).launch, 2) << "all but decode";
  EXPECT_EQ(calls_of(p, 22), kFirst);
  EXPECT_EQ(calls_of(p, 21, Code::kUnsupported).function, 0);
}

// Every kernel of decode, on a device that has room for it and on one that has not.
TEST(Launches, RingsAreAsLongAsTheDeviceHasRoom) {
  runtime.shared[61] = k99;
  std::map<std::tuple<DType, int64_t, int32_t>, const void*> short_kernels;
  for (const DType dtype : {DType::kBF16, DType::kF16})
    for (const int64_t head_dim : {64, 128, 256})
      for (const int64_t group : {4, 16})
        for (const bool many : {false, true})
          for (const cuda::Load load : {cuda::Load::kBlocks, cuda::Load::kTokens}) {
            SCOPED_TRACE(::testing::Message()
                         << dtype_name(dtype) << ", head size " << head_dim << ", group " << group
                         << (many ? ", many lists, " : ", one list, ") << cuda::load_name(load));
            Kind kind{dtype, head_dim, group, many, {.load = load}};
            const Prepared p(kind);
            EXPECT_EQ(p.plan.columns, group == 16 && head_dim <= 128 ? 16 : 8);
            EXPECT_EQ(calls_of(p, 62).launch, 3);
            const Launched full = runtime.last;
            EXPECT_GT(full.shared_bytes, size_t{k99});
            EXPECT_EQ(calls_of(p, 61).launch, 3);
            const Launched least = runtime.last;
            EXPECT_LE(least.shared_bytes, size_t{k99 - 1024});
            EXPECT_NE(least.kernel, full.kernel);
            // One for all kinds of lists and loads.
            const void*& known = short_kernels[{dtype, head_dim, p.plan.columns}];
            EXPECT_TRUE(known == nullptr || known == least.kernel);
            known = least.kernel;

            kind.options.ring = cuda::Ring::kShort;
            const Prepared asked(kind);
            EXPECT_EQ(calls_of(asked, 62).launch, 3);
            EXPECT_EQ(runtime.last.kernel, least.kernel);
            kind.options.ring = cuda::Ring::kFull;
            EXPECT_EQ(calls_of(Prepared(kind), 62).launch, 3);
            EXPECT_EQ(runtime.last.kernel, full.kernel);
            EXPECT_EQ(calls_of(Prepared(kind), 61, Code::kUnsupported).launch, 2) << "all but decode";
          }
  EXPECT_EQ(short_kernels.size(), 10u);
}

TEST(Launches, ShortRingsCostNoCall) {
  runtime.shared[63] = k99;
  const Prepared p;
  EXPECT_EQ(calls_of(p, 63), kFirst);
  EXPECT_EQ(calls_of(p, 63), kLater);
  runtime.may.clear();
  EXPECT_EQ(calls_of(p, 63).function, 1);
  EXPECT_EQ(calls_of(p, 63), kLater);
}

TEST(Launches, WhatDoesNotFitIsRefusedByName) {
  runtime.shared[64] = k99;
  runtime.shared[65] = kLess;
  using cuda::Ring;
  const struct {
    Ring ring;
    int device;
    const char* words;
  } refusals[] = {{Ring::kFull, 64, "nearest: short"},
                  {Ring::kFull, 65, "ring: full ones need"},
                  {Ring::kShort, 65, "decode: needs"},
                  {Ring::kAuto, 65, "decode: needs"}};
  for (const auto& r : refusals) {
    const Prepared p({.options = {.ring = r.ring}});
    EXPECT_EQ(calls_of(p, r.device, Code::kUnsupported).launch, 2) << "all but decode";
    EXPECT_EQ(runtime.calls.function, 0);
    const Status s = p.step();
    EXPECT_TRUE(says(s, r.words));
    EXPECT_TRUE(says(s, "bytes of shared memory a CTA, this device has"));
  }
}

// Elements are read and written whole: what does not start on one is refused by its name, before any launch.
TEST(Launches, MemoryStartsOnAnElement) {
  const std::vector<int32_t> slots(2, 0);
  const auto shifted = [](const void* data, uintptr_t bytes) {
    return reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(data) + bytes);
  };
  const auto expect_refused = [](const char* name, const Prepared& p, const OutView& view) {
    runtime.calls = {};
    const Status s = cuda::step(p.plan, p.made.problem, view, p.buffers, nullptr);
    EXPECT_STREQ(code_name(s.code()), "invalid_argument") << name;
    EXPECT_EQ(s.message().rfind(std::string(name) + ": ", 0), 0u) << s.message();
    EXPECT_EQ(runtime.calls.launch, 0);
  };
  current_device = 68;
  for (const auto& [name, member] : {std::pair{"out", &OutView::out}, {"lse", &OutView::lse}}) {
    Prepared p;
    p.view.lse = mutable_view(p.out.data(), DType::kF32, {2, 8});
    (p.view.*member).data = const_cast<void*>(shifted(p.out.data(), 2));
    expect_refused(name, p, p.view);
  }
  const auto of_slots = [&](const char* name, TensorView SlotView::*member) {
    Prepared p;
    p.view.slots = {.slot = dense_view(slots.data(), DType::kI32, {2}),
                    .generation = dense_view(slots.data(), DType::kU32, {2}),
                    .live_generation = dense_view(slots.data(), DType::kU32, {2})};
    (p.view.slots.*member).data = shifted(slots.data(), 1);
    expect_refused(name, p, p.view);
  };
  of_slots("slot", &SlotView::slot);
  of_slots("generation", &SlotView::generation);
  of_slots("live_generation", &SlotView::live_generation);
  const auto of_problem = [&](const char* name, auto tensor) {
    Prepared p;
    TensorView& t = tensor(p.made.problem);
    t.data = shifted(t.data, 2);
    expect_refused(name, p, p.view);
  };
  of_problem("cu_q", [](Problem& p) -> TensorView& { return p.query.cu_q; });
  of_problem("kv_len", [](Problem& p) -> TensorView& { return p.cache.kv_len; });
  of_problem("page_table", [](Problem& p) -> TensorView& { return p.cache.page_table; });
  of_problem("cand_indices", [](Problem& p) -> TensorView& { return p.candidates.indices; });
}

// Entries are staged where the bitmaps of long requests leave room: the limits of docs/device_step.md hold
// for lists of any width.
TEST(Launches, TheLongestRequestsWithWideLists) {
  runtime.shared[66] = k99;
  const auto planned = [](int64_t tokens, int64_t width) {
    Prepared p;
    p.made.problem.cache.page_table.shape[1] = tokens / 16;
    p.made.problem.candidates.indices.shape[1] = width;
    Result<cuda::StepPlan> plan = cuda::plan_step(p.made.problem, {.block = 16});
    if (plan.ok()) p.plan = std::move(*plan);
    p.place();
    return std::pair{plan.ok(), cuda::step(p.plan, p.made.problem, p.view, p.buffers, nullptr)};
  };
  for (const auto& [device, tokens] : {std::pair{67, int64_t{14'800'000}}, {66, int64_t{6'400'000}}})
    for (const int64_t width : {64, 2048, 4096, 20'000}) {
      current_device = device;
      const auto [plans, ran] = planned(tokens, width);
      EXPECT_TRUE(plans && ran.ok()) << tokens << " tokens, " << width << " entries: " << ran.message();
    }
  current_device = 67;
  EXPECT_FALSE(planned(14'900'000, 64).first);
  current_device = 66;
  EXPECT_EQ(planned(6'500'000, 64).second.code(), Code::kUnsupported);
}

// What a caller is told is what a launch does.
TEST(Launches, RingOnSaysWhatIsLaunched) {
  using cuda::Ring;
  const auto told = [](Ring ring, int64_t head_dim, size_t shared_bytes) {
    const Prepared p({.head_dim = head_dim, .options = {.ring = ring}});
    EXPECT_EQ(p.plan.ring, ring);
    CudaDevice device{};
    device.shared_bytes = shared_bytes;
    return cuda::ring_on(p.plan, device);
  };
  int device = 1000;  // not kept, so that each has a number of its own
  for (const int64_t head_dim : {64, 128, 256})
    for (const int kilobytes : {99, 112, 128, 142, 143, 163, 227}) {
      const size_t bytes = static_cast<size_t>(kilobytes) * 1024;
      const Ring ring = told(Ring::kAuto, head_dim, bytes);
      EXPECT_EQ(ring, kilobytes >= (head_dim == 256 ? 143 : 112) ? Ring::kFull : Ring::kShort);
      runtime.shared[++device] = kilobytes * 1024;
      EXPECT_EQ(calls_of(Prepared({.head_dim = head_dim}), device).launch, 3);
      EXPECT_EQ(runtime.last.shared_bytes > size_t{k99}, ring == Ring::kFull) << kilobytes;
      EXPECT_EQ(told(Ring::kFull, head_dim, bytes), Ring::kFull);
      EXPECT_EQ(told(Ring::kShort, head_dim, bytes), Ring::kShort);
    }
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
