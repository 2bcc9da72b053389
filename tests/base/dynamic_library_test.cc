#include "base/dynamic_library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sparrow {
namespace {

using ::testing::HasSubstr;

constexpr char kMath[] = "libm.so.6";

TEST(DynamicLibrary, GivesItsFunctions) {
  const char* const functions[] = {"cos", "sin"};
  const DynamicLibrary library(kMath, functions);
  ASSERT_EQ(library.absence(), "");
  EXPECT_EQ(library.Symbol<double(double)>("cos")(0), 1);
}

TEST(DynamicLibrary, SaysWhyItIsNotThere) {
  EXPECT_THAT(DynamicLibrary("libabsent.so.1").absence(), HasSubstr("libabsent.so.1"));
}

TEST(DynamicLibrary, WithoutAFunctionThatIsNeededIsAsGoodAsNone) {
  const char* const functions[] = {"cos", "absent"};
  EXPECT_EQ(DynamicLibrary(kMath, functions).absence(), "libm.so.6 has no absent");
}

TEST(DynamicLibraryDeathTest, MustHaveTheFunctionAskedFor) {
  const DynamicLibrary absent("libabsent.so.1"), math(kMath);
  EXPECT_DEATH(absent.Symbol<double(double)>("cos"), "libabsent.so.1");
  EXPECT_DEATH(math.Symbol<double(double)>("absent"), "libm.so.6 has no absent");
}

}  // namespace
}  // namespace sparrow
