#include "client/resume_path.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/temporary_directory.h"

namespace sparrow {
namespace {

class ResumePathTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(directory_.File("root/job-1/step-3"));
    std::filesystem::create_directories(directory_.File("job-2"));
    std::filesystem::current_path(directory_.path());
  }
  void TearDown() override { std::filesystem::current_path(before_); }

  const std::filesystem::path before_ = std::filesystem::current_path();
  TemporaryDirectory directory_;
};

TEST_F(ResumePathTest, IsLookedUpUnderTheRootFirst) {
  EXPECT_EQ(ResumePath("job-1/step-3", "root"), "job-1/step-3");
  std::filesystem::create_directories(directory_.File("job-1"));
  EXPECT_EQ(ResumePath("job-1", "root"), "job-1");
}

TEST_F(ResumePathTest, ElseFromTheCurrentDirectory) {
  const std::string here = std::filesystem::current_path().string();
  EXPECT_EQ(ResumePath("root/job-1", "root"), here + "/root/job-1");
  EXPECT_EQ(ResumePath("./root/../root/job-1", "root"), here + "/root/job-1");
  EXPECT_EQ(ResumePath("root/job-1", ""), here + "/root/job-1");
  EXPECT_EQ(ResumePath("job-2", "root"), here + "/job-2");
}

TEST_F(ResumePathTest, WhatIsNowhereStaysAsItWasGiven) {
  for (const char* path : {"", "none", "root/none", "/none", "/tmp"}) EXPECT_EQ(ResumePath(path, "root"), path);
}

}  // namespace
}  // namespace sparrow
