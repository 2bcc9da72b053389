#include "proto/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/temporary_directory.h"

namespace sparrow {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class ManifestFile : public testing::Test {
 protected:
  void Write(const std::string& text) { std::ofstream(path_, std::ios::binary) << text; }
  absl::Status ReadError() const { return ReadManifest(directory_.path()).status(); }

  const TemporaryDirectory directory_;
  const std::string path_ = directory_.File(kManifestName);
};

TEST_F(ManifestFile, IsReadAsItWasWritten) {
  v1::Manifest manifest;
  manifest.set_format(kCheckpointFormat);
  manifest.mutable_job()->set_name("clicks");
  v1::SavedFile* const file = manifest.add_files();
  file->set_name("ads.server-0.rows");
  file->set_rows(7);
  file->set_crc32(0xfedcba98);
  ASSERT_TRUE(WriteManifest(directory_.path(), manifest).ok());
  const absl::StatusOr<v1::Manifest> read = ReadManifest(directory_.path());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->DebugString(), manifest.DebugString());
}

TEST_F(ManifestFile, ADirectoryWithoutItIsNoCheckpoint) {
  EXPECT_TRUE(absl::IsNotFound(ReadError())) << ReadError();
  EXPECT_THAT(std::string(ReadError().message()), StartsWith(directory_.path() + ": no complete checkpoint is there"));
  EXPECT_THAT(std::string(ReadError().message()), HasSubstr(kManifestName));
}

TEST_F(ManifestFile, DamageIsNamedByLineAndColumn) {
  Write("format: 1\njob { nam");
  EXPECT_TRUE(absl::IsDataLoss(ReadError())) << ReadError();
  EXPECT_THAT(std::string(ReadError().message()), StartsWith(path_ + ":2:"));
}

TEST_F(ManifestFile, AnotherFormatIsRefusedWithBothNumbers) {
  Write("format: 2\n");
  EXPECT_TRUE(absl::IsFailedPrecondition(ReadError())) << ReadError();
  EXPECT_THAT(std::string(ReadError().message()), HasSubstr(path_ + " has format 2, but this version reads format 1"));
}

}  // namespace
}  // namespace sparrow
