#include "base/hash.h"

#include <gtest/gtest.h>

#include <string>

namespace sparrow {
namespace {

// Known values of XXH64 with seed 0. Fixed for ever: ids of string columns are these.
TEST(Hash, IsXxh64) {
  EXPECT_EQ(HashBytes(""), 0xef46db3751d8e999u);
  EXPECT_EQ(HashBytes("a"), 0xd24ec4f1a98c6e5bu);
  EXPECT_EQ(HashBytes("abc"), 0x44bc2cf5ad770999u);
}

TEST(Hash, EveryByteCounts) {
  const std::string text(100, 'x');
  for (size_t i = 0; i < text.size(); ++i) {
    std::string other = text;
    other[i] = '\0';
    EXPECT_NE(HashBytes(other), HashBytes(text)) << i;
  }
  EXPECT_NE(HashBytes(std::string("a\0", 2)), HashBytes("a"));
}

}  // namespace
}  // namespace sparrow
