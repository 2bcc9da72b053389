#include "client/job_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "tests/support/temporary_directory.h"

namespace sparrow {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string ErrorOf(absl::string_view text) {
  const absl::StatusOr<v1::Job> job = ParseJob(text, "my.textproto");
  EXPECT_FALSE(job.ok()) << text;
  EXPECT_THAT(std::string(job.status().message()), Not(HasSubstr("\n"))) << "one line";
  return std::string(job.status().message());
}

TEST(JobFile, GivesTheFieldsOfTheFile) {
  const absl::StatusOr<v1::Job> job = ParseJob(
      "name: \"a\"  # comment\ntrain { batch_size: 7 optimizer { learning_rate: 0.5 adam {} } }\n"
      "model { dlrm { top: [ 4, 1 ] } }\n",
      "j");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->name(), "a");
  EXPECT_EQ(job->train().batch_size(), 7u);
  EXPECT_TRUE(job->train().optimizer().has_adam());
  EXPECT_THAT(job->model().dlrm().top(), testing::ElementsAre(4, 1));
}

TEST(JobFile, AByteOrderMarkAndCrlfAreNotAnError) {
  const absl::StatusOr<v1::Job> job = ParseJob("\xef\xbb\xbfname: \"a\"\r\ntrain { epochs: 2 }\r\n", "j");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->train().epochs(), 2u);
}

struct WrongText {
  const char* what;
  const char* text;
  const char* place;
  const char* says;
};

class JobFileWrong : public testing::TestWithParam<WrongText> {};

TEST_P(JobFileWrong, IsRefusedWithItsPlaceAndARemedy) {
  const std::string error = ErrorOf(GetParam().text);
  EXPECT_THAT(error, StartsWith(absl::StrCat("my.textproto", GetParam().place))) << GetParam().what;
  EXPECT_THAT(error, HasSubstr(GetParam().says)) << GetParam().what;
}

INSTANTIATE_TEST_SUITE_P(
    Each, JobFileWrong,
    testing::Values(WrongText{"UnknownField", "name: \"a\"\ntrain {\n  batchsize: 5\n}\n",
                              ":3:", "did you mean batch_size?"},
                    WrongText{"UnknownFieldListsFields", "oops: 1", ":1:", "name, data, tables, features, model"},
                    WrongText{"TextForANumber", "train { batch_size: \"many\" }", ":1:21: ", "without quotes"},
                    WrongText{"FractionForAnInteger", "train {\n batch_size: 2.5 }", ":2:14: ", "whole number"},
                    WrongText{"Negative", "train { batch_size: -5 }", ":1:21: ", "below 0"},
                    WrongText{"OutOfRange32", "train { batch_size: 4294967296 }", ":1:21: ", "smaller number"},
                    WrongText{"OutOfRange64", "train { steps_max: 18446744073709551616 }", ":1:20: ", "smaller number"},
                    WrongText{"NumberForText", "name: 5", ":1:7: ", "in quotes"},
                    WrongText{"NoSuchEnum", "features { name: \"f\" pooling: MAX }", ":1:", "MAX"},
                    WrongText{"NotABool", "data { text { header: maybe } }", ":1:", "true or false"},
                    WrongText{"Unclosed", "train {\n  batch_size: 5\n", ":3:1: ", "proto/sparrow/v1/job.proto"},
                    WrongText{"Twice", "name: \"a\" name: \"b\"", ":1:", "keep one"},
                    WrongText{"BothOfAOneof", "model { dlrm {} dcnv2 {} }", ":1:", "keep one"},
                    WrongText{"Latin1", "name: \"a\"\n# caf\xe9\n", ":2:6: ", "0xe9 is not UTF-8"},
                    WrongText{"CutUtf8", "# \xe2\x82", ":1:3: ", "UTF-8"}, WrongText{"Empty", "", ": ", "is empty"},
                    WrongText{"CommentsOnly", "# nothing\n", ": ", "sets no field"},
                    WrongText{"AnotherFile", "1\t5\t110\t\t16\n", ":1:1: ", "Expected"}),
    [](const testing::TestParamInfo<WrongText>& info) { return info.param.what; });

TEST(JobFile, ANulByteIsNamedByPlace) {
  EXPECT_THAT(ErrorOf(absl::string_view("name: \"a\0b\"", 11)), StartsWith("my.textproto:1:9: byte 0x00"));
}

TEST(JobFile, AMissingFileADirectoryAndAHugeFileAreRefusedByPath) {
  const TemporaryDirectory directory;
  const std::string missing = directory.File("none.textproto");
  EXPECT_THAT(std::string(LoadJobFile(missing).status().message()), AllOf(StartsWith(missing), HasSubstr("no such")));
  EXPECT_THAT(std::string(LoadJobFile(directory.path()).status().message()),
              AllOf(StartsWith(directory.path()), HasSubstr("is a directory")));
  const std::string huge = directory.File("huge");
  ASSERT_TRUE(WriteFileAtomically(huge, "x").ok());
  std::filesystem::resize_file(huge, kJobFileBytesMax + 1);
  EXPECT_THAT(std::string(LoadJobFile(huge).status().message()), HasSubstr("instead of the job"));
  EXPECT_THAT(std::string(LoadJobFile(missing + "/below").status().message()), HasSubstr(missing));
}

TEST(JobFile, SetsAreAppliedInOrderAndAWrongOneIsNamed) {
  const TemporaryDirectory directory;
  const std::string path = directory.File("j.textproto");
  ASSERT_TRUE(WriteFileAtomically(path, "name: \"a\"").ok());
  const absl::StatusOr<v1::Job> job = LoadJobFile(path, {"train.epochs=2", "train.epochs=3", "name=b"});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->train().epochs(), 3u);
  EXPECT_EQ(job->name(), "b");
  EXPECT_THAT(std::string(LoadJobFile(path, {"train.epoch=2"}).status().message()),
              AllOf(StartsWith("--set train.epoch=2: "), HasSubstr("did you mean epochs?")));
}

}  // namespace
}  // namespace sparrow
