// The table of kernels is well formed, and its vocabulary means what it says.
#include "kernels/registry.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

namespace tamis {
namespace {

TEST(Registry, RowsAreWellFormed) {
  std::set<std::string> names;
  for (const Kernel& kernel : kernels()) {
    SCOPED_TRACE(kernel.name);
    EXPECT_TRUE(names.insert(kernel.name).second) << "names are unique";
    EXPECT_STRNE(kernel.note, "");
    EXPECT_STRNE(op_name(kernel.op), "unknown");
    EXPECT_STRNE(backend_name(kernel.backend), "unknown");
    EXPECT_LE(kernel.arch.min, kernel.arch.max);
    EXPECT_EQ(kernel.arch.min > 0, kernel.backend == Backend::kCuda) << "only CUDA rows name an architecture";
    EXPECT_GE(kernel.limits.page_multiple_of, 1);
    for (const Range& range : {kernel.limits.head_dims, kernel.limits.v_head_dims, kernel.limits.group}) {
      EXPECT_GE(range.min, 1);
      EXPECT_LE(range.min, range.max);
    }
  }
}

TEST(Registry, TheReferenceComesFirstAndDoesEverything) {
  ASSERT_GE(kernels().size(), 2u);
  for (const Op op : {Op::kForward, Op::kBackward}) {
    const Kernel& reference = kernels()[op == Op::kForward ? 0 : 1];
    EXPECT_EQ(reference.backend, Backend::kReference);
    EXPECT_EQ(reference.op, op);
    for (DType dtype :
         {DType::kF32, DType::kF16, DType::kBF16, DType::kI8, DType::kF8E4M3, DType::kF8E5M2, DType::kU8})
      EXPECT_TRUE(reference.limits.dtypes.holds(dtype));
    EXPECT_FALSE(reference.limits.dtypes.holds(DType::kF64));
    EXPECT_TRUE(reference.limits.quantized);
    EXPECT_TRUE(reference.limits.dropout);
  }
}

TEST(Registry, CudaRowsAreThePartOfTheTable) {
  const auto is_cuda = [](const Kernel& kernel) { return kernel.backend == Backend::kCuda; };
  EXPECT_EQ(std::ranges::count_if(kernels(), is_cuda), static_cast<std::ptrdiff_t>(cuda_kernels().size()));
  EXPECT_TRUE(built_with_cuda() || cuda_kernels().empty());
}

TEST(Registry, TheTableStaysWhereItIs) { EXPECT_EQ(kernels().data(), kernels().data()); }

TEST(Vocabulary, Range) {
  constexpr Range some{.min = 64, .max = 128};
  static_assert(some.holds(64) && some.holds(128) && !some.holds(63) && !some.holds(129));
  static_assert(Range{}.holds(1) && !Range{}.holds(0));
}

TEST(Vocabulary, DTypeSet) {
  constexpr DTypeSet set{DType::kF64, DType::kBool};  // the first and the last
  static_assert(set.holds(DType::kF64) && set.holds(DType::kBool) && !set.holds(DType::kBF16));
}

TEST(Vocabulary, BackendNames) {
  EXPECT_STREQ(backend_name(Backend::kReference), "reference");
  EXPECT_STREQ(backend_name(Backend::kCpu), "cpu");
  EXPECT_STREQ(backend_name(Backend::kCuda), "cuda");
  EXPECT_STREQ(backend_name(static_cast<Backend>(99)), "unknown");
}

}  // namespace
}  // namespace tamis
