// Saving the tables of a job and restoring them, through the shard, onto other numbers of servers.

#include "server/checkpoint_files.h"

#include <google/protobuf/text_format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <thread>

#include "base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sparrow/v1/checkpoint.pb.h"
#include "tests/server/shard_fixture.h"

namespace sparrow {
namespace {

using ::testing::HasSubstr;

constexpr size_t kKeys = 1000;

// A job on several servers that share one checkpoint root.
class Cluster {
 public:
  Cluster(TestJob job, uint32_t servers, const std::string& root) {
    job.shards = ShardAssignment::RowWise(servers);
    for (uint32_t server = 0; server < servers; ++server) {
      job.server = server;
      jobs_.push_back(job);
      directories_.push_back(std::make_unique<TemporaryDirectory>());
      auto made = Shard::Create(
          {.data = directories_.back()->path(), .checkpoint_root = root, .memory_bytes = 64 << 20}, &metrics_);
      CHECK(made.ok()) << made.status();
      shards_.push_back(*std::move(made));
    }
  }

  absl::Status Open() {
    for (size_t i = 0; i < shards_.size(); ++i) {
      v1::OpenJobResponse response;
      if (absl::Status status = shards_[i]->OpenJob(jobs_[i].Open(), &response); !status.ok()) return status;
      for (const uint64_t rows : response.rows()) rows_ += rows;
    }
    return absl::OkStatus();
  }
  uint64_t rows_restored() const { return rows_; }

  void Train(uint64_t from, uint64_t to) {
    for (uint64_t step = from; step < to; ++step) {
      std::mt19937_64 random(step);
      std::vector<std::vector<TestJob::Gradients>> pushes(shards_.size(), {{0, {}, {}}, {1, {}, {}}});
      std::normal_distribution<float> normal;
      for (uint32_t table = 0; table < 2; ++table) {
        for (Key key = 0; key < kKeys; key += 1 + random() % 3) {
          const Key id = table == 0 ? key * 0x9e3779b97f4a7c15u : key;
          TestJob::Gradients& entry = pushes[jobs_[0].shards.ServerOf(id)][table];
          entry.keys.push_back(id);
          for (int column = 0; column < (table == 0 ? 4 : 3); ++column) entry.values.push_back(normal(random));
        }
      }
      for (size_t i = 0; i < shards_.size(); ++i) {
        v1::PushResponse response;
        const absl::Status status = shards_[i]->Push(jobs_[i].Push(step, pushes[i], 0, 10), &response);
        ASSERT_TRUE(status.ok()) << status;
      }
    }
  }

  // Every row of both tables, by key.
  std::vector<float> Rows(uint64_t step) {
    std::vector<float> rows;
    for (uint32_t table = 0; table < 2; ++table) {
      for (Key key = 0; key < kKeys; ++key) {
        const Key id = table == 0 ? key * 0x9e3779b97f4a7c15u : key;
        const uint32_t server = jobs_[0].shards.ServerOf(id);
        PullInFlight pull(shards_[server].get(), jobs_[server].Pull(step, {{table, {id}}}, 0, /*create=*/false));
        CHECK(pull.done());
        CHECK(pull.Wait().ok()) << pull.Wait();
        for (const float value : RowsOf(pull.response())) rows.push_back(value);
      }
    }
    return rows;
  }

  // One step that moves these rows of table "user" alone; every server gets a push.
  void TrainUser(uint64_t step, const std::vector<Key>& keys) {
    std::vector<TestJob::Gradients> pushes(shards_.size());
    for (const Key key : keys) {
      TestJob::Gradients& entry = pushes[jobs_[0].shards.ServerOf(key)];
      entry.keys.push_back(key);
      for (int column = 0; column < 4; ++column) entry.values.push_back(static_cast<float>(key % 7 + 1));
    }
    for (size_t i = 0; i < shards_.size(); ++i) {
      v1::PushResponse response;
      const absl::Status status = shards_[i]->Push(jobs_[i].Push(step, {pushes[i]}), &response);
      ASSERT_TRUE(status.ok()) << status;
    }
  }

  // Rows of table "user". Every server is asked, also for none.
  std::vector<float> UserRows(uint64_t step, const std::vector<Key>& keys) {
    std::map<Key, std::vector<float>> rows;
    for (uint32_t server = 0; server < shards_.size(); ++server) {
      std::vector<Key> here;
      std::copy_if(keys.begin(), keys.end(), std::back_inserter(here),
                   [&](Key key) { return jobs_[0].shards.ServerOf(key) == server; });
      PullInFlight pull(shards_[server].get(), jobs_[server].Pull(step, {{0, here}}, 0, /*create=*/false));
      CHECK(pull.Wait().ok()) << pull.Wait();
      const std::vector<float> values = RowsOf(pull.response());
      CHECK(values.size() == here.size() * 4);
      for (size_t i = 0; i < here.size(); ++i) {
        rows[here[i]].assign(values.begin() + static_cast<int64_t>(i) * 4,
                             values.begin() + static_cast<int64_t>(i) * 4 + 4);
      }
    }
    std::vector<float> all;
    for (const Key key : keys) all.insert(all.end(), rows.at(key).begin(), rows.at(key).end());
    return all;
  }

  absl::Status Save(const std::string& directory, uint64_t step, v1::Manifest* manifest) {
    for (size_t i = 0; i < shards_.size(); ++i) {
      v1::SaveTablesRequest request;
      *request.mutable_context() = jobs_[i].Context();
      request.set_directory(directory);
      request.set_step(step);
      v1::SaveTablesResponse response;
      if (absl::Status status = shards_[i]->SaveTables(request, &response); !status.ok()) return status;
      for (const v1::SavedFile& file : response.files()) *manifest->add_files() = file;
    }
    return absl::OkStatus();
  }

 private:
  Metrics metrics_;
  std::vector<std::unique_ptr<TemporaryDirectory>> directories_;
  std::vector<std::unique_ptr<Shard>> shards_;
  std::vector<TestJob> jobs_;
  uint64_t rows_ = 0;
};

void WriteManifest(const std::string& directory, const v1::Manifest& manifest) {
  std::string text;
  CHECK(google::protobuf::TextFormat::PrintToString(manifest, &text));
  CHECK(WriteFileAtomically(directory + "/MANIFEST.textproto", text).ok());
}

TestJob AdamJob() {
  TestJob job;
  job.tables[0].mutable_optimizer()->mutable_adam();
  job.tables[1].mutable_optimizer()->mutable_rowwise_adagrad();
  job.tables[1].set_bounded_rows(kKeys);
  return job;
}

// Trains 3 steps on 3 servers and saves; the directory's "ckpt" is then a checkpoint.
class CheckpointFiles : public ::testing::Test {
 protected:
  CheckpointFiles() : trained_(AdamJob(), 3, root_.path()) {
    CHECK(trained_.Open().ok());
    trained_.Train(0, 3);
    CHECK(MakeDirectories(root_.File("ckpt")).ok());
    manifest_.set_format(1);
    manifest_.set_step(3);
    for (const v1::TableConfig& table : AdamJob().tables) *manifest_.mutable_job()->add_tables() = table;
    const absl::Status saved = trained_.Save("ckpt", 3, &manifest_);
    CHECK(saved.ok()) << saved;
    WriteManifest(root_.File("ckpt"), manifest_);
  }

  TestJob Restoring() const {
    TestJob job = AdamJob();
    job.restore_from = "ckpt";
    job.first_step = 3;
    return job;
  }
  absl::Status RestoreError(const TestJob& job) { return Cluster(job, 2, root_.path()).Open(); }
  absl::Status RestoreError() { return RestoreError(Restoring()); }

  TemporaryDirectory root_;
  Cluster trained_;
  v1::Manifest manifest_;
};

// Case 35: rows and optimizer state, on any number of servers, and training goes on as if nothing had been.
TEST_F(CheckpointFiles, RestoresOntoAnyNumberOfServers) {
  const std::vector<float> saved = trained_.Rows(3);
  trained_.Train(3, 6);
  const std::vector<float> expected = trained_.Rows(6);
  uint64_t rows = 0;
  for (const v1::SavedFile& file : manifest_.files()) rows += file.rows();
  for (const uint32_t servers : {1u, 2u, 3u, 5u}) {
    Cluster restored(Restoring(), servers, root_.path());
    const absl::Status opened = restored.Open();
    ASSERT_TRUE(opened.ok()) << opened;
    EXPECT_EQ(restored.rows_restored(), rows);
    EXPECT_EQ(restored.Rows(3), saved) << servers;
    restored.Train(3, 6);
    EXPECT_EQ(restored.Rows(6), expected) << servers;
  }
}

TEST_F(CheckpointFiles, ManifestDescribesTheFiles) {
  ASSERT_EQ(manifest_.files_size(), 6);
  for (const v1::SavedFile& file : manifest_.files()) {
    const auto digest = DigestFile(root_.File("ckpt/" + file.name()));
    ASSERT_TRUE(digest.ok()) << digest.status();
    EXPECT_EQ(digest->bytes, file.bytes());
    EXPECT_EQ(digest->crc32, file.crc32());
    EXPECT_GT(file.rows(), 0u);
  }
}

TEST_F(CheckpointFiles, SavingAgainReplaces) {
  v1::Manifest again;
  ASSERT_TRUE(trained_.Save("ckpt", 3, &again).ok());
  ASSERT_EQ(again.files_size(), manifest_.files_size());
  for (int i = 0; i < again.files_size(); ++i) EXPECT_EQ(again.files(i).crc32(), manifest_.files(i).crc32());
}

TEST_F(CheckpointFiles, AnotherStepThanAskedForIsRefused) {
  v1::Manifest ignored;
  const absl::Status status = trained_.Save("ckpt", 4, &ignored);
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("step 4"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("3 steps"));
}

// Pushes go on while tables are saved: what is saved is one step, whole, or the save is refused.
TEST_F(CheckpointFiles, SavedBesidePushesAreThoseOfTheirStep) {
  constexpr size_t kSaves = 5;
  Cluster pushed(AdamJob(), 1, root_.path());
  ASSERT_TRUE(pushed.Open().ok());
  std::atomic<uint64_t> steps{0};
  std::atomic<bool> enough{false};
  std::thread training([&] {
    for (; !enough; ++steps) {
      pushed.Train(steps, steps + 1);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // Else every save would come too late.
    }
  });
  std::map<uint64_t, v1::Manifest> saved;
  const absl::Time start = absl::Now();
  while (saved.size() < kSaves && absl::Now() < start + absl::Seconds(60)) {
    const uint64_t step = steps;
    if (saved.contains(step)) continue;
    const std::string directory = absl::StrCat("beside-", step);
    ASSERT_TRUE(MakeDirectories(root_.File(directory)).ok());
    v1::Manifest manifest = manifest_;
    manifest.clear_files();
    manifest.set_step(step);
    const absl::Status status = pushed.Save(directory, step, &manifest);
    if (status.ok()) {
      saved[step] = manifest;
    } else {
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    }
  }
  enough = true;
  training.join();
  ASSERT_EQ(saved.size(), kSaves);

  Cluster alone(AdamJob(), 1, root_.path());
  ASSERT_TRUE(alone.Open().ok());
  uint64_t trained = 0;
  for (const auto& [step, manifest] : saved) {
    const std::string directory = absl::StrCat("beside-", step);
    WriteManifest(root_.File(directory), manifest);
    TestJob job = AdamJob();
    job.restore_from = directory;
    job.first_step = step;
    Cluster restored(job, 1, root_.path());
    const absl::Status opened = restored.Open();
    ASSERT_TRUE(opened.ok()) << opened;
    alone.Train(trained, step);
    trained = step;
    EXPECT_EQ(restored.Rows(step), alone.Rows(step)) << step;
  }
}

TEST_F(CheckpointFiles, PathsStayUnderTheRoot) {
  v1::Manifest ignored;
  for (const char* const path : {"../elsewhere", "/tmp", "ckpt/../../x"}) {
    const absl::Status saved = trained_.Save(path, 3, &ignored);
    EXPECT_TRUE(absl::IsPermissionDenied(saved)) << path << ": " << saved;
    TestJob job = Restoring();
    job.restore_from = path;
    EXPECT_TRUE(absl::IsPermissionDenied(RestoreError(job))) << path;
  }
  EXPECT_TRUE(absl::IsNotFound(trained_.Save("absent", 3, &ignored)));
  manifest_.mutable_files(0)->set_name("../../../etc/passwd");
  WriteManifest(root_.File("ckpt"), manifest_);
  EXPECT_TRUE(absl::IsPermissionDenied(RestoreError())) << RestoreError();
}

// What OpenJob says of a probe, on a server of its own.
absl::Status OpenWithProbe(TestShard* server, const std::string& probe) {
  v1::OpenJobRequest request = TestJob().Open();
  request.set_checkpoint_probe(probe);
  v1::OpenJobResponse response;
  return server->shard->OpenJob(request, &response);
}

TEST(CheckpointProbe, ThatIsSeenOpensTheJobAndNothingIsLeftBesideIt) {
  TestShard server;
  const std::string job = server.directory.File("job");
  std::filesystem::create_directory(job);
  std::ofstream(job + "/probe") << "x";
  for (const char* const call : {"first", "repeated"}) {
    const absl::Status status = OpenWithProbe(&server, "job/probe");
    EXPECT_TRUE(status.ok()) << call << ": " << status;
  }
  size_t entries = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(job)) ++entries;
  EXPECT_EQ(entries, 1u);
}

TEST(CheckpointProbe, ThatIsNotThereOrLiesOutsideTheRootIsRefusedByNameAndNothingIsOpen) {
  TestShard server;
  const std::string root = server.directory.path();
  std::filesystem::create_directory(server.directory.File("job"));
  for (const char* const absent : {"job/probe", "none/probe", "job", "."}) {
    const absl::Status status = OpenWithProbe(&server, absent);
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << absent << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("job job-1 cannot be opened: --checkpoint-root " + root));
    if (std::string(absent) != ".") {
      EXPECT_THAT(std::string(status.message()), HasSubstr(server.directory.File(absent) + ", which rank 0"));
    }
    EXPECT_THAT(std::string(status.message()), HasSubstr("; give all members one --checkpoint-root"));
  }
  for (const char* const outside : {"../probe", "/etc/passwd", "job/../../x"}) {
    const absl::Status status = OpenWithProbe(&server, outside);
    EXPECT_TRUE(absl::IsPermissionDenied(status)) << outside << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(outside));
  }
  EXPECT_TRUE(absl::IsFailedPrecondition(server.Push(TestJob().Push(0, {}))));
}

// In /proc nobody may make a file, not even root.
TEST(CheckpointProbe, BesideWhichNothingCanBeWrittenIsRefusedByName) {
  const absl::Status status = CheckCheckpointProbe("/proc", "self/status");
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("--checkpoint-root /proc: /proc/"));
  EXPECT_THAT(std::string(status.message()), HasSubstr(": cannot write a file there: "));
  EXPECT_THAT(std::string(status.message()), HasSubstr("; give all members one --checkpoint-root"));
}

TEST_F(CheckpointFiles, DirectoryWithoutManifestIsNoCheckpoint) {
  std::filesystem::remove(root_.File("ckpt/MANIFEST.textproto"));
  EXPECT_TRUE(absl::IsNotFound(RestoreError()));
  EXPECT_THAT(std::string(RestoreError().message()), HasSubstr("MANIFEST.textproto"));
  std::ofstream(root_.File("ckpt/MANIFEST.textproto")) << "format: 1 job { nam";
  EXPECT_TRUE(absl::IsDataLoss(RestoreError())) << RestoreError();
}

// Case 37.
TEST_F(CheckpointFiles, DamagedAndMissingFilesAreNamed) {
  const std::string name = manifest_.files(2).name();
  const std::string path = root_.File("ckpt/" + name);
  const std::string whole = *ReadFile(path);
  const auto refuse = [&](const std::string& contents) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << contents;
    const absl::Status status = RestoreError();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(name));
  };
  refuse(whole.substr(0, whole.size() - 1));
  std::string flipped = whole;
  flipped[whole.size() / 2] ^= 4;
  refuse(flipped);
  std::filesystem::remove(path);
  EXPECT_TRUE(absl::IsNotFound(RestoreError()));
  // A sound file, but not the one that the manifest means.
  std::filesystem::copy_file(root_.File("ckpt/" + manifest_.files(0).name()), path);
  EXPECT_FALSE(RestoreError().ok());
}

// Case 38, and 13.
TEST_F(CheckpointFiles, AnotherConfigurationIsNamed) {
  TestJob job = Restoring();
  job.tables[0].set_name("visitor");
  EXPECT_TRUE(absl::IsFailedPrecondition(RestoreError(job)));
  EXPECT_THAT(std::string(RestoreError(job).message()), HasSubstr("missing: [visitor], unexpected: [user]"));
  job = Restoring();
  job.tables.pop_back();
  EXPECT_THAT(std::string(RestoreError(job).message()), HasSubstr("missing: [], unexpected: [item]"));
  job = Restoring();
  job.tables[0].set_dim(5);
  EXPECT_THAT(std::string(RestoreError(job).message()), HasSubstr("dim 4, expected 5"));
  job = Restoring();
  job.tables[0].mutable_optimizer()->mutable_sgd();
  EXPECT_THAT(std::string(RestoreError(job).message()), HasSubstr("optimizer adam, expected sgd"));
  job = Restoring();
  job.tables[0].set_storage(v1::BFLOAT16);
  EXPECT_THAT(std::string(RestoreError(job).message()),
              ::testing::AllOf(HasSubstr("user.server-"), HasSubstr("storage float32, expected bfloat16")));
  job = Restoring();
  job.tables[1].set_bounded_rows(100);
  EXPECT_THAT(std::string(RestoreError(job).message()), HasSubstr("1000 bounded rows, the job has 100"));
}

TEST_F(CheckpointFiles, FailedRestoreLeavesNoJobBehind) {
  std::filesystem::rename(root_.File("ckpt"), root_.File("moved"));
  Cluster cluster(Restoring(), 1, root_.path());
  EXPECT_FALSE(cluster.Open().ok());
  std::filesystem::rename(root_.File("moved"), root_.File("ckpt"));
  EXPECT_TRUE(cluster.Open().ok());
}

// Seven servers of eight have nothing to save: https://github.com/pytorch/FBGEMM/pull/3658
TEST(CheckpointFilesOfOneServer, AreWholeWhenTheOthersHoldNoRow) {
  TemporaryDirectory root;
  ASSERT_TRUE(MakeDirectories(root.File("c")).ok());
  const ShardAssignment shards = ShardAssignment::RowWise(8);
  std::vector<Key> keys;
  for (Key key = 0; keys.size() < 300; ++key) {
    if (shards.ServerOf(key) == 5) keys.push_back(key);
  }
  v1::Manifest manifest;
  manifest.set_format(1);
  std::vector<float> saved;
  {
    Cluster cluster(AdamJob(), 8, root.path());
    ASSERT_TRUE(cluster.Open().ok());
    cluster.TrainUser(0, keys);
    saved = cluster.UserRows(1, keys);
    ASSERT_TRUE(cluster.Save("c", 1, &manifest).ok());
  }
  uint64_t rows = 0, files_with_rows = 0;
  for (const v1::SavedFile& file : manifest.files()) {
    rows += file.rows();
    files_with_rows += file.rows() > 0 ? 1 : 0;
  }
  EXPECT_EQ(rows, keys.size());
  EXPECT_EQ(files_with_rows, 1u);
  WriteManifest(root.File("c"), manifest);
  TestJob job = AdamJob();
  job.restore_from = "c";
  job.first_step = 1;
  for (const uint32_t servers : {1u, 3u, 8u}) {
    Cluster restored(job, servers, root.path());
    ASSERT_TRUE(restored.Open().ok());
    EXPECT_EQ(restored.rows_restored(), keys.size());
    EXPECT_EQ(restored.UserRows(1, keys), saved) << servers;
  }
}

TEST(CheckpointFilesOfEmptyTables, RestoreAsEmptyTables) {
  TemporaryDirectory root;
  ASSERT_TRUE(MakeDirectories(root.File("c")).ok());
  v1::Manifest manifest;
  manifest.set_format(1);
  {
    Cluster cluster(AdamJob(), 2, root.path());
    ASSERT_TRUE(cluster.Open().ok());
    ASSERT_TRUE(cluster.Save("c", 0, &manifest).ok());
  }
  WriteManifest(root.File("c"), manifest);
  TestJob job = AdamJob();
  job.restore_from = "c";
  Cluster restored(job, 3, root.path());
  ASSERT_TRUE(restored.Open().ok());
  EXPECT_EQ(restored.rows_restored(), 0u);
}

}  // namespace
}  // namespace sparrow
