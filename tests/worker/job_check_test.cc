#include "worker/job_check.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <string>

#include "base/file.h"
#include "worker/schema_check.h"

namespace sparrow {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

v1::Job GoodJob() {
  v1::Job job;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(R"(
    name: "good"
    data {
      train { path: "train.tsv" rows { take_share: 0.9 } }
      test { path: "test.tsv" }
      text {
        columns { name: "click" label {} }
        columns { name: "n" dense {} }
        columns { name: "user" categorical {} }
        columns { name: "tags" categorical { separator: "|" weight_separator: ":" } }
        columns { name: "note" ignored {} }
      }
    }
    tables { name: "user" dim: 4 bounded_rows: 100 optimizer { learning_rate: 0.1 sgd {} } }
    tables { name: "tags" dim: 4 hashed {} optimizer { learning_rate: 0.1 adam {} } }
    features { name: "user" modulo: 100 }
    features { name: "tags" }
    model { dlrm { bottom: 8 bottom: 4 top: 8 top: 1 } }
    train { batch_size: 32 optimizer { learning_rate: 0.05 adamw {} } schedule { warmup_steps: 10 cosine { decay_steps: 100 } } }
  )",
                                                            &job));
  return job;
}

TEST(JobCheck, AGoodJobPasses) { EXPECT_TRUE(ValidateJob(GoodJob()).ok()) << ValidateJob(GoodJob()); }

struct BadJob {
  const char* name;
  void (*spoil)(v1::Job* job);
  const char* message;
};

class JobCheckRefuses : public ::testing::TestWithParam<BadJob> {};

TEST_P(JobCheckRefuses, InOneLineThatNamesTheField) {
  v1::Job job = GoodJob();
  GetParam().spoil(&job);
  const absl::Status status = ValidateJob(job);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().message));
  EXPECT_THAT(std::string(status.message()), Not(HasSubstr("\n")));
}

const BadJob kBadJobs[] = {
    {"NoName", [](v1::Job* job) { job->clear_name(); }, "name is \"\""},
    {"NameWithSlash", [](v1::Job* job) { job->set_name("../x"); }, "name is \"../x\""},
    {"TableTwice", [](v1::Job* job) { job->mutable_tables(1)->set_name("user"); }, "tables[1].name is \"user\""},
    {"TableDim", [](v1::Job* job) { job->mutable_tables(1)->set_dim(0); }, "tables[1]"},
    {"TableOptimizer", [](v1::Job* job) { job->mutable_tables(0)->mutable_optimizer()->mutable_adamw(); }, "tables[0]"},
    {"UnusedTable", [](v1::Job* job) { *job->add_tables() = job->tables(0), job->mutable_tables(2)->set_name("x"); },
     "tables[2] (\"x\") is read by no feature"},
    {"FeatureTwice", [](v1::Job* job) { job->mutable_features(1)->set_name("user"); }, "features[1].name is \"user\""},
    {"FeatureWithoutTable", [](v1::Job* job) { job->mutable_features(1)->set_table("absent"); },
     "features[1] (\"tags\") reads table \"absent\""},
    {"FeatureWithoutColumn", [](v1::Job* job) { job->mutable_features(1)->set_column("note"); },
     "features[1] (\"tags\") reads column \"note\""},
    {"ColumnWithoutFeature",
     [](v1::Job* job) { job->mutable_data()->mutable_text()->mutable_columns(4)->mutable_categorical(); },
     "categorical column \"note\" of data.text is read by no feature"},
    {"ModuloOverRows", [](v1::Job* job) { job->mutable_features(0)->set_modulo(101); },
     "features[0].modulo is 101, but table \"user\" has 100 rows"},
    {"ModuloZero", [](v1::Job* job) { job->mutable_features(1)->set_modulo(0); }, "features[1].modulo is 0"},
    {"BagSize", [](v1::Job* job) { job->mutable_features(1)->set_bag_size(3); }, "features[1].bag_size is 3"},
    {"NoFormat", [](v1::Job* job) { job->mutable_data()->clear_format(); }, "data has no format"},
    {"NoTrainPath", [](v1::Job* job) { job->mutable_data()->mutable_train()->clear_path(); },
     "data.train.path is empty"},
    {"NoTrain", [](v1::Job* job) { job->mutable_data()->clear_train(); }, "data.train is not set"},
    {"UnlabelledTrain", [](v1::Job* job) { job->mutable_data()->mutable_train()->set_unlabelled(true); },
     "data.train.unlabelled is true, but training needs labels"},
    {"UnlabelledTest", [](v1::Job* job) { job->mutable_data()->mutable_test()->set_unlabelled(true); },
     "data.test.unlabelled is true, but evaluation needs labels"},
    {"UnlabelledNpy",
     [](v1::Job* job) {
       job->mutable_data()->mutable_dlrm_npy();
       job->mutable_data()->mutable_test()->set_unlabelled(true);
     },
     "data.test.unlabelled is true, but a set of dlrm_npy has its PREFIX_labels.npy"},
    {"ShareOverOne", [](v1::Job* job) { job->mutable_data()->mutable_train()->mutable_rows()->set_take_share(1.5); },
     "data.train.rows.take_share is 1.5"},
    {"TwoTakes", [](v1::Job* job) { job->mutable_data()->mutable_train()->mutable_rows()->set_take_rows(5); },
     "take_rows 5 and take_share 0.9"},
    {"Delimiter", [](v1::Job* job) { job->mutable_data()->mutable_text()->set_delimiter("::"); },
     "data.text.delimiter is \"::\""},
    {"TwoLabels", [](v1::Job* job) { job->mutable_data()->mutable_text()->mutable_columns(4)->mutable_label(); },
     "second label"},
    {"NoLabel", [](v1::Job* job) { job->mutable_data()->mutable_text()->mutable_columns(0)->mutable_ignored(); },
     "no label"},
    {"ColumnTwice", [](v1::Job* job) { job->mutable_data()->mutable_text()->mutable_columns(4)->set_name("n"); },
     "data.text.columns[4].name is \"n\""},
    {"SeparatorIsDelimiter",
     [](v1::Job* job) {
       job->mutable_data()->mutable_text()->mutable_columns(3)->mutable_categorical()->set_separator("\t");
     },
     "separator is \"\\t\", which is the delimiter too"},
    {"DlrmDims", [](v1::Job* job) { job->mutable_tables(1)->set_dim(8); },
     "tables[1].dim (\"tags\") is 8, but the last layer"},
    {"TopEnd", [](v1::Job* job) { job->mutable_model()->mutable_dlrm()->set_top(1, 2); }, "model.dlrm.top ends with 2"},
    {"TopEmpty", [](v1::Job* job) { job->mutable_model()->mutable_dlrm()->clear_top(); },
     "model.dlrm.top ends with nothing"},
    {"LayerZero", [](v1::Job* job) { job->mutable_model()->mutable_dlrm()->set_bottom(0, 0); },
     "model.dlrm.bottom[0] is 0"},
    {"BottomEmpty", [](v1::Job* job) { job->mutable_model()->mutable_dlrm()->clear_bottom(); },
     "model.dlrm.bottom is empty, but the data has 1 dense columns"},
    {"NoModel", [](v1::Job* job) { job->clear_model(); }, "model is not set"},
    {"BatchZero", [](v1::Job* job) { job->mutable_train()->set_batch_size(0); }, "train.batch_size is 0"},
    {"BatchUnset", [](v1::Job* job) { job->mutable_train()->clear_batch_size(); }, "train.batch_size is not set"},
    {"BatchHuge", [](v1::Job* job) { job->mutable_train()->set_batch_size(16777217); }, "train.batch_size is 16777217"},
    {"HotRowsEmpty", [](v1::Job* job) { job->mutable_train()->mutable_hot_rows(); }, "train.hot_rows is empty"},
    {"HotRowsTooMany", [](v1::Job* job) { job->mutable_train()->mutable_hot_rows()->set_rows(uint64_t{1} << 40); },
     "train.hot_rows.rows is 1099511627776; give at most 2147483648"},
    {"HotRowsPullType",
     [](v1::Job* job) {
       job->mutable_train()->mutable_hot_rows()->set_rows(5);
       job->mutable_train()->set_pull_type(v1::BFLOAT16);
     },
     "train.pull_type is BFLOAT16, but with train.hot_rows"},
    {"HotRowsPushType",
     [](v1::Job* job) {
       job->mutable_train()->mutable_hot_rows()->set_rows(5);
       job->mutable_train()->set_push_type(v1::INT8);
     },
     "train.push_type is INT8, but with train.hot_rows"},
    {"HotRowsAdmission",
     [](v1::Job* job) {
       job->mutable_train()->mutable_hot_rows()->set_bytes(5);
       job->mutable_tables(1)->mutable_admission()->set_count(2);
     },
     "tables[1] (\"tags\") has admission, but train.hot_rows is for tables without"},
    {"HotRowsEviction",
     [](v1::Job* job) {
       job->mutable_train()->mutable_hot_rows()->set_bytes(5);
       job->mutable_tables(1)->mutable_eviction()->set_ttl_steps(2);
     },
     "tables[1] (\"tags\") has eviction, but train.hot_rows is for tables without"},
    {"HotRowsStorage",
     [](v1::Job* job) {
       job->mutable_train()->mutable_hot_rows()->set_bytes(5);
       job->mutable_tables(0)->set_storage(v1::FLOAT16);
     },
     "tables[0] (\"user\") has a storage of 16 bits, but train.hot_rows"},
    {"LossScaleOfAnotherPrecision", [](v1::Job* job) { job->mutable_train()->mutable_loss_scale(); },
     "train.loss_scale is set, but train.precision is BFLOAT16, which needs none"},
    {"LossScaleNoPowerOfTwo",
     [](v1::Job* job) {
       job->mutable_train()->set_precision(v1::TrainConfig::FLOAT16);
       job->mutable_train()->mutable_loss_scale()->set_initial(1000);
     },
     "train.loss_scale.initial is 1000, expected a power of two"},
    {"NoOptimizer", [](v1::Job* job) { job->mutable_train()->clear_optimizer(); }, "train.optimizer is not set"},
    {"DenseFtrl", [](v1::Job* job) { job->mutable_train()->mutable_optimizer()->mutable_ftrl(); }, "train.optimizer"},
    {"Schedule", [](v1::Job* job) { job->mutable_train()->mutable_schedule()->mutable_cosine()->clear_decay_steps(); },
     "train.schedule"},
    {"StepsZero", [](v1::Job* job) { job->mutable_train()->set_steps_max(0); }, "train.steps_max is 0"},
    {"ClipNormZero", [](v1::Job* job) { job->mutable_train()->set_clip_norm(0); }, "train.clip_norm is 0"},
    {"LossEveryZero", [](v1::Job* job) { job->mutable_train()->set_loss_every_steps(0); },
     "train.loss_every_steps is 0"},
    {"CheckpointEveryZeroSteps", [](v1::Job* job) { job->mutable_checkpoint()->set_every_steps(0); },
     "checkpoint.every_steps is 0"},
    {"CheckpointEveryZeroSeconds", [](v1::Job* job) { job->mutable_checkpoint()->set_every_seconds(0); },
     "checkpoint.every_seconds is 0"},
    {"CheckpointEveryManySeconds", [](v1::Job* job) { job->mutable_checkpoint()->set_every_seconds(~uint64_t{0}); },
     "checkpoint.every_seconds is 18446744073709551615; give 1 to 31622400"},
    {"CheckpointKeepsNone", [](v1::Job* job) { job->mutable_checkpoint()->set_keep(0); }, "checkpoint.keep is 0"},
    {"EvalBatchZero", [](v1::Job* job) { job->mutable_eval()->set_batch_size(0); }, "eval.batch_size is 0"},
    {"EvalWithoutTest",
     [](v1::Job* job) { job->mutable_data()->clear_test(), job->mutable_eval()->set_every_steps(5); },
     "eval.every_steps is 5, but data.test is not set"},
    {"NothingToDo", [](v1::Job* job) { job->mutable_data()->clear_test(), job->mutable_train()->set_epochs(0); },
     "train.epochs is 0"},
    {"MicroBatchOfAnotherModel", [](v1::Job* job) { job->mutable_train()->set_micro_batch_size(4); },
     "train.micro_batch_size is 4, but only model.gpt2"},
    {"RecomputeOfAnotherModel", [](v1::Job* job) { job->mutable_train()->set_recompute(v1::TrainConfig::NOTHING); },
     "train.recompute is set, but only model.gpt2"},
    {"ZeroOfAnotherModel", [](v1::Job* job) { job->mutable_train()->set_zero(v1::TrainConfig::NONE); },
     "train.zero is set, but only model.gpt2"},
    {"LossSpikeOfAnotherModel", [](v1::Job* job) { job->mutable_train()->mutable_loss_spike(); },
     "train.loss_spike is set, but only model.gpt2"},
    {"CheckWeightsOfAnotherModel", [](v1::Job* job) { job->mutable_train()->set_check_weights_every_steps(5); },
     "train.check_weights_every_steps is 5, but only workers of model.gpt2"},
    {"InitFromOfAnotherModel", [](v1::Job* job) { job->mutable_train()->set_init_from("gpt2.safetensors"); },
     "train.init_from is set, but only model.gpt2"},
    {"TokensOfAnotherModel", [](v1::Job* job) { job->mutable_data()->mutable_tokens(); },
     "data.tokens is set, but only model.gpt2 reads tokens"},
    {"Servers", [](v1::Job* job) { job->mutable_cluster()->set_servers(4097); }, "cluster.servers is 4097"},
};

INSTANTIATE_TEST_SUITE_P(Jobs, JobCheckRefuses, ::testing::ValuesIn(kBadJobs),
                         [](const auto& info) { return std::string(info.param.name); });

v1::Job LanguageJob() {
  v1::Job job;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(R"(
    name: "shakespeare"
    data {
      train { path: "shakespeare.bin" rows { take_share: 0.9 } }
      test { path: "shakespeare.bin" rows { skip_share: 0.9 } }
      tokens {}
    }
    model { gpt2 { layers: 4 heads: 4 width: 128 context: 64 vocabulary: 65 dropout: 0.1 } }
    train { batch_size: 12 micro_batch_size: 4 optimizer { learning_rate: 1e-3 adamw {} } precision: BFLOAT16 }
    eval { every_steps: 100 batch_size: 32 }
  )",
                                                            &job));
  return job;
}

TEST(JobCheck, AGoodLanguageModelPasses) {
  EXPECT_TRUE(ValidateJob(LanguageJob()).ok()) << ValidateJob(LanguageJob());
  v1::Job job = LanguageJob();
  *job.mutable_model()->mutable_gpt2() = v1::Gpt2();
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job);
  v1::Gpt2* gpt2 = job.mutable_model()->mutable_gpt2();
  gpt2->set_layers(1024);
  gpt2->set_width(65536);
  gpt2->set_heads(65536);
  gpt2->set_context(1 << 20);
  gpt2->set_vocabulary(65536);
  gpt2->set_dropout(0.999);
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job);
}

class LanguageJobCheckRefuses : public ::testing::TestWithParam<BadJob> {};

TEST_P(LanguageJobCheckRefuses, InOneLineThatNamesTheField) {
  v1::Job job = LanguageJob();
  GetParam().spoil(&job);
  const absl::Status status = ValidateJob(job);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().message));
  EXPECT_THAT(std::string(status.message()), Not(HasSubstr("\n")));
}

v1::Gpt2* Gpt2Of(v1::Job* job) { return job->mutable_model()->mutable_gpt2(); }

const BadJob kBadLanguageJobs[] = {
    {"LossSpike", [](v1::Job* job) { job->mutable_train()->mutable_loss_spike()->set_window(1); },
     "train.loss_spike.window is 1"},
    {"InitFrom", [](v1::Job* job) { job->mutable_train()->set_init_from(""); }, "train.init_from is empty"},
    {"Tables", [](v1::Job* job) { *job->add_tables() = GoodJob().tables(0); },
     "tables[0] (\"user\") is set, but model.gpt2 has no tables"},
    {"Features", [](v1::Job* job) { job->add_features()->set_name("user"); }, "features[0] (\"user\") is set"},
    {"NoTokens", [](v1::Job* job) { job->mutable_data()->clear_format(); }, "data.tokens is not set"},
    {"AnotherFormat", [](v1::Job* job) { job->mutable_data()->mutable_criteo(); }, "data.tokens is not set"},
    {"NoTrain", [](v1::Job* job) { job->mutable_data()->clear_train(); }, "data.train is not set"},
    {"TwoTakes", [](v1::Job* job) { job->mutable_data()->mutable_train()->mutable_rows()->set_take_rows(5); },
     "take_rows 5 and take_share 0.9"},
    {"OnBadRow", [](v1::Job* job) { job->mutable_data()->set_on_bad_row(v1::DataConfig::SKIP); }, "data.on_bad_row"},
    {"BadRowsMax", [](v1::Job* job) { job->mutable_data()->set_bad_rows_max(5); }, "data.bad_rows_max is set"},
    {"DenseTransform", [](v1::Job* job) { job->mutable_data()->set_dense_transform(v1::DataConfig::IDENTITY); },
     "data.dense_transform is set"},
    {"UnlabelledTrain", [](v1::Job* job) { job->mutable_data()->mutable_train()->set_unlabelled(true); },
     "data.train.unlabelled is set"},
    {"UnlabelledTest", [](v1::Job* job) { job->mutable_data()->mutable_test()->set_unlabelled(true); },
     "data.test.unlabelled is set"},
    {"Prefetch", [](v1::Job* job) { job->mutable_train()->set_prefetch(false); }, "train.prefetch is set"},
    {"PullType", [](v1::Job* job) { job->mutable_train()->set_pull_type(v1::BFLOAT16); }, "train.pull_type is set"},
    {"PushType", [](v1::Job* job) { job->mutable_train()->set_push_type(v1::INT8); }, "train.push_type is set"},
    {"HotRows", [](v1::Job* job) { job->mutable_train()->mutable_hot_rows()->set_rows(5); }, "train.hot_rows is set"},
    {"LayerInitializer", [](v1::Job* job) { job->mutable_model()->set_layer_initializer(v1::ModelConfig::NORMAL); },
     "model.layer_initializer is set"},
    {"MicroBatchZero", [](v1::Job* job) { job->mutable_train()->set_micro_batch_size(0); },
     "train.micro_batch_size is 0; give 1 to 16777216"},
    {"MicroBatchHuge", [](v1::Job* job) { job->mutable_train()->set_micro_batch_size(16777217); },
     "train.micro_batch_size is 16777217"},
    {"NoLayers", [](v1::Job* job) { Gpt2Of(job)->set_layers(0); }, "model.gpt2.layers is 0; give 1 to 1024"},
    {"ManyLayers", [](v1::Job* job) { Gpt2Of(job)->set_layers(1025); }, "model.gpt2.layers is 1025"},
    {"NoWidth", [](v1::Job* job) { Gpt2Of(job)->set_width(0); }, "model.gpt2.width is 0; give 1 to 65536"},
    {"WideWidth", [](v1::Job* job) { Gpt2Of(job)->set_width(65540); }, "model.gpt2.width is 65540"},
    {"NoHeads", [](v1::Job* job) { Gpt2Of(job)->set_heads(0); }, "model.gpt2.heads is 0; give 1 to 128"},
    {"ManyHeads", [](v1::Job* job) { Gpt2Of(job)->set_heads(129); }, "model.gpt2.heads is 129"},
    {"HeadsDoNotDivide", [](v1::Job* job) { Gpt2Of(job)->set_heads(6); },
     "model.gpt2.width is 128, which model.gpt2.heads 6 does not divide"},
    {"NoContext", [](v1::Job* job) { Gpt2Of(job)->set_context(0); }, "model.gpt2.context is 0; give 1 to 1048576"},
    {"LongContext", [](v1::Job* job) { Gpt2Of(job)->set_context(1048577); }, "model.gpt2.context is 1048577"},
    {"OneToken", [](v1::Job* job) { Gpt2Of(job)->set_vocabulary(1); }, "model.gpt2.vocabulary is 1; give 2 to 65536"},
    {"ManyTokens", [](v1::Job* job) { Gpt2Of(job)->set_vocabulary(65537); }, "model.gpt2.vocabulary is 65537"},
    {"AllDropped", [](v1::Job* job) { Gpt2Of(job)->set_dropout(1); }, "model.gpt2.dropout is 1; a share"},
    {"NegativeDropout", [](v1::Job* job) { Gpt2Of(job)->set_dropout(-0.1); }, "model.gpt2.dropout is -0.1"},
    {"DropoutOfNoNumber", [](v1::Job* job) { Gpt2Of(job)->set_dropout(std::nan("")); }, "model.gpt2.dropout is nan"},
    {"BatchUnset", [](v1::Job* job) { job->mutable_train()->clear_batch_size(); }, "train.batch_size is not set"},
    {"NoOptimizer", [](v1::Job* job) { job->mutable_train()->clear_optimizer(); }, "train.optimizer is not set"},
    {"EvalBatchZero", [](v1::Job* job) { job->mutable_eval()->set_batch_size(0); }, "eval.batch_size is 0"},
};

INSTANTIATE_TEST_SUITE_P(Jobs, LanguageJobCheckRefuses, ::testing::ValuesIn(kBadLanguageJobs),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(JobCheck, TheJobsThatWeShipPass) {
  int jobs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(SPARROW_SOURCE_DIR "/deploy/jobs")) {
    if (entry.path().extension() != ".textproto") continue;
    const auto text = ReadFile(entry.path().string());
    ASSERT_TRUE(text.ok()) << text.status();
    v1::Job job;
    ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(*text, &job)) << entry.path();
    EXPECT_TRUE(ValidateJob(job).ok()) << entry.path() << ": " << ValidateJob(job);
    ++jobs;
  }
  EXPECT_GE(jobs, 5);
}

TEST(JobCheck, AJobThatIsOnlyReadMayBeUnlabelled) {
  v1::Job job = GoodJob();
  job.mutable_data()->mutable_train()->set_unlabelled(true);
  job.mutable_data()->mutable_test()->set_unlabelled(true);
  EXPECT_TRUE(ValidateJobForReading(job).ok()) << ValidateJobForReading(job);
  job.clear_name();
  EXPECT_THAT(std::string(ValidateJobForReading(job).message()), HasSubstr("name is \"\""));
}

TEST(SchemaCheck, DenseColumnCountIsWhatTheFormatGives) {
  EXPECT_EQ(DenseColumnCount(GoodJob().data()), 1u);
  v1::DataConfig data;
  data.mutable_criteo();
  EXPECT_EQ(DenseColumnCount(data), 13u);
  data.mutable_slots();
  EXPECT_EQ(DenseColumnCount(data), 0u);
  data.mutable_dlrm_npy()->set_dense_columns(4);
  EXPECT_EQ(DenseColumnCount(data), 4u);
  data.mutable_tokens();
  EXPECT_EQ(DenseColumnCount(data), 0u);
}

TEST(JobCheck, AnEvaluationNeedsNoTrainingData) {
  v1::Job job = GoodJob();
  job.mutable_train()->set_epochs(0);
  job.mutable_data()->clear_train();
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job);
}

TEST(JobCheck, TablesOfDifferentDimsAreFineForDcnv2) {
  v1::Job job = GoodJob();
  job.mutable_tables(1)->set_dim(13);
  job.mutable_model()->mutable_dcnv2()->add_bottom(8);
  job.mutable_model()->mutable_dcnv2()->add_top(1);
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job);
}

}  // namespace
}  // namespace sparrow
