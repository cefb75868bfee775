#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tamis/explain.h"

namespace tamis {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(KeptMass, IsTheShareOfTheSoftmaxByHead) {
  // Rows of two heads. Head 0 keeps 1/2 and 1/4, head 1 everything and 1/8.
  const std::vector<double> full = {std::log(4.0), 3.0, std::log(8.0), std::log(16.0)};
  const std::vector<double> sparse = {std::log(2.0), 3.0, std::log(2.0), std::log(2.0)};
  const KeptMass mass = kept_mass(sparse, full, 2);
  ASSERT_EQ(mass.mean.size(), 2u);
  ASSERT_EQ(mass.min.size(), 2u);
  EXPECT_NEAR(mass.mean[0], 0.375, 1e-15);
  EXPECT_NEAR(mass.min[0], 0.25, 1e-15);
  EXPECT_NEAR(mass.mean[1], 0.5625, 1e-15);
  EXPECT_NEAR(mass.min[1], 0.125, 1e-15);
}

TEST(KeptMass, AnEmptyRowKeepsNothingUnlessThereWasNothing) {
  const KeptMass mass = kept_mass({-kInf, -kInf}, {0.5, -kInf}, 1);
  EXPECT_EQ(mass.mean[0], 0.5);
  EXPECT_EQ(mass.min[0], 0.0);
  EXPECT_EQ(kept_mass({-kInf}, {-kInf}, 1).min[0], 1.0);
}

TEST(KeptMass, LargeLogitsDoNotOverflow) {
  const KeptMass mass = kept_mass({1e4, -1e4}, {1e4 + std::log(2.0), -1e4}, 1);
  EXPECT_NEAR(mass.min[0], 0.5, 1e-11);
  EXPECT_EQ(kept_mass({-1e6}, {1e6}, 1).mean[0], 0.0);
}

TEST(KeptMass, ShowsWhatIsWrongInsteadOfClippingIt) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const auto& sparse : {std::vector<double>{nan, 0.0}, std::vector<double>{0.0, nan}}) {
    const KeptMass mass = kept_mass(sparse, {0.0, 0.0}, 1);
    EXPECT_TRUE(std::isnan(mass.mean[0]));
    EXPECT_TRUE(std::isnan(mass.min[0]));
  }
  EXPECT_NEAR(kept_mass({std::log(3.0)}, {0.0}, 1).min[0], 3.0, 1e-14);
}

TEST(KeptMass, WithoutRowsOrHeads) {
  const KeptMass none = kept_mass({}, {}, 3);
  EXPECT_EQ(none.mean, std::vector<double>(3, 1.0));
  EXPECT_EQ(none.min, std::vector<double>(3, 1.0));
  EXPECT_TRUE(kept_mass({}, {}, 0).mean.empty());
}

}  // namespace
}  // namespace tamis
