// cuda_devices() lists devices or says why there are none; it holds with and without CUDA, driver and device.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "tamis/device.h"

namespace tamis {
namespace {

TEST(CudaDevices, WithoutOneTheReasonIsGiven) {
  const auto devices = cuda_devices();
  if (devices.ok()) GTEST_SKIP() << "there is a device";
  EXPECT_EQ(devices.status().code(), Code::kDeviceError);
  const Status status = devices.status();
  const std::string& why = status.message();
  EXPECT_NE(why.find(built_with_cuda() ? "CUDA error " : "no CUDA backend"), std::string::npos) << why;
}

// The runtime calls a driver that is not there too old.
TEST(CudaDevices, ADriverThatIsNotThereIsNotCalledTooOld) {
  const auto devices = cuda_devices();
  if (devices.ok() || !built_with_cuda() || dlopen("libcuda.so.1", RTLD_LAZY) != nullptr)
    GTEST_SKIP() << "there is a driver, or no CUDA";
  const Status status = devices.status();
  EXPECT_NE(status.message().find("no driver is loaded"), std::string::npos) << status.message();
  EXPECT_EQ(status.message().find("insufficient"), std::string::npos) << status.message();
}

TEST(CudaDevices, AsListed) {
  const auto devices = cuda_devices();
  if (!devices.ok()) GTEST_SKIP() << "SKIPPED (no device): " << devices.status().message();
  ASSERT_TRUE(built_with_cuda());
  ASSERT_FALSE(devices->empty()) << "no device is an error, not an empty list";
  for (size_t i = 0; i < devices->size(); ++i) {
    const CudaDevice& device = (*devices)[i];
    SCOPED_TRACE(device.name);
    EXPECT_FALSE(device.name.empty());
    EXPECT_EQ(device.ordinal, static_cast<int>(i));
    EXPECT_GE(device.major, 1);
    EXPECT_GE(device.minor, 0);
    EXPECT_GE(device.multiprocessors, 1);
    EXPECT_GE(device.driver, device.runtime / 1000 * 1000)
        << "the driver is of the runtime's major version or later";
    EXPECT_GT(device.memory_bytes, size_t{1} << 28);
  }
}

TEST(CudaDevices, AskingTwiceGivesTheSame) {
  const auto first = cuda_devices(), second = cuda_devices();
  ASSERT_EQ(first.ok(), second.ok());
  if (first.ok()) {
    EXPECT_EQ(first->size(), second->size());
  } else {
    EXPECT_EQ(first.status().message(), second.status().message());
  }
}

}  // namespace
}  // namespace tamis
