// Whole runs on input that has thrown others: ids outside, ids of every pattern, batches and files that leave a worker
// without rows, tables of odd dimensions, a test set cut at any place.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "server/row_file.h"
#include "tests/support/edge_keys.h"
#include "tests/worker/training_harness.h"
#include "worker/checkpoint.h"

namespace sparrow {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kSeed = 23;

class TrainerInput : public ::testing::Test {
 protected:
  TrainerInput() { WriteClicks(Path("test.tsv"), 300, kSeed + 1); }

  std::string Path(const std::string& name) const { return harness_.data_root() + "/" + name; }

  // `rows` rows whose ids of column a are 1 to 39, but for row 90's, which is `odd`.
  void WriteWithOneOddId(const std::string& name, int rows, uint64_t odd) {
    std::ofstream file(Path(name));
    for (int i = 0; i < rows; ++i) {
      file << i % 2 << "\t1\t2\t" << (i == 90 ? odd : static_cast<uint64_t>(i % 39 + 1)) << "\t" << i % 7 << "\t"
           << i % 11 << "\n";
    }
  }

  struct SavedRow {
    std::string table;
    uint32_t dim;
    size_t record_bytes;
    bool operator<(const SavedRow& other) const {
      return std::tie(table, dim, record_bytes) < std::tie(other.table, other.dim, other.record_bytes);
    }
  };
  // Keys in the checkpoint, by table.
  std::map<std::string, std::vector<Key>> SavedKeys(const std::string& path,
                                                    const std::function<void(const SavedRow&)>& see = nullptr) {
    std::map<std::string, std::vector<Key>> keys;
    const auto checkpoint = OpenCheckpoint(harness_.checkpoint_root(), path);
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    if (!checkpoint.ok()) return keys;
    for (const v1::SavedFile& file : checkpoint->manifest.files()) {
      auto reader = RowFileReader::Open(checkpoint->directory + "/" + file.name());
      EXPECT_TRUE(reader.ok()) << reader.status();
      Key key = 0;
      absl::string_view record;
      while (true) {
        const absl::StatusOr<bool> more = (*reader)->Next(&key, &record);
        EXPECT_TRUE(more.ok()) << more.status();
        if (!more.ok() || !*more) break;
        keys[file.table()].push_back(key);
        if (see) see({file.table(), (*reader)->header().dim, record.size()});
      }
    }
    return keys;
  }

  TrainingHarness harness_;
};

// https://github.com/meta-pytorch/torchrec/issues/575
TEST_F(TrainerInput, AnIdEqualToTheRowsStopsTheJobOrIsLeftOutOrFoldedAsDeclared) {
  WriteWithOneOddId("train.tsv", 320, 40);
  v1::Job job = ClickJob();
  job.mutable_checkpoint()->set_at_end(true);
  const auto stopped = harness_.Train(job, {.workers = 2});
  // Row 90 is in the second worker's half of its batch.
  EXPECT_THAT(std::string(stopped.ranks[1].status().message()),
              AllOf(HasSubstr("train.tsv:91:4"), HasSubstr("id 40 "), HasSubstr("feature \"a\""),
                    HasSubstr("40 rows (ids 0 to 39)")));
  EXPECT_LE(stopped.recorder.losses.size(), 2u);  // Steps before the row's.

  job.mutable_data()->set_on_bad_row(v1::DataConfig::SKIP);
  const double skipped = harness_.worker_metrics().rows_skipped.Value();
  const auto left_out = harness_.Train(job, {.workers = 2});
  ASSERT_TRUE(left_out.status().ok()) << left_out.status();
  EXPECT_EQ(left_out.summary().rows_read(), 320u);
  EXPECT_EQ(left_out.summary().rows_trained(), 319u);
  EXPECT_EQ(left_out.summary().rows_skipped(), 1u);
  EXPECT_EQ(harness_.worker_metrics().rows_skipped.Value(), skipped + 1);
  // Nobody trained row 0 in its stead: it never came to be.
  std::vector<Key> ids = SavedKeys(left_out.summary().checkpoint())["a"];
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(ids.size(), 39u);
  EXPECT_EQ(ids.front(), 1u);
  EXPECT_EQ(ids.back(), 39u);

  job.mutable_data()->set_on_bad_row(v1::DataConfig::STOP);
  job.mutable_features(0)->set_modulo(40);
  const auto folded = harness_.Train(job, {.workers = 2});
  ASSERT_TRUE(folded.status().ok()) << folded.status();
  EXPECT_EQ(folded.summary().rows_trained(), 320u);
}

// The rows were counted in the training data alone, or not at all: https://github.com/shenweichen/DeepCTR/issues/24
TEST_F(TrainerInput, ATableWithTooFewRowsForTheTestSetOrForAnyIdIsNamed) {
  WriteWithOneOddId("train.tsv", 320, 0);
  WriteWithOneOddId("test.tsv", 100, 1000);
  const auto test = harness_.Train(ClickJob(), {});
  EXPECT_THAT(std::string(test.status().message()),
              AllOf(HasSubstr("test.tsv:91:4"), HasSubstr("id 1000 "), HasSubstr("40 rows")));

  v1::Job job = ClickJob();
  job.mutable_tables(0)->set_bounded_rows(1);
  const auto one_row = harness_.Train(job, {});
  EXPECT_EQ(one_row.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(one_row.status().message()),
              AllOf(HasSubstr("train.tsv:1:4"), HasSubstr("id 1 "), HasSubstr("1 rows (ids 0 to 0)")));
  EXPECT_TRUE(one_row.recorder.losses.empty());
}

// From text to checkpoint and back: https://github.com/NVIDIA-Merlin/HugeCTR/issues/432
TEST_F(TrainerInput, IdsOfEveryPatternAreTrainedSavedAndRestoredAsTheirOwnRows) {
  const std::vector<Key> ids = AwkwardKeys();
  std::ofstream file(Path("train.tsv"));
  for (size_t i = 0; i < 5 * ids.size(); ++i) file << i % 2 << "\t1\t2\t3\t\t" << ids[i % ids.size()] << "\n";
  file << "1\t1\t2\t3\t\t-1\n";  // The same as 2^64-1.
  file.close();
  v1::Job job = ClickJob();
  job.mutable_checkpoint()->set_at_end(true);
  job.mutable_train()->set_batch_size(16);
  const auto first = harness_.Train(job, {.workers = 2, .servers = 3});
  ASSERT_TRUE(first.status().ok()) << first.status();
  EXPECT_THAT(SavedKeys(first.summary().checkpoint())["b"], ::testing::UnorderedElementsAreArray(ids));

  job.mutable_train()->set_epochs(2);
  const auto more = harness_.Train(job, {.servers = 2, .restore_from = first.summary().checkpoint()});
  ASSERT_TRUE(more.status().ok()) << more.status();
  EXPECT_THAT(SavedKeys(more.summary().checkpoint())["b"], ::testing::UnorderedElementsAreArray(ids));
  const auto whole = harness_.Train(job, {});
  ASSERT_TRUE(whole.status().ok()) << whole.status();
  EXPECT_EQ(more.recorder.losses.back().loss(), whole.recorder.losses.back().loss());
}

// 10,000 rows in batches of 4,096 over three workers: the last batch has 1,808 rows, none of them the third worker's.
// https://github.com/pytorch/FBGEMM/issues/3750
TEST_F(TrainerInput, AWorkerWithoutRowsInTheLastBatchWeighsNothing) {
  WriteClicks(Path("train.tsv"), 10000, kSeed);
  v1::Job job = ClickJob();
  job.mutable_train()->set_batch_size(4096);
  job.mutable_train()->set_epochs(4);  // What the last step did shows in the losses after it.
  const auto one = harness_.Train(job, {});
  ASSERT_TRUE(one.status().ok()) << one.status();
  const auto three = harness_.Train(job, {.workers = 3, .servers = 2});
  ASSERT_TRUE(three.status().ok()) << three.status();
  EXPECT_EQ(three.summary().steps(), 12u);
  EXPECT_EQ(three.summary().rows_trained(), 40000u);
  ASSERT_EQ(three.recorder.losses.size(), one.recorder.losses.size());
  for (size_t i = 0; i < one.recorder.losses.size(); ++i) {
    EXPECT_NEAR(three.recorder.losses[i].loss(), one.recorder.losses[i].loss(), 1e-5) << i;
  }
  EXPECT_NEAR(three.summary().eval().loss(), one.summary().eval().loss(), 1e-5);
}

// https://github.com/meta-pytorch/torchrec/issues/1495
TEST_F(TrainerInput, OneModelTrainsTablesOfAnyDimensionsAndSavesThemWithoutPadding) {
  WriteClicks(Path("train.tsv"), 3200, kSeed);
  v1::Job job = ClickJob();
  job.mutable_checkpoint()->set_at_end(true);
  job.mutable_train()->set_epochs(2);
  job.mutable_train()->mutable_optimizer()->set_learning_rate(0.005);
  job.clear_features();
  job.clear_tables();
  const std::vector<uint32_t> dims = {1, 2, 3, 5, 10, 13, 16, 128};
  for (const uint32_t dim : dims) {
    v1::TableConfig* table = job.add_tables();
    *table = ClickJob().tables(1);
    table->set_name(absl::StrCat("t", dim));
    table->set_dim(dim);
    table->mutable_optimizer()->mutable_adagrad();
    v1::FeatureConfig* feature = job.add_features();
    feature->set_name(table->name());
    feature->set_column(dim % 3 == 0 ? "a" : dim % 3 == 1 ? "b" : "c");
  }
  v1::Dcnv2* model = job.mutable_model()->mutable_dcnv2();
  for (const uint32_t units : {8, 4}) model->add_bottom(units);
  model->set_cross_layers(2);
  model->set_cross_rank(16);
  for (const uint32_t units : {8, 1}) model->add_top(units);
  const auto one = harness_.Train(job, {});
  ASSERT_TRUE(one.status().ok()) << one.status();
  const auto mean_loss = [&](size_t first, size_t last) {
    double sum = 0;
    for (size_t i = first; i < last; ++i) sum += one.recorder.losses[i].loss();
    return sum / static_cast<double>(last - first);
  };
  ASSERT_EQ(one.recorder.losses.size(), 200u);
  EXPECT_LT(mean_loss(180, 200), 0.9 * mean_loss(0, 20));  // It learns.
  const auto many = harness_.Train(job, {.workers = 2, .servers = 3});
  ASSERT_TRUE(many.status().ok()) << many.status();
  for (size_t i = 0; i < 200; ++i) {
    ASSERT_NEAR(many.recorder.losses[i].loss(), one.recorder.losses[i].loss(), 1e-5) << i;
  }
  std::set<SavedRow> seen;
  SavedKeys(many.summary().checkpoint(), [&](const SavedRow& row) { seen.insert(row); });
  std::set<SavedRow> expected;  // Weights, as many accumulators, 16 bytes of metadata.
  for (const uint32_t dim : dims) expected.insert({absl::StrCat("t", dim), dim, size_t{dim} * 8 + 16});
  EXPECT_TRUE(std::equal(seen.begin(), seen.end(), expected.begin(), expected.end(),
                         [](const SavedRow& a, const SavedRow& b) { return !(a < b) && !(b < a); }));
}

// Fewer files than workers, files that no worker's number divides, files without rows.
// https://github.com/NVIDIA-Merlin/HugeCTR/issues/298
TEST_F(TrainerInput, EveryRowOfEveryFileIsTrainedOnceWhateverTheCounts) {
  WriteClicks(Path("test.tsv"), 3, kSeed);
  const std::string header = "click\tn1\tn2\ta\tb\tc\n";
  const auto write = [&](const std::string& name, int rows) {
    WriteClicks(Path("rows"), rows, kSeed + static_cast<uint64_t>(rows));
    std::ofstream(Path(name)) << header << *ReadFile(Path("rows"));
  };
  write("five_0.tsv", 37);
  write("five_1.tsv", 101);
  std::ofstream(Path("five_2.tsv")).close();  // Empty.
  write("five_3.tsv", 0);                     // A header only.
  write("five_4.tsv", 64);
  write("one.tsv", 202);
  write("test.tsv", 55);
  v1::Job job = ClickJob();
  job.mutable_data()->mutable_text()->set_header(true);
  job.mutable_train()->set_epochs(2);
  for (const char* path : {"one.tsv", "five_*.tsv"}) {
    job.mutable_data()->mutable_train()->set_path(0, path);
    for (const uint32_t workers : {1u, 4u}) {
      const auto result = harness_.Train(job, {.workers = workers});
      ASSERT_TRUE(result.status().ok()) << path << ": " << result.status();
      EXPECT_EQ(result.summary().rows_read(), 2u * 202) << path << ", " << workers;
      EXPECT_EQ(result.summary().rows_trained(), 2u * 202) << path << ", " << workers;
      EXPECT_EQ(result.summary().steps(), 2u * 7) << path << ", " << workers;
      EXPECT_EQ(result.summary().eval().rows(), 55u);
    }
  }
}

// Sorted by label, so that most batches have one class: https://github.com/shenweichen/DeepCTR-Torch/issues/266
TEST_F(TrainerInput, TheAucIsThatOfTheWholeTestSetHoweverItIsCut) {
  WriteClicks(Path("train.tsv"), 640, kSeed);
  std::vector<std::string> lines = absl::StrSplit(*ReadFile(Path("test.tsv")), '\n', absl::SkipEmpty());
  std::sort(lines.begin(), lines.end());
  std::ofstream file(Path("test.tsv"));
  for (const std::string& line : lines) file << line << "\n";
  file.close();
  v1::Job job = ClickJob();
  job.mutable_eval()->set_batch_size(1000);
  const auto at_once = harness_.Train(job, {});
  ASSERT_TRUE(at_once.status().ok()) << at_once.status();
  EXPECT_TRUE(at_once.summary().eval().has_auc());
  for (const uint32_t batch_size : {1u, 7u, 299u}) {
    for (const uint32_t workers : {1u, 2u}) {
      job.mutable_eval()->set_batch_size(batch_size);
      const auto cut = harness_.Train(job, {.workers = workers});
      ASSERT_TRUE(cut.status().ok()) << cut.status();
      EXPECT_EQ(cut.summary().eval().rows(), 300u);
      EXPECT_NEAR(cut.summary().eval().auc(), at_once.summary().eval().auc(), 1e-4) << batch_size << ", " << workers;
      EXPECT_NEAR(cut.summary().eval().loss(), at_once.summary().eval().loss(), 1e-6) << batch_size << ", " << workers;
    }
  }
}

}  // namespace
}  // namespace sparrow
