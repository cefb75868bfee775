// The C interface says what the C++ one says.
#include <gtest/gtest.h>
#include <tamis/tamis_c.h>

#include <limits>

#include "capi/c_problem.h"
#include "tamis/attention.h"
#include "tamis/device.h"
#include "tamis/status.h"
#include "tamis/version.h"

extern "C" int tamis_header_compiles_as_c(void);  // compiles_as_c.c

namespace tamis::testing {
namespace {

TEST(CApi, Versions) {
  EXPECT_EQ(tamis_abi_version(), TAMIS_ABI_VERSION);
  EXPECT_STREQ(tamis_version(), TAMIS_VERSION);
}

TEST(CApi, EveryCodeHasTheNumberAndNameOfItsStatus) {
  const std::pair<int, Code> codes[] = {{TAMIS_OK, Code::kOk},
                                        {TAMIS_INVALID_ARGUMENT, Code::kInvalidArgument},
                                        {TAMIS_INDEX_OUT_OF_RANGE, Code::kIndexOutOfRange},
                                        {TAMIS_DUPLICATE_INDEX, Code::kDuplicateIndex},
                                        {TAMIS_UNSUPPORTED_SEMANTICS, Code::kUnsupportedSemantics},
                                        {TAMIS_PAGE_OUT_OF_RANGE, Code::kPageOutOfRange},
                                        {TAMIS_PAGE_UNMAPPED, Code::kPageUnmapped},
                                        {TAMIS_FOREIGN_PAGE, Code::kForeignPage},
                                        {TAMIS_WORKSPACE_TOO_SMALL, Code::kWorkspaceTooSmall},
                                        {TAMIS_CAPACITY_EXCEEDED, Code::kCapacityExceeded},
                                        {TAMIS_STALE_PLAN, Code::kStalePlan},
                                        {TAMIS_NOT_CAPTURABLE, Code::kNotCapturable},
                                        {TAMIS_UNSUPPORTED, Code::kUnsupported},
                                        {TAMIS_IO_ERROR, Code::kIoError},
                                        {TAMIS_DEVICE_ERROR, Code::kDeviceError}};
  int next = 0;
  for (const auto& [number, code] : codes) {
    EXPECT_EQ(number, next++);
    EXPECT_EQ(number, static_cast<int>(code));
    EXPECT_STREQ(tamis_code_name(number), code_name(code));
    EXPECT_STRNE(tamis_code_name(number), "unknown");
  }
  EXPECT_STREQ(tamis_code_name(TAMIS_FOREIGN_PAGE), "foreign_page");
}

TEST(CApi, NumbersThatAreNoCode) {
  for (int32_t code : {-1, TAMIS_DEVICE_ERROR + 1, std::numeric_limits<int32_t>::min(),
                       std::numeric_limits<int32_t>::max()}) {
    EXPECT_STREQ(tamis_code_name(code), "unknown") << code;
  }
}

TEST(CApi, HeaderIsPlainC) { EXPECT_EQ(tamis_header_compiles_as_c(), TAMIS_ABI_VERSION); }

TEST(CApi, InstructionSets) {
  const std::vector<std::string> isas = cpu_isas();
  const char* names[8] = {};
  int64_t count = -1;
  ASSERT_EQ(tamis_cpu_isas(names, 8, &count, nullptr), TAMIS_OK);
  ASSERT_EQ(count, static_cast<int64_t>(isas.size()));
  for (int64_t i = 0; i < count; ++i) EXPECT_EQ(names[i], isas[i]);
  EXPECT_EQ(names[count], nullptr);

  const char* first[2] = {};
  ASSERT_EQ(tamis_cpu_isas(first, 1, &count, nullptr), TAMIS_OK);
  EXPECT_EQ(count, static_cast<int64_t>(isas.size()));
  EXPECT_EQ(first[0], isas[0]);
  EXPECT_EQ(first[1], nullptr);
  EXPECT_EQ(tamis_cpu_isas(nullptr, 0, &count, nullptr), TAMIS_OK);
  EXPECT_EQ(tamis_cpu_isas(nullptr, 1, &count, nullptr), TAMIS_INVALID_ARGUMENT);
  EXPECT_EQ(tamis_cpu_isas(names, -1, &count, nullptr), TAMIS_INVALID_ARGUMENT);
  EXPECT_EQ(tamis_cpu_isas(names, 8, nullptr, nullptr), TAMIS_INVALID_ARGUMENT);
}

TEST(CApi, CudaStatus) {
  Error error;
  auto info = sized<tamis_cuda_info>();
  const Result<std::vector<CudaDevice>> devices = cuda_devices();
  EXPECT_EQ(tamis_cuda_status(0, &info, error), static_cast<int32_t>(devices.status().code())) << error.text;
  EXPECT_EQ(info.built_with_cuda, built_with_cuda());
  EXPECT_EQ(info.struct_size, sizeof info);
  EXPECT_EQ(error.text, devices.status().message());
  if (devices.ok()) {
    EXPECT_EQ(info.devices, static_cast<int32_t>(devices->size()));
    EXPECT_EQ(info.major, devices->front().major);
    EXPECT_EQ(tamis_cuda_status(info.devices, &info, error), TAMIS_INVALID_ARGUMENT);
    EXPECT_EQ(error.c.limit, info.devices);
  } else {
    EXPECT_EQ(info.devices, 0);
  }
}

TEST(CApi, ContextsOfOneInstructionSet) {
  Error error;
  tamis_context* context = nullptr;
  EXPECT_EQ(tamis_context_create(1, "plain", &context, error), TAMIS_OK) << error.text;
  EXPECT_NE(context, nullptr);
  tamis_context_destroy(context);
  EXPECT_EQ(tamis_context_create(1, "abacus", &context, error), TAMIS_UNSUPPORTED);
  EXPECT_EQ(context, nullptr);
  EXPECT_TRUE(says(error, "abacus"));
  EXPECT_EQ(tamis_context_create(-1, nullptr, &context, error), TAMIS_INVALID_ARGUMENT);
  EXPECT_TRUE(says(error, "threads: -1"));
}

}  // namespace
}  // namespace tamis::testing
