// The directory of a run's checkpoints: which stay, which go, which is taken when the job is resumed.

#include "worker/job_checkpoints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "tests/support/temp_files.h"

namespace sparrow {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class JobCheckpointsTest : public ::testing::Test {
 protected:
  JobCheckpointsTest() { job_.set_name("job"); }

  std::unique_ptr<JobCheckpoints> Prepare() {
    auto prepared = JobCheckpoints::Prepare(files_.root(), "job", "job-1");
    EXPECT_TRUE(prepared.ok()) << prepared.status();
    (*prepared)->RemoveProbe();
    return std::move(*prepared);
  }

  // Files of a checkpoint; `on_the_way` is asked when they are there.
  absl::StatusOr<JobCheckpoints::Saved> Save(
      JobCheckpoints* to, uint64_t step, uint32_t keep = 2,
      const std::function<absl::Status()>& on_the_way = [] { return absl::OkStatus(); }) {
    return to->Save(
        job_, {.step = step}, keep,
        [&](const std::string& relative, const std::string& directory, v1::Manifest* manifest) -> absl::Status {
          EXPECT_EQ(files_.Path(relative), directory);
          for (const std::string name : {"a.server-0.rows", "dense.safetensors"}) {
            std::ofstream(directory + "/" + name, std::ios::binary) << name << " of step " << step;
            v1::SavedFile* file = name[0] == 'a' ? manifest->add_files() : manifest->mutable_dense();
            const auto digest = DigestFile(directory + "/" + name);
            EXPECT_TRUE(digest.ok()) << digest.status();
            file->set_name(name);
            file->set_bytes(digest->bytes);
            file->set_crc32(digest->crc32);
          }
          return on_the_way();
        });
  }

  std::set<std::string> Entries(const std::string& directory = "job-job-1") const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(files_.Path(directory))) names.insert(entry.path().filename());
    return names;
  }
  absl::StatusOr<Checkpoint> Newest() const { return NewestCheckpoint(files_.root(), "job-job-1", nullptr); }
  void ExpectNewest(uint64_t step) const {
    const absl::StatusOr<Checkpoint> newest = Newest();
    ASSERT_TRUE(newest.ok()) << newest.status();
    EXPECT_EQ(newest->manifest.step(), step);
  }

  v1::Job job_;
  TempFiles files_;
};

TEST_F(JobCheckpointsTest, EachRunHasADirectoryOfItsOwnAndLeavesNoneThatIsEmpty) {
  auto first = Prepare();
  auto second = Prepare();
  EXPECT_EQ(first->directory(), files_.Path("job-job-1"));
  EXPECT_EQ(second->directory(), files_.Path("job-job-1.2"));
  ASSERT_TRUE(Save(second.get(), 5).ok());
  EXPECT_THAT(Entries("job-job-1.2"), ElementsAre("step-5"));
  first.reset();
  second.reset();
  EXPECT_THAT(Entries(""), ElementsAre("job-job-1.2"));
}

TEST_F(JobCheckpointsTest, TheNewestStayAndNoneGoesBeforeTheNextIsComplete) {
  const auto checkpoints = Prepare();
  for (const uint64_t step : {9, 10, 100}) {
    std::set<std::string> before = Entries();
    before.insert(absl::StrCat("step-", step));
    const auto saved = Save(checkpoints.get(), step, /*keep=*/2, [&] {
      EXPECT_EQ(Entries(), before);
      return absl::OkStatus();
    });
    ASSERT_TRUE(saved.ok()) << saved.status();
    EXPECT_EQ(saved->directory, absl::StrCat(checkpoints->directory(), "/step-", step));
    ExpectNewest(step);
  }
  EXPECT_THAT(Entries(), ElementsAre("step-10", "step-100"));
  ASSERT_TRUE(Save(checkpoints.get(), 101, /*keep=*/1).ok());
  EXPECT_THAT(Entries(), ElementsAre("step-101"));
}

TEST_F(JobCheckpointsTest, BytesAreThoseOfItsFiles) {
  const auto checkpoints = Prepare();
  const auto saved = Save(checkpoints.get(), 7);
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_EQ(saved->bytes,
            std::string("a.server-0.rows of step 7").size() + std::string("dense.safetensors of step 7").size());
}

TEST_F(JobCheckpointsTest, OneThatCannotBeWrittenLeavesNothingAndTouchesNoOther) {
  const auto checkpoints = Prepare();
  ASSERT_TRUE(Save(checkpoints.get(), 1).ok());
  ASSERT_TRUE(Save(checkpoints.get(), 2).ok());
  const absl::Status failed =
      Save(checkpoints.get(), 3, /*keep=*/2, [] { return absl::ResourceExhaustedError("no space left"); }).status();
  EXPECT_EQ(failed, absl::ResourceExhaustedError("no space left"));
  EXPECT_THAT(Entries(), ElementsAre("step-1", "step-2"));
  ASSERT_TRUE(Save(checkpoints.get(), 3).ok()) << "the next attempt finds its place";
  EXPECT_THAT(Entries(), ElementsAre("step-2", "step-3"));
}

TEST_F(JobCheckpointsTest, OneThatIsCompleteIsNotWrittenAgain) {
  const auto checkpoints = Prepare();
  const auto once = Save(checkpoints.get(), 3);
  const auto again = Save(checkpoints.get(), 3, 2, [] { return absl::InternalError("written again"); });
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->directory, once->directory);
  EXPECT_EQ(again->bytes, once->bytes);
}

// What a process leaves that is killed between two files.
TEST_F(JobCheckpointsTest, AnUnfinishedOneIsNeverTakenAndGoesAtTheNextSave) {
  const auto checkpoints = Prepare();
  ASSERT_TRUE(Save(checkpoints.get(), 1).ok());
  fs::create_directory(checkpoints->directory() + "/step-2");
  std::ofstream(checkpoints->directory() + "/step-2/a.server-0.rows") << "half";
  std::ofstream(checkpoints->directory() + "/step-2/MANIFEST.textproto.tmp") << "format: 1";
  fs::create_directory(checkpoints->directory() + "/other");
  ExpectNewest(1);
  ASSERT_TRUE(Save(checkpoints.get(), 3).ok());
  EXPECT_THAT(Entries(), ElementsAre("other", "step-1", "step-3"));
}

// Each kind of damage to one file of the newest.
TEST_F(JobCheckpointsTest, ADamagedNewestIsNamedAndTheOneBeforeIsTaken) {
  const auto checkpoints = Prepare();
  ASSERT_TRUE(Save(checkpoints.get(), 8).ok());
  ASSERT_TRUE(Save(checkpoints.get(), 12).ok());
  ExpectNewest(12);
  for (const std::string name : {"a.server-0.rows", "dense.safetensors", "MANIFEST.textproto"}) {
    const std::string path = "job-job-1/step-12/" + name;
    const std::string good = files_.Read(path);
    std::string flipped = good;
    flipped[good.size() / 2] ^= 1;
    for (const auto& [bad, says] :
         {std::pair(good.substr(0, good.size() - 1), absl::StrCat(good.size() - 1, " bytes")),
          std::pair(flipped, std::string("has CRC-32 ")), std::pair(std::string(")("), std::string())}) {
      if (name == "MANIFEST.textproto" && !says.empty()) continue;  // A byte of text may be anything.
      files_.Write(path, bad);
      testing::internal::CaptureStderr();
      ExpectNewest(8);
      EXPECT_THAT(testing::internal::GetCapturedStderr(),
                  AllOf(HasSubstr(files_.Path("job-job-1/step-12") + " is passed over: "), HasSubstr(files_.Path(path)),
                        HasSubstr(says)));
    }
    fs::remove(files_.Path(path));
    testing::internal::CaptureStderr();
    ExpectNewest(8);
    const std::string said = testing::internal::GetCapturedStderr();
    if (name == "MANIFEST.textproto") {
      EXPECT_THAT(said, IsEmpty()) << "without a manifest it is no checkpoint";
    } else {
      EXPECT_THAT(said, HasSubstr(name));
    }
    files_.Write(path, good);
    ExpectNewest(12);
  }
}

TEST_F(JobCheckpointsTest, WithoutAWholeOneTheNewestsDamageIsTheError) {
  const auto checkpoints = Prepare();
  fs::create_directory(checkpoints->directory() + "/step-2");
  EXPECT_TRUE(absl::IsNotFound(Newest().status())) << Newest().status();
  ASSERT_TRUE(Save(checkpoints.get(), 8).ok());
  ASSERT_TRUE(Save(checkpoints.get(), 12).ok());
  fs::remove(checkpoints->directory() + "/step-8/dense.safetensors");
  fs::remove(checkpoints->directory() + "/step-12/a.server-0.rows");
  const absl::Status status = Newest().status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("step-12/a.server-0.rows"));
}

TEST_F(JobCheckpointsTest, AJobsDirectoryIsToldFromACheckpoint) {
  const auto checkpoints = Prepare();
  EXPECT_FALSE(IsJobDirectory(files_.root(), "job-job-1")) << "it is empty";
  ASSERT_TRUE(Save(checkpoints.get(), 8).ok());
  EXPECT_TRUE(IsJobDirectory(files_.root(), "job-job-1"));
  EXPECT_TRUE(IsJobDirectory(files_.root(), checkpoints->directory()));
  EXPECT_FALSE(IsJobDirectory(files_.root(), "job-job-1/step-8"));
  EXPECT_FALSE(IsJobDirectory(files_.root(), ".."));
  EXPECT_FALSE(IsJobDirectory(files_.root(), "absent"));
}

}  // namespace
}  // namespace sparrow
