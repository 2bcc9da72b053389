#include "dense/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <bit>
#include <filesystem>
#include <fstream>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "tests/dense/double_reference.h"

namespace sparrow {
namespace {

using ::testing::HasSubstr;
using testing::RandomFloats;

class Safetensors : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    directory_ = std::filesystem::path(::testing::TempDir()) / (std::string("sparrow_safetensors_") + test->name());
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
    path_ = directory_ / "a.safetensors";
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  // A file with this header and this many bytes of tensors.
  absl::Status ReadCrafted(const std::string& header, size_t data_bytes) {
    const uint64_t length = header.size();
    return ReadRaw(std::string(reinterpret_cast<const char*>(&length), 8) + header + std::string(data_bytes, '\1'));
  }
  absl::Status ReadRaw(const std::string& bytes) {
    Write(bytes);
    const absl::Status status = ReadSafetensors(path_).status();
    if (!status.ok()) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(path_));
    }
    return status;
  }

  // Without the syncs of an atomic write, which take most of the time of a test with many files.
  void Write(const std::string& bytes) { std::ofstream(path_, std::ios::binary) << bytes; }

  std::filesystem::path directory_;
  std::string path_;
};

TEST_F(Safetensors, RoundTripIsBitEqual) {
  std::vector<float> a = RandomFloats(1, 6);
  a[1] = std::numeric_limits<float>::infinity();
  a[2] = -0.0f;
  a[3] = std::bit_cast<float>(0x7fc12345u);  // A NaN with a payload.
  const std::vector<float> scalar = {2.5f};
  const std::vector<NamedTensor> tensors = {{"top.0.weight", {2, 3}, a}, {"empty", {0, 4}, {}}, {"scalar", {}, scalar}};
  ASSERT_TRUE(WriteSafetensors(path_, tensors, {{"step", "12"}, {"job", "a \"quoted\" name"}}).ok());
  const auto loaded = ReadSafetensors(path_);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->metadata, (std::map<std::string, std::string>{{"step", "12"}, {"job", "a \"quoted\" name"}}));
  ASSERT_EQ(loaded->tensors.size(), 3u);
  const LoadedTensor& weight = loaded->tensors.at("top.0.weight");
  EXPECT_EQ(weight.shape, (std::vector<uint64_t>{2, 3}));
  ASSERT_EQ(weight.values.size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(std::bit_cast<uint32_t>(weight.values[i]), std::bit_cast<uint32_t>(a[i])) << i;
  }
  EXPECT_EQ(loaded->tensors.at("empty").shape, (std::vector<uint64_t>{0, 4}));
  EXPECT_EQ(loaded->tensors.at("scalar").values, scalar);
}

TEST_F(Safetensors, FileFollowsTheFormat) {
  const std::vector<float> values = {1, 2};
  ASSERT_TRUE(WriteSafetensors(path_, std::vector<NamedTensor>{{"w", {2}, values}}, {}).ok());
  const std::string file = ReadFile(path_).value();
  uint64_t header_bytes;
  std::memcpy(&header_bytes, file.data(), 8);
  EXPECT_EQ(header_bytes % 8, 0u);
  EXPECT_EQ(file.size(), 8 + header_bytes + 8);
  EXPECT_EQ(file[8], '{');
  float second;
  std::memcpy(&second, file.data() + 8 + header_bytes + 4, 4);
  EXPECT_EQ(second, 2.0f);
}

TEST_F(Safetensors, WrongSizesAndTwoOfANameAreNotWritten) {
  const std::vector<float> values = {1, 2};
  EXPECT_THAT(std::string(WriteSafetensors(path_, std::vector<NamedTensor>{{"w", {3}, values}}, {}).message()),
              HasSubstr("\"w\" has 2 values"));
  EXPECT_THAT(
      std::string(
          WriteSafetensors(path_, std::vector<NamedTensor>{{"w", {2}, values}, {"w", {2}, values}}, {}).message()),
      HasSubstr("two tensors are named \"w\""));
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(Safetensors, AnyTruncationIsAnError) {
  const std::vector<float> values = RandomFloats(2, 5);
  ASSERT_TRUE(WriteSafetensors(path_, std::vector<NamedTensor>{{"w", {5}, values}}, {{"a", "b"}}).ok());
  const std::string file = ReadFile(path_).value();
  for (size_t size = 0; size < file.size(); ++size) {
    const absl::Status status = ReadRaw(file.substr(0, size));
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << size << ": " << status;
  }
  EXPECT_EQ(ReadRaw(file + "x").code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(Safetensors, AnyFlippedHeaderByteIsAnErrorOrAnotherValidFile) {
  const std::vector<float> values = RandomFloats(3, 4);
  ASSERT_TRUE(WriteSafetensors(path_, std::vector<NamedTensor>{{"w", {2, 2}, values}}, {}).ok());
  const std::string file = ReadFile(path_).value();
  for (size_t i = 0; i < file.size() - 16; ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = file;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      Write(damaged);
      const auto loaded = ReadSafetensors(path_);
      if (!loaded.ok()) continue;
      for (const auto& [name, tensor] : loaded->tensors) {
        uint64_t size = 1;
        for (uint64_t extent : tensor.shape) size *= extent;
        EXPECT_EQ(tensor.values.size(), size) << name;
      }
    }
  }
}

// 1.5, -2 and the smallest float16; 1.5, -2 and 2^100.
TEST_F(Safetensors, NarrowTypesAreReadWhereAskedFor) {
  const std::string header = R"({"h":{"dtype":"F16","shape":[3],"data_offsets":[0,6]},)"
                             R"("b":{"dtype":"BF16","shape":[3,1],"data_offsets":[6,12]},)"
                             R"("mask":{"dtype":"U8","shape":[2],"data_offsets":[12,14]}})";
  const std::string bytes("\x00\x3e\x00\xc0\x01\x00\xc0\x3f\x00\xc0\x80\x71\x01\x00", 14);
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size());
  ASSERT_TRUE(WriteFileAtomically(path_, file + header + bytes).ok());
  EXPECT_THAT(std::string(ReadSafetensors(path_).status().message()), HasSubstr("expected F32;"));
  EXPECT_THAT(std::string(ReadSafetensors(path_, {.narrow_types = true}).status().message()),
              HasSubstr("tensor \"mask\" has dtype U8, expected F32, F16 or BF16"));
  const auto loaded = ReadSafetensors(
      path_, {.narrow_types = true, .passed_over = [](const std::string& name) { return name == "mask"; }});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  ASSERT_EQ(loaded->tensors.size(), 2u);
  EXPECT_EQ(loaded->tensors.at("h").values, (std::vector<float>{1.5f, -2.0f, 0x1p-24f}));
  EXPECT_EQ(loaded->tensors.at("b").values, (std::vector<float>{1.5f, -2.0f, 0x1p100f}));
  EXPECT_EQ(loaded->tensors.at("b").shape, (std::vector<uint64_t>{3, 1}));
}

// Of float32 and of a narrow type, longer than what is read at once.
TEST_F(Safetensors, PartsOfATensorAreRead) {
  constexpr uint64_t kLong = (uint64_t{1} << 20) + 7;
  const std::vector<float> values = RandomFloats(5, kLong);
  std::string narrow;
  for (const float value : values) narrow.append(reinterpret_cast<const char*>(&value) + 2, 2);  // As bfloat16.
  std::string header = absl::StrCat(R"({"w":{"dtype":"F32","shape":[)", kLong, R"(],"data_offsets":[0,)", 4 * kLong,
                                    R"(]},"n":{"dtype":"BF16","shape":[)", kLong, R"(],"data_offsets":[)", 4 * kLong,
                                    ",", 6 * kLong, "]}}");
  const uint64_t length = header.size();
  Write(absl::StrCat(std::string(reinterpret_cast<const char*>(&length), 8), header,
                     std::string(reinterpret_cast<const char*>(values.data()), 4 * kLong), narrow));
  const auto reader = SafetensorsReader::Open(path_, {.narrow_types = true});
  ASSERT_TRUE(reader.ok()) << reader.status();
  for (const uint64_t first : {uint64_t{0}, uint64_t{3}, kLong - 1, kLong}) {
    for (const char* name : {"w", "n"}) {
      std::vector<float> part(kLong - first);
      ASSERT_TRUE((*reader)->Read((*reader)->tensors().at(name), first, part).ok());
      for (uint64_t i = 0; i < part.size(); ++i) {
        const uint32_t kept = *name == 'w' ? ~uint32_t{0} : 0xffff0000u;
        ASSERT_EQ(std::bit_cast<uint32_t>(part[i]), std::bit_cast<uint32_t>(values[first + i]) & kept) << name << i;
      }
    }
  }
  std::filesystem::resize_file(path_, 200);
  std::vector<float> part(kLong);
  const absl::Status cut = (*reader)->Read((*reader)->tensors().at("w"), 0, part);
  EXPECT_EQ(cut.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(cut.message()), HasSubstr(path_ + ": ends at byte 200"));
}

TEST_F(Safetensors, WhatIsNoRegularFileIsRefusedAndNotWaitedFor) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  const absl::Status pipe = ReadSafetensors(path_).status();
  EXPECT_EQ(pipe.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(pipe.message()), HasSubstr(path_ + ": is not a regular file"));
  EXPECT_THAT(std::string(ReadSafetensors(directory_).status().message()), HasSubstr("is a directory"));
}

TEST_F(Safetensors, LyingHeadersAreRefused) {
  const auto message = [&](const std::string& header, size_t bytes) {
    const absl::Status status = ReadCrafted(header, bytes);
    EXPECT_FALSE(status.ok()) << header;
    return std::string(status.message());
  };
  const auto entry = [](const std::string& shape, const std::string& offsets) {
    return R"({"dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
  };
  EXPECT_THAT(message(R"({"w":)" + entry("[4]", "[0,8]") + "}", 8), HasSubstr("shape [4] needs 16"));
  EXPECT_THAT(message(R"({"w":)" + entry("[4294967296,4294967296]", "[0,8]") + "}", 8), HasSubstr("exceeds 2^64"));
  EXPECT_THAT(message(R"({"w":)" + entry("[2305843009213693952]", "[0,9223372036854775808]") + "}", 8), HasSubstr("w"));
  EXPECT_THAT(message(R"({"w":)" + entry("[2]", "[8,0]") + "}", 8), HasSubstr("data_offsets [8,0]"));
  EXPECT_THAT(message(R"({"w":)" + entry("[2]", "[-8,0]") + "}", 8), HasSubstr("data_offsets [-8,0]"));
  EXPECT_THAT(message(R"({"w":)" + entry("[-2]", "[0,8]") + "}", 8), HasSubstr("no whole number"));
  EXPECT_THAT(message(R"({"w":)" + entry("[2.5]", "[0,8]") + "}", 8), HasSubstr("no whole number"));
  EXPECT_THAT(message(R"({"a":)" + entry("[2]", "[0,8]") + R"(,"b":)" + entry("[2]", "[4,12]") + "}", 12),
              HasSubstr("\"b\" begins at byte 4, expected 8"));
  EXPECT_THAT(message(R"({"a":)" + entry("[1]", "[4,8]") + "}", 8), HasSubstr("expected 0"));
  EXPECT_THAT(message(R"({"a":)" + entry("[1]", "[0,4]") + "}", 8),
              HasSubstr("has 8 bytes of tensors, its header describes 4"));
  EXPECT_THAT(message(R"({"a":)" + entry("[1]", "[0,4]") + R"(,"a":)" + entry("[1]", "[4,8]") + "}", 8),
              HasSubstr("names \"a\" twice"));
  EXPECT_THAT(message(R"({"w":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}})", 4),
              HasSubstr("dtype F16, expected F32"));
  EXPECT_THAT(message(R"({"w":{"shape":[2],"data_offsets":[0,8]}})", 8), HasSubstr("no dtype"));
  EXPECT_THAT(message(R"({"w":[]})", 0), HasSubstr("expected an object"));
  EXPECT_THAT(message(R"({"__metadata__":{"a":1}})", 0), HasSubstr("__metadata__.a is no string"));
  EXPECT_THAT(message("[]", 0), HasSubstr("no JSON object"));
  EXPECT_THAT(message("{", 0), HasSubstr("no JSON object"));
  EXPECT_THAT(message(std::string(100'000, '['), 0), HasSubstr("no JSON object"));
}

TEST_F(Safetensors, DeepNestingTakesNoStack) {
  const std::string deep = std::string(1 << 20, '[') + std::string(1 << 20, ']');
  for (const std::string& entry :
       {R"("shape":[)" + deep + R"(],"data_offsets":[0,8])", R"("shape":[2],"data_offsets":[0,)" + deep + "]"}) {
    const absl::Status status = ReadCrafted(R"({"w":{"dtype":"F32",)" + entry + "}}", 8);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("nested deeper than 3"));
  }
}

TEST_F(Safetensors, HeaderLengthBeyondTheFileAllocatesNothing) {
  for (uint64_t length : {uint64_t{9}, uint64_t{99'999'999}, uint64_t{1} << 40, ~uint64_t{0}}) {
    const absl::Status status = ReadRaw(std::string(reinterpret_cast<const char*>(&length), 8) + "{}");
    EXPECT_THAT(std::string(status.message()), HasSubstr("claims a header of " + std::to_string(length)));
  }
}

TEST_F(Safetensors, MissingFileIsNamed) {
  const absl::Status status = ReadSafetensors(path_ + ".none").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr(path_ + ".none"));
}

}  // namespace
}  // namespace sparrow
