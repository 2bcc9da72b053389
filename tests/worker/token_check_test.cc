#include "worker/token_check.h"

#include <cmath>
#include <filesystem>

#include "tests/worker/input_test_support.h"
#include "tests/worker/token_files.h"

namespace sparrow {
namespace {

v1::Job LanguageJob() {
  return FromText<v1::Job>(R"(
    data { train { path: "a.bin" rows { take_rows: 33 } } test { path: "a.bin" rows { skip_rows: 33 } } tokens {} }
    model { gpt2 { context: 8 vocabulary: 70 } }
    train { batch_size: 2 }
    eval { batch_size: 4 }
  )");
}

TEST(TokenCheck, CountsWhatIsThere) {
  const TempFiles files;
  std::vector<uint16_t> tokens(33, 5);
  for (size_t i = 0; i < 11; ++i) tokens[3 * i] = 69;
  for (size_t i = 0; i < 33; ++i) tokens.push_back(static_cast<uint16_t>(i));
  files.Write("a.bin", HeadedTokens(tokens));
  const auto reports = CheckTokens(LanguageJob(), files.root(), nullptr);
  ASSERT_TRUE(reports.ok()) << reports.status();
  ASSERT_EQ(reports->size(), 2u);
  const TokenReport& train = (*reports)[0];
  EXPECT_EQ(train.name, "train");
  EXPECT_EQ(train.tokens, 33u);
  EXPECT_EQ(train.distinct, 2u);
  EXPECT_EQ(train.most, 5);
  EXPECT_EQ(train.most_times, 22u);
  EXPECT_NEAR(train.entropy, std::log(3.0) - 2.0 / 3 * std::log(2.0), 1e-12);
  const TokenReport& test = (*reports)[1];
  EXPECT_EQ(test.name, "test");
  EXPECT_EQ(test.distinct, 33u);
  EXPECT_EQ(test.steps, 1u);
  EXPECT_NEAR(test.entropy, std::log(33.0), 1e-12);
  const std::string text = FormatTokenReports(*reports);
  EXPECT_THAT(text,
              testing::HasSubstr("train: 33 tokens: 4 windows of 8, and 0 tokens over; 2 steps a pass; 1 file\n"));
  EXPECT_THAT(text, testing::HasSubstr("2 of the vocabulary's 70 tokens occur; most often 5 (66.7 %)"));
}

TEST(TokenCheck, WhatTrainingWouldStopAtIsAnError) {
  const TempFiles files;
  files.Write("a.bin", PlainTokens(CountUp(0, 80)));
  EXPECT_ERROR(CheckTokens(LanguageJob(), files.root(), nullptr).status(), kInvalidArgument,
               "data.test: ", "a.bin: token 70 is 70");
  v1::Job job = LanguageJob();
  job.mutable_train()->set_batch_size(4);
  EXPECT_ERROR(CheckTokens(job, files.root(), nullptr).status(), kInvalidArgument,
               "data.train: ", "train.batch_size to at most 3");
  files.Write("a.bin.tokenizer.json", R"({"format":"sparrow-tokenizer","vocabulary":65})");
  EXPECT_ERROR(CheckTokens(LanguageJob(), files.root(), nullptr).status(), kInvalidArgument,
               "data.train: ", "model.gpt2.vocabulary is 70", "a.bin.tokenizer.json");
  std::filesystem::remove(files.Path("a.bin.tokenizer.json"));
  v1::Job two = LanguageJob();
  two.mutable_data()->mutable_test()->set_path(0, "b.bin");
  two.mutable_data()->mutable_test()->clear_rows();
  files.Write("b.bin", PlainTokens(CountUp(0, 33)));
  files.Write("a.bin.tokenizer.json", R"({"format":"sparrow-tokenizer","vocabulary":70})");
  files.Write("b.bin.tokenizer.json", R"({"format":"sparrow-tokenizer","vocabulary":70,"end_of_text":69})");
  EXPECT_ERROR(CheckTokens(two, files.root(), nullptr).status(), kInvalidArgument,
               "b.bin.tokenizer.json: is another tokenizer", "a.bin.tokenizer.json");
  EXPECT_ERROR(CheckTokens(LanguageJob(), files.root(), [] { return true; }).status(), kCancelled, "data.train");
}

}  // namespace
}  // namespace sparrow
