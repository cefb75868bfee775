// Views: sizes, names and strides of any sign.
#include "tamis/tensor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "support/problems.h"
#include "tamis/cache.h"

namespace tamis {
namespace {

struct Kind {
  DType dtype;
  int bytes;
  const char* name;
};

TEST(DType, SizesAndNames) {
  const Kind kinds[] = {
      {DType::kF64, 8, "F64"},   {DType::kF32, 4, "F32"},        {DType::kF16, 2, "F16"},
      {DType::kBF16, 2, "BF16"}, {DType::kF8E4M3, 1, "F8_E4M3"}, {DType::kF8E5M2, 1, "F8_E5M2"},
      {DType::kI64, 8, "I64"},   {DType::kI32, 4, "I32"},        {DType::kI16, 2, "I16"},
      {DType::kI8, 1, "I8"},     {DType::kU64, 8, "U64"},        {DType::kU32, 4, "U32"},
      {DType::kU16, 2, "U16"},   {DType::kU8, 1, "U8"},          {DType::kBool, 1, "BOOL"}};
  for (const Kind& kind : kinds) {
    EXPECT_EQ(dtype_bytes(kind.dtype), kind.bytes) << kind.name;
    EXPECT_STREQ(dtype_name(kind.dtype), kind.name);
  }
}

TEST(TensorView, AbsentScalarAndEmpty) {
  EXPECT_FALSE(TensorView{}.present());
  EXPECT_EQ(TensorView{}.elements(), 0);
  const TensorView scalar = dense_view(nullptr, DType::kF32, {});
  EXPECT_TRUE(scalar.present());
  EXPECT_EQ(scalar.rank, 0);
  EXPECT_EQ(scalar.elements(), 1);
  const TensorView empty = dense_view(nullptr, DType::kI32, {3, 0, 2});
  EXPECT_TRUE(empty.present());
  EXPECT_EQ(empty.elements(), 0);
}

// Extents whose product 64 bits do not hold are many elements, not none.
TEST(TensorView, MoreElementsThanThereCanBe) {
  const int64_t most = std::numeric_limits<int64_t>::max(), half = int64_t{1} << 32;
  EXPECT_EQ(dense_view(nullptr, DType::kF32, {half, half}).elements(), most);
  EXPECT_EQ(dense_view(nullptr, DType::kF32, {half, half, half, half}).elements(), most);
  EXPECT_EQ(dense_view(nullptr, DType::kF32, {most, 1}).elements(), most);
  EXPECT_EQ(dense_view(nullptr, DType::kF32, {most, most, 0}).elements(), 0);
  EXPECT_EQ(dense_view(nullptr, DType::kF32, {half, half, half}).stride[0], most);
}

TEST(TensorView, DenseIsRowMajor) {
  int32_t data[24];
  for (int i = 0; i < 24; ++i) data[i] = i;
  const TensorView t = dense_view(data, DType::kI32, {2, 3, 4});
  EXPECT_EQ(t.data, data);
  EXPECT_EQ(t.dtype, DType::kI32);
  EXPECT_EQ(t.elements(), 24);
  EXPECT_EQ(t.stride[0], 12);
  EXPECT_EQ(t.stride[1], 4);
  EXPECT_EQ(t.stride[2], 1);
  EXPECT_EQ(t.at<int32_t>({1, 2, 3}), 23);
  EXPECT_EQ(t.at<int32_t>({1, 0, 2}), 14);
}

TEST(TensorView, StridesMayBeZeroOrNegative) {
  const int64_t data[] = {10, 11, 12, 13};
  TensorView t = dense_view(data + 3, DType::kI64, {2, 4});
  t.stride = {0, -1};
  for (int64_t row = 0; row < 2; ++row)
    for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(t.at<int64_t>({row, i}), 13 - i);
}

TEST(TensorView, OffsetsAreCountedIn64Bits) {
  // Never read: only the address is formed, relative to a null base that stands for a large buffer.
  const TensorView t = dense_view(nullptr, DType::kU8, {int64_t{1} << 20, int64_t{1} << 20});
  EXPECT_EQ(t.elements(), int64_t{1} << 40);
  EXPECT_EQ(t.stride[0], int64_t{1} << 20);
}

TEST(KvStrides, AreNamedByWhatTheyStepOver) {
  const auto expect = [](const TensorView& t, Layout layout, KvStrides want) {
    const KvStrides got = kv_strides(t, layout);
    EXPECT_EQ(got.page, want.page);
    EXPECT_EQ(got.token, want.token);
    EXPECT_EQ(got.head, want.head);
    EXPECT_EQ(got.dim, want.dim);
  };
  const TensorView paged = dense_view(nullptr, DType::kF32, {5, 2, 3, 7});
  expect(paged, Layout::kNHD, {.page = 42, .token = 21, .head = 7, .dim = 1});
  expect(paged, Layout::kHND, {.page = 42, .token = 7, .head = 21, .dim = 1});
  const TensorView contiguous = dense_view(nullptr, DType::kF32, {2, 3, 7});
  expect(contiguous, Layout::kNHD, {.page = 0, .token = 21, .head = 7, .dim = 1});
  expect(contiguous, Layout::kHND, {.page = 0, .token = 7, .head = 21, .dim = 1});
  TensorView bent = paged;
  bent.stride = {-1, 0, 9, 2};
  expect(bent, Layout::kNHD, {.page = -1, .token = 0, .head = 9, .dim = 2});
}

// The builder that all other tests lean on.
TEST(TestProblem, PoisonsWhatHoldsNoToken) {
  testing::TestProblem t(
      {.kv_len = {5, 0, 2}, .kv_heads = 1, .head_dim = 2, .v_head_dim = 3, .page_size = 4});
  std::vector<bool> used(t.slots());
  for (int64_t i = 0; i < 5; ++i) used[t.slot(0, i)] = true;
  for (int64_t i = 0; i < 2; ++i) used[t.slot(2, i)] = true;
  ASSERT_LT(std::count(used.begin(), used.end(), true), t.slots()) << "some slots are unused";
  ASSERT_EQ(std::count(used.begin(), used.end(), true), 7) << "no two tokens share a slot";
  for (int64_t at = 0; at < t.slots(); ++at) {
    EXPECT_EQ(std::isnan(t.problem.cache.k.at<float>({at / 4, at % 4, 0, 1})), !used[at]) << at;
    EXPECT_EQ(std::isnan(t.problem.cache.v.at<float>({at / 4, at % 4, 0, 2})), !used[at]) << at;
  }
  EXPECT_EQ(t.problem.cache.v.at<float>({t.slot(0, 4) / 4, 0, 0, 0}), 4.0f);
  EXPECT_TRUE(t.table(1, 0) < 0 || t.table(1, 0) > 1000) << "the table of an empty request is garbage";
}

TEST(TensorView, LikeAnotherIsDenseWhateverThatIs) {
  TensorView like = dense_view(nullptr, DType::kI8, {2, 3, 4});
  like.stride = {-12, 100, 7};
  float numbers[30];
  const MutableTensorView t = mutable_like(like, 5, numbers, DType::kF32);
  const TensorView read = t;  // what may be written may be read
  const TensorView want = dense_view(numbers, DType::kF32, {2, 3, 5});
  for (const TensorView& got : {read, dense_like(like, 5, numbers, DType::kF32)}) {
    EXPECT_EQ(got.data, want.data);
    EXPECT_EQ(got.dtype, want.dtype);
    EXPECT_EQ(got.rank, want.rank);
    EXPECT_EQ(got.shape, want.shape);
    EXPECT_EQ(got.stride, want.stride);
  }
}

TEST(DTypes, ANumberThatIsNoneHasNoBytes) {
  for (const int number : {15, 40, 255}) {
    EXPECT_STREQ(dtype_name(static_cast<DType>(number)), "unknown");
    EXPECT_EQ(dtype_bytes(static_cast<DType>(number)), 0);
  }
}

TEST(TestProblem, EncodersRoundToNearestEven) {
  using testing::to_bf16;
  using testing::to_f16;
  EXPECT_EQ(to_f16(1.0), 0x3C00);
  EXPECT_EQ(to_f16(-2.0), 0xC000);
  EXPECT_EQ(to_f16(0x1p-24), 0x0001);
  EXPECT_EQ(to_f16(0x1p-25), 0x0000);
  EXPECT_EQ(to_f16(1023.5 * 0x1p-24), 0x0400) << "a subnormal that rounds up to the smallest normal";
  EXPECT_EQ(to_f16(65504.0), 0x7BFF);
  EXPECT_EQ(to_f16(65519.0), 0x7BFF);
  EXPECT_EQ(to_f16(65520.0), 0x7C00);
  EXPECT_EQ(to_f16(2049.0), 0x6800);
  EXPECT_EQ(to_f16(2051.0), 0x6802);
  EXPECT_EQ(to_bf16(1.0), 0x3F80);
  EXPECT_EQ(to_bf16(257.0), 0x4380) << "256";
  EXPECT_EQ(to_bf16(259.0), 0x4382) << "260";
  EXPECT_EQ(to_bf16(-testing::kInf), 0xFF80);
}

}  // namespace
}  // namespace tamis
