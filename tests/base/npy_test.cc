#include "base/npy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/file.h"
#include "tests/support/temporary_directory.h"

namespace sparrow {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class NpyTest : public testing::Test {
 protected:
  // A version 1.0 file by hand.
  std::string FileWith(const std::string& dictionary, size_t data_bytes) {
    std::string contents("\x93NUMPY\x01\x00", 8);
    contents += static_cast<char>(dictionary.size() & 0xff);
    contents += static_cast<char>(dictionary.size() >> 8);
    contents += dictionary + std::string(data_bytes, '\0');
    return FileOf(contents);
  }
  std::string FileOf(const std::string& contents) {
    std::ofstream(path, std::ios::binary) << contents;
    return path;
  }
  void ExpectRefused(const std::string& file, const std::string& part) {
    const absl::Status status = ReadNpyHeader(file).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << part << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
    EXPECT_THAT(std::string(status.message()), HasSubstr(file));
  }

  TemporaryDirectory directory;
  const std::string path = directory.File("x.npy");
};

TEST_F(NpyTest, WhatIsWrittenHasNumpysBytesAndIsReadBack) {
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  auto writer = NpyWriter::Create(path, NpyType::kFloat32, {3, 2});
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE((*writer)->Append(AsBytes(std::span<const float>(values).first(2))).ok());
  ASSERT_TRUE((*writer)->Append(AsBytes(std::span<const float>(values).subspan(2))).ok());
  ASSERT_TRUE((*writer)->Close().ok());
  const std::string bytes = *ReadFile(path);
  EXPECT_EQ(bytes.substr(0, 10), std::string("\x93NUMPY\x01\x00\x76\x00", 10));
  EXPECT_THAT(bytes, HasSubstr("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }"));
  const auto header = ReadNpyHeader(path);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->type, NpyType::kFloat32);
  EXPECT_THAT(header->shape, ElementsAre(3u, 2u));
  EXPECT_EQ(header->data_offset % 64, 0u);
  EXPECT_EQ(bytes.substr(header->data_offset), std::string(AsBytes(std::span<const float>(values))));
}

TEST_F(NpyTest, EveryTypeAndBothDimensionsAndNoRowsGoThrough) {
  for (const NpyType type :
       {NpyType::kInt32, NpyType::kInt64, NpyType::kUint64, NpyType::kFloat32, NpyType::kFloat64}) {
    for (const std::vector<uint64_t>& shape : {std::vector<uint64_t>{0}, {5}, {0, 7}, {5, 7}}) {
      uint64_t bytes = NpyTypeBytes(type);
      for (uint64_t extent : shape) bytes *= extent;
      auto writer = NpyWriter::Create(path, type, shape);
      ASSERT_TRUE((*writer)->Append(std::string(bytes, 'x')).ok());
      ASSERT_TRUE((*writer)->Close().ok());
      const auto header = ReadNpyHeader(path);
      ASSERT_TRUE(header.ok()) << header.status();
      EXPECT_EQ(header->type, type);
      EXPECT_EQ(header->shape, shape);
      EXPECT_EQ(header->Rows(), shape[0]);
      EXPECT_EQ(header->Columns(), shape.size() == 2 ? 7u : 1u);
    }
  }
}

TEST_F(NpyTest, TooFewOrTooManyBytesAreDataLoss) {
  for (const size_t bytes : {11, 13}) {
    auto writer = NpyWriter::Create(path, NpyType::kInt32, {3});
    ASSERT_TRUE((*writer)->Append(std::string(bytes, 'x')).ok());
    EXPECT_TRUE(absl::IsDataLoss((*writer)->Close()));
  }
}

TEST_F(NpyTest, AHeadersBytesAreEscapedInTheMessage) {
  for (const auto& [dictionary, part] :
       {std::pair("{'descr': '<f\n\x01', 'fortran_order': False, 'shape': (5,), }", "element type <f\\n\\x01;"),
        std::pair("{'descr': '<f4', 'fortran_order': False, 'shape': (5\n6,), }", "shape has \"5\\n6\"")}) {
    ExpectRefused(FileWith(dictionary, 20), part);
  }
}

TEST_F(NpyTest, WhatIsNoNpyFileIsRefused) {
  ExpectRefused(FileOf(""), "NUMPY");
  ExpectRefused(FileOf("0\t1\t2\n plain text"), "NUMPY");
  ExpectRefused(FileOf(std::string("\x93NUMPY\x01\x00\xff\x00", 10)), "cut off");
  ExpectRefused(FileOf(std::string("\x93NUMPY\x02\x00\xff\xff\xff\xff", 12)), "4294967295");
  ExpectRefused(FileWith("{'descr': '<f2', 'fortran_order': False, 'shape': (3,), }", 6), "<f2");
  ExpectRefused(FileWith("{'descr': '>f4', 'fortran_order': False, 'shape': (3,), }", 12), ">f4");
  ExpectRefused(FileWith("{'descr': '<f4', 'fortran_order': True, 'shape': (3,), }", 12), "Fortran");
  ExpectRefused(FileWith("{'descr': '<f4', 'fortran_order': False, 'shape': (), }", 4), "0 dimensions");
  ExpectRefused(FileWith("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 1), }", 4), "3 dimensions");
  ExpectRefused(FileWith("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }", 4), "-1");
  ExpectRefused(FileWith("{'descr': '<f4', 'fortran_order': False, 'shape': (3, }", 12), "tuple");
  ExpectRefused(FileWith("{'descr': '<f4', 'fortran_order': False, }", 12), "shape");
  ExpectRefused(FileWith("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }", 4),
                "overflows");
}

TEST_F(NpyTest, ASizeThatIsNotTheHeadersIsRefusedWithBoth) {
  const std::string dictionary = "{'descr': '<i8', 'fortran_order': False, 'shape': (3,), }";
  EXPECT_TRUE(ReadNpyHeader(FileWith(dictionary, 24)).ok());
  const size_t offset = 10 + dictionary.size();
  ExpectRefused(FileWith(dictionary, 23), std::to_string(offset + 23));
  ExpectRefused(FileWith(dictionary, 25), std::to_string(offset + 24));
}

}  // namespace
}  // namespace sparrow
