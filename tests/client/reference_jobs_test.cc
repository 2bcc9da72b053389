// The job files of deploy/jobs: all of them are valid, and the reference models have the published shapes. The numbers
// here were typed from the publications' tables, not taken from the files.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/job_file.h"
#include "worker/job_check.h"

namespace sparrow {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

v1::Job Load(const std::string& name) {
  const absl::StatusOr<v1::Job> job =
      LoadJobFile(absl::StrCat(SPARROW_SOURCE_DIR, "/deploy/jobs/", name, ".textproto"));
  EXPECT_TRUE(job.ok()) << job.status();
  return job.ok() ? *job : v1::Job();
}

std::vector<uint64_t> Rows(const v1::Job& job) {
  std::vector<uint64_t> rows;
  for (const v1::TableConfig& table : job.tables()) rows.push_back(table.bounded_rows());
  return rows;
}

std::vector<uint64_t> Modulos(const v1::Job& job) {
  std::vector<uint64_t> modulos;
  for (const v1::FeatureConfig& feature : job.features()) modulos.push_back(feature.modulo());
  return modulos;
}

// 26 one-hot or multi-hot columns, summed, each with a table of its own that starts uniform in +-1/sqrt(rows).
void ExpectCriteoTables(const v1::Job& job, uint32_t dim) {
  ASSERT_EQ(job.tables_size(), 26);
  ASSERT_EQ(job.features_size(), 26);
  for (int i = 0; i < 26; ++i) {
    EXPECT_EQ(job.tables(i).name(), absl::StrCat("C", i + 1));
    EXPECT_EQ(job.tables(i).dim(), dim);
    EXPECT_TRUE(job.tables(i).initializer().uniform_by_rows());
    EXPECT_EQ(job.features(i).name(), job.tables(i).name());
    EXPECT_EQ(job.features(i).pooling(), v1::FeatureConfig::SUM);
  }
  EXPECT_EQ(job.data().dense_transform(), v1::DataConfig::LOG1P);
  EXPECT_EQ(job.train().epochs(), 1u);
}

TEST(ReferenceJobs, EveryFileOfDeployJobsIsAValidJobThatSaysWhatItIs) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(absl::StrCat(SPARROW_SOURCE_DIR, "/deploy/jobs"))) {
    if (entry.path().extension() != ".textproto") continue;
    ++files;
    const absl::StatusOr<v1::Job> job = LoadJobFile(entry.path().string());
    ASSERT_TRUE(job.ok()) << job.status();
    EXPECT_EQ(job->name(), entry.path().stem().string());
    EXPECT_TRUE(ValidateJob(*job).ok()) << entry.path() << ": " << ValidateJob(*job);
  }
  EXPECT_GE(files, 5);
}

TEST(ReferenceJobs, CriteoKaggle) {
  const v1::Job job = Load("criteo_kaggle");
  ExpectCriteoTables(job, 16);
  const std::vector<uint64_t> rows = {1460,  583,  10131227, 2202608, 305, 24,     12517,   633,   3,
                                      93145, 5683, 8351593,  3194,    27,  14992,  5461306, 10,    5652,
                                      2173,  4,    7046547,  18,      15,  286181, 105,     142572};
  EXPECT_THAT(Rows(job), ElementsAreArray(rows));
  EXPECT_THAT(Modulos(job), ElementsAreArray(rows));
  EXPECT_THAT(job.model().dlrm().bottom(), ElementsAre(512, 256, 64, 16));
  EXPECT_THAT(job.model().dlrm().top(), ElementsAre(512, 256, 1));
  EXPECT_EQ(job.train().batch_size(), 128u);
  EXPECT_TRUE(job.train().optimizer().has_sgd());
  EXPECT_DOUBLE_EQ(job.train().optimizer().learning_rate(), 0.1);
  for (const v1::TableConfig& table : job.tables()) {
    EXPECT_TRUE(table.optimizer().has_sgd());
    EXPECT_DOUBLE_EQ(table.optimizer().learning_rate(), 0.1);
  }
  // 45,840,617 rows in seven days: the parts meet, and each row is in one of them.
  EXPECT_DOUBLE_EQ(job.data().train().rows().take_share(), job.data().test().rows().skip_share());
  EXPECT_NEAR(job.data().train().rows().take_share(), 6.0 / 7, 1e-12);
  EXPECT_TRUE(job.data().has_criteo());
}

TEST(ReferenceJobs, CriteoTerabyte) {
  const v1::Job job = Load("criteo_terabyte");
  ExpectCriteoTables(job, 64);
  const std::vector<uint64_t> rows = {9980333, 36084,   17217,   7378,    20134,  3,     7112, 1442, 61,
                                      9758201, 1333352, 313829,  10,      2208,   11156, 122,  4,    970,
                                      14,      9994222, 7267859, 9946608, 415421, 12420, 101,  36};
  EXPECT_THAT(Rows(job), ElementsAreArray(rows));
  EXPECT_THAT(Modulos(job), ElementsAreArray(rows));
  EXPECT_THAT(job.model().dlrm().bottom(), ElementsAre(512, 256, 64));
  EXPECT_THAT(job.model().dlrm().top(), ElementsAre(512, 512, 256, 1));
  EXPECT_EQ(job.train().batch_size(), 2048u);
  EXPECT_TRUE(job.train().optimizer().has_sgd());
  EXPECT_DOUBLE_EQ(job.train().optimizer().learning_rate(), 0.1);
  ASSERT_EQ(job.data().train().path_size(), 23);
  EXPECT_EQ(job.data().train().path(0), "day_0.gz");
  EXPECT_EQ(job.data().train().path(22), "day_22.gz");
  EXPECT_THAT(job.data().test().path(), ElementsAre("day_23.gz"));
}

TEST(ReferenceJobs, DlrmDcnv2) {
  const v1::Job job = Load("dlrm_dcnv2");
  ExpectCriteoTables(job, 128);
  EXPECT_THAT(Rows(job), ElementsAreArray(std::vector<uint64_t>{
                             40000000, 39060,    17295,    7424,     20265,  3,     7122, 1543, 63,
                             40000000, 3067956,  405282,   10,       2209,   11938, 155,  4,    976,
                             14,       40000000, 40000000, 40000000, 590152, 12973, 108,  36}));
  const std::vector<uint32_t> bags = {3, 2, 1, 2, 6, 1, 1,  1,   1,  7,  3, 8, 1,
                                      6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1};
  uint32_t lookups = 0;
  for (int i = 0; i < 26; ++i) {
    EXPECT_EQ(job.features(i).bag_size(), bags[i]) << i;
    EXPECT_FALSE(job.features(i).has_modulo());
    lookups += job.features(i).bag_size();
  }
  EXPECT_EQ(lookups, 214u);
  const v1::Dcnv2& model = job.model().dcnv2();
  EXPECT_THAT(model.bottom(), ElementsAre(512, 256, 128));
  EXPECT_EQ(model.cross_layers(), 3u);
  EXPECT_EQ(model.cross_rank(), 512u);
  EXPECT_THAT(model.top(), ElementsAre(1024, 1024, 512, 256, 1));
  EXPECT_EQ(job.train().batch_size(), 65536u);
  std::vector<v1::OptimizerConfig> optimizers = {job.train().optimizer()};
  for (const v1::TableConfig& table : job.tables()) optimizers.push_back(table.optimizer());
  for (const v1::OptimizerConfig& optimizer : optimizers) {
    EXPECT_TRUE(optimizer.has_adagrad());
    EXPECT_DOUBLE_EQ(optimizer.learning_rate(), 0.004);
    EXPECT_DOUBLE_EQ(optimizer.adagrad().eps(), 1e-8);
  }
  EXPECT_EQ(job.data().train().path_size(), 23);
  EXPECT_EQ(job.data().dlrm_npy().dense_columns(), 13u);
}

TEST(ReferenceJobs, Movielens) {
  const v1::Job job = Load("movielens");
  EXPECT_THAT(job.data().train().path(), ElementsAre("movielens_clicks.tsv.gz"));
  EXPECT_DOUBLE_EQ(job.data().train().rows().take_share(), 0.9);
  EXPECT_DOUBLE_EQ(job.data().test().rows().skip_share(), 0.9);
  EXPECT_THAT(job.model().dlrm().bottom(), ElementsAre(64, 16));
  EXPECT_THAT(job.model().dlrm().top(), ElementsAre(64, 32, 1));
  EXPECT_EQ(job.train().batch_size(), 256u);
  EXPECT_EQ(job.train().epochs(), 1u);
  ASSERT_EQ(job.tables_size(), 5);
  std::vector<v1::OptimizerConfig> optimizers = {job.train().optimizer()};
  for (const v1::TableConfig& table : job.tables()) {
    EXPECT_EQ(table.dim(), 16u);
    optimizers.push_back(table.optimizer());
  }
  for (const v1::OptimizerConfig& optimizer : optimizers) {
    EXPECT_TRUE(optimizer.has_adagrad());
    EXPECT_DOUBLE_EQ(optimizer.learning_rate(), 0.05);
    EXPECT_DOUBLE_EQ(optimizer.adagrad().eps(), 1e-8);
  }
  EXPECT_EQ(job.features(2).name(), "genres");
  EXPECT_EQ(job.features(2).pooling(), v1::FeatureConfig::SUM);
}

}  // namespace
}  // namespace sparrow
