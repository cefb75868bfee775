// Copies of a problem in device memory, where there is a device, and what is said where there is none.
#include "bench/device_problem.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tamis/device.h"

namespace tamis::bench {
namespace {

bool has_device() { return cuda_devices().ok(); }

TEST(DeviceProblem, WithoutTensorsNeedsNoDevice) {
  const Result<DeviceProblem> made = DeviceProblem::upload({});
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(made->bytes(), 0);
}

TEST(DeviceProblem, EmptyTensorsHaveNoMemory) {
  const int32_t junk = 0;
  Problem p;
  p.candidates.indices = dense_view(&junk, DType::kI32, {0, 4});
  const Result<DeviceProblem> made = DeviceProblem::upload(p);
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(made->problem().candidates.indices.data, nullptr);
  EXPECT_EQ(made->problem().candidates.indices.shape[1], 4);
}

TEST(DeviceProblem, NamesWhatItCannotCopy) {
  std::vector<float> values(8);
  Problem p;
  p.cache.v = dense_view(values.data(), DType::kF32, {2, 4});
  p.cache.v.stride[0] = -4;
  const Status backwards = DeviceProblem::upload(p).status();
  EXPECT_EQ(backwards.code(), Code::kUnsupported);
  EXPECT_EQ(backwards.message().rfind("v: stride -4", 0), 0u) << backwards.message();
  // A stride that is never taken does not matter.
  p.cache.v.shape[0] = 1;
  EXPECT_NE(DeviceProblem::upload(p).status().code(), Code::kUnsupported);

  Problem q;
  q.query.q = dense_view(nullptr, DType::kF32, {2, 4});
  const Status nowhere = DeviceProblem::upload(q).status();
  EXPECT_EQ(nowhere.code(), Code::kInvalidArgument);
  EXPECT_EQ(nowhere.message().rfind("q: ", 0), 0u) << nowhere.message();
}

TEST(DeviceProblem, WithoutDeviceIsADeviceError) {
  if (has_device()) GTEST_SKIP() << "there is a device";
  const std::vector<int32_t> cu_q{0, 1};
  Problem p;
  p.query.cu_q = dense_view(cu_q.data(), DType::kI32, {2});
  EXPECT_EQ(DeviceProblem::upload(p).status().code(), Code::kDeviceError);
  EXPECT_EQ(DeviceBuffer::make(16).status().code(), Code::kDeviceError);
  EXPECT_EQ(DeviceStream::make().status().code(), Code::kDeviceError);
  EXPECT_EQ(DeviceEvent::make().status().code(), Code::kDeviceError);
}

// A view with holes: rows of 3 elements, 5 apart, the first 2 elements into the host's array.
TEST(DeviceProblem, CopiesTheWholeRangeAndKeepsStrides) {
  if (!has_device()) GTEST_SKIP() << "no CUDA device";
  std::vector<float> values(20);
  std::iota(values.begin(), values.end(), 1.f);
  Problem p;
  p.cache.k = dense_view(values.data() + 2, DType::kF32, {3, 3});
  p.cache.k.stride[0] = 5;
  const Result<DeviceProblem> made = DeviceProblem::upload(p);
  ASSERT_TRUE(made.ok()) << made.status().message();
  const TensorView& k = made->problem().cache.k;
  EXPECT_EQ(k.stride[0], 5);
  EXPECT_EQ(made->bytes(), (2 * 5 + 3) * 4);
  EXPECT_NE(k.data, p.cache.k.data);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(k.data) % 256, 0u);
}

TEST(DeviceBuffer, BytesComeBack) {
  if (!has_device()) GTEST_SKIP() << "no CUDA device";
  Result<DeviceBuffer> made = DeviceBuffer::make(8);
  ASSERT_TRUE(made.ok()) << made.status().message();
  DeviceBuffer buffer = std::move(*made);
  EXPECT_EQ(made->data(), nullptr);
  ASSERT_TRUE(buffer.fill(0xFF).ok());
  const uint8_t three[] = {1, 2, 3};
  ASSERT_TRUE(buffer.upload(three, 3, 4).ok());
  std::vector<uint8_t> all(8);
  ASSERT_TRUE(buffer.download(all.data(), 8).ok());
  EXPECT_EQ(all, (std::vector<uint8_t>{255, 255, 255, 255, 1, 2, 3, 255}));
  EXPECT_EQ(buffer.upload(three, 3, 6).code(), Code::kInvalidArgument);
  EXPECT_EQ(buffer.download(all.data(), 9).code(), Code::kInvalidArgument);
  EXPECT_EQ(DeviceBuffer::make(-1).status().code(), Code::kInvalidArgument);
}

TEST(DeviceEvent, TimeDoesNotRunBackwards) {
  if (!has_device()) GTEST_SKIP() << "no CUDA device";
  Result<DeviceStream> stream = DeviceStream::make();
  Result<DeviceEvent> first = DeviceEvent::make(), second = DeviceEvent::make();
  ASSERT_TRUE(stream.ok() && first.ok() && second.ok());
  ASSERT_TRUE(first->record(*stream).ok());
  ASSERT_TRUE(second->record(*stream).ok());
  ASSERT_TRUE(stream->synchronize().ok());
  const Result<double> time = second->microseconds_since(*first);
  ASSERT_TRUE(time.ok()) << time.status().message();
  EXPECT_GE(*time, 0);
}

}  // namespace
}  // namespace tamis::bench
