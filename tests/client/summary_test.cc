#include "client/summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "client/progress.h"

namespace sparrow {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

v1::JobStatus Succeeded() {
  v1::JobStatus status;
  status.set_job_id("job-7");
  status.set_name("quick");
  status.set_state(v1::JobStatus::SUCCEEDED);
  v1::Summary* summary = status.mutable_summary();
  summary->set_steps(10);
  summary->set_rows_read(1003);
  summary->set_rows_trained(1000);
  summary->set_rows_skipped(3);
  summary->set_samples_per_second(2000);
  summary->set_train_loss(0.5);
  summary->set_train_seconds(0.5);
  summary->set_workers(2);
  summary->set_servers(3);
  summary->set_checkpoint("quick-job-7/step-10");
  summary->add_sources("a.tsv");
  summary->add_sources("b.tsv");
  (*summary->mutable_step_seconds())["pull"] = 0.002;
  v1::EvalResult* eval = summary->mutable_eval();
  eval->set_step(10);
  eval->set_rows(50);
  eval->set_loss(0.45);
  eval->set_auc(0.75);
  eval->set_calibration(1.02);
  *status.add_evals() = *eval;
  v1::LossPoint* point = status.add_loss_curve();
  point->set_step(0);
  point->set_loss(0.7);
  point = status.add_loss_curve();
  point->set_step(9);
  point->set_loss(1.0 / 3);
  return status;
}

TEST(Summary, CheckpointsOnTheWayAreCountedAndTheLastOneOfAJobThatFailedIsNamed) {
  v1::JobStatus status = Succeeded();
  EXPECT_THAT(SummaryText(status), Not(HasSubstr("written in")));
  v1::Summary* summary = status.mutable_summary();
  summary->set_checkpoints(3);
  summary->set_checkpoints_failed(1);
  summary->set_checkpoint_seconds(1.25);
  summary->set_checkpoint_bytes(4096);
  summary->set_resumed_from("/saved/quick-job-6/step-5");
  EXPECT_THAT(SummaryText(status),
              AllOf(HasSubstr("3 written in 1.2 s, the last of 4096 bytes; 1 could not be written"),
                    HasSubstr("resumed from   /saved/quick-job-6/step-5\n")));
  auto json = nlohmann::json::parse(SummaryJson(status));
  EXPECT_EQ(json["checkpoints"], 3);
  EXPECT_EQ(json["checkpoints_failed"], 1);
  EXPECT_EQ(json["checkpoint_seconds"], 1.25);
  EXPECT_EQ(json["checkpoint_bytes"], 4096);
  EXPECT_EQ(json["resumed_from"], "/saved/quick-job-6/step-5");

  v1::JobStatus failed;
  failed.set_state(v1::JobStatus::FAILED);
  failed.mutable_progress()->set_checkpoint("/saved/quick-job-7/step-8");
  EXPECT_THAT(SummaryText(failed), HasSubstr("checkpoint     /saved/quick-job-7/step-8\n"));
  json = nlohmann::json::parse(SummaryJson(failed));
  EXPECT_EQ(json["checkpoint"], "/saved/quick-job-7/step-8");
  EXPECT_TRUE(json["checkpoints"].is_null());
  EXPECT_TRUE(json["checkpoint_seconds"].is_null());
}

TEST(Summary, StepsThatChangedNothingAreNamedWhereThereAreAny) {
  v1::JobStatus status = Succeeded();
  EXPECT_THAT(SummaryText(status), Not(HasSubstr("range of float16")));
  EXPECT_EQ(nlohmann::json::parse(SummaryJson(status))["steps_skipped"], 0);
  status.mutable_summary()->set_steps_skipped(4);
  EXPECT_THAT(SummaryText(status),
              HasSubstr("10 (4 were skipped: a gradient passed the range of float16, or the loss stood out)\n"));
  EXPECT_EQ(nlohmann::json::parse(SummaryJson(status))["steps_skipped"], 4);
}

TEST(Summary, JsonHasEveryFieldThatScriptsRelyOn) {
  const nlohmann::json json = nlohmann::json::parse(SummaryJson(Succeeded()));
  EXPECT_EQ(json["job"], "quick");
  EXPECT_EQ(json["job_id"], "job-7");
  EXPECT_EQ(json["state"], "SUCCEEDED");
  EXPECT_EQ(json["steps"], 10);
  EXPECT_EQ(json["rows_read"], 1003);
  EXPECT_EQ(json["rows_trained"], 1000);
  EXPECT_EQ(json["rows_skipped"], 3);
  EXPECT_EQ(json["samples_per_second"], 2000);
  EXPECT_EQ(json["train_loss"], 0.5);
  EXPECT_EQ(json["eval_loss"], 0.45);
  EXPECT_EQ(json["eval_auc"], 0.75);
  EXPECT_TRUE(json["eval_auc_reason"].is_null());
  EXPECT_EQ(json["eval_calibration"], 1.02);
  EXPECT_EQ(json["checkpoint"], "quick-job-7/step-10");
  EXPECT_EQ(json["workers"], 2);
  EXPECT_EQ(json["servers"], 3);
  EXPECT_EQ(json["train_seconds"], 0.5);
  EXPECT_EQ(json["step_seconds"]["pull"], 0.002);
  EXPECT_EQ(json["sources"], nlohmann::json({"a.tsv", "b.tsv"}));
  EXPECT_EQ(json["message"], "");
  EXPECT_EQ(json["loss_curve"][1][0], 9);
  EXPECT_EQ(json["loss_curve"][1][1], 1.0 / 3);
}

TEST(Summary, AnUndefinedAucIsNullWithItsReasonAndNamedInTheText) {
  v1::JobStatus status = Succeeded();
  status.mutable_summary()->mutable_eval()->clear_auc();
  status.mutable_summary()->mutable_eval()->set_auc_reason("undefined: one class");
  const nlohmann::json json = nlohmann::json::parse(SummaryJson(status));
  EXPECT_TRUE(json["eval_auc"].is_null());
  EXPECT_EQ(json["eval_auc_reason"], "undefined: one class");
  EXPECT_EQ(json["eval_loss"], 0.45);
  EXPECT_THAT(SummaryText(status), HasSubstr("AUC undefined: one class"));
}

TEST(Summary, WithoutEvaluationItsFieldsAreNull) {
  v1::JobStatus status = Succeeded();
  status.mutable_summary()->clear_eval();
  status.clear_evals();
  const nlohmann::json json = nlohmann::json::parse(SummaryJson(status));
  EXPECT_TRUE(json["eval_auc"].is_null());
  EXPECT_TRUE(json["eval_loss"].is_null());
  EXPECT_EQ(json["eval_auc_reason"], "no evaluation");
}

TEST(Summary, AFailedJobHasItsMessageAndTheCountsItReached) {
  v1::JobStatus status;
  status.set_name("quick");
  status.set_state(v1::JobStatus::FAILED);
  status.set_message("x.tsv:7: bad \xff row");
  status.mutable_progress()->set_step(4);
  status.mutable_progress()->set_rows_trained(400);
  status.mutable_progress()->set_loss(std::numeric_limits<double>::quiet_NaN());
  const nlohmann::json json = nlohmann::json::parse(SummaryJson(status));
  EXPECT_EQ(json["state"], "FAILED");
  EXPECT_THAT(json["message"].get<std::string>(), HasSubstr("x.tsv:7: bad"));
  EXPECT_EQ(json["steps"], 4);
  EXPECT_EQ(json["rows_trained"], 400);
  EXPECT_TRUE(json["train_loss"].is_null()) << "JSON has no NaN";
  EXPECT_TRUE(json["checkpoint"].is_null());
}

TEST(Summary, TextAlwaysSaysSourceRowsReadAndRowsTrained) {
  const std::string text = SummaryText(Succeeded());
  EXPECT_THAT(text, HasSubstr("source         a.tsv, b.tsv\n"));
  EXPECT_THAT(text, HasSubstr("rows read      1003\n"));
  EXPECT_THAT(text, HasSubstr("rows trained   1000 (3 did not fit and were skipped)\n"));
  EXPECT_THAT(text, HasSubstr("AUC 0.7500, logloss 0.45000, calibration 1.0200 on 50 rows"));
}

TEST(Summary, AFigureThatDoesNotExistIsADashAndNull) {
  v1::JobStatus failed;
  failed.set_state(v1::JobStatus::FAILED);
  const std::string text = SummaryText(failed);
  for (const char* line :
       {"source         -\n", "rows read      0\n", "rows trained   0\n", "samples/s      -\n", "train loss     -\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  const nlohmann::json json = nlohmann::json::parse(SummaryJson(failed));
  for (const char* field : {"samples_per_second", "train_loss", "train_seconds", "workers", "servers", "eval_loss",
                            "eval_calibration", "checkpoint"}) {
    ASSERT_TRUE(json.contains(field)) << field;
    EXPECT_TRUE(json[field].is_null()) << field;
  }
}

TEST(Summary, AnEvaluationAloneHasNoTrainLoss) {
  v1::JobStatus status = Succeeded();
  status.mutable_summary()->set_rows_trained(0);
  status.mutable_summary()->set_train_loss(0);
  EXPECT_THAT(SummaryText(status), HasSubstr("train loss     -\n"));
  EXPECT_TRUE(nlohmann::json::parse(SummaryJson(status))["train_loss"].is_null());
}

TEST(Summary, ASetWithoutPositivesHasNoCalibrationAndOneWithoutRowsNoLogloss) {
  v1::JobStatus status = Succeeded();
  v1::EvalResult* eval = status.mutable_summary()->mutable_eval();
  eval->set_calibration(0);
  EXPECT_THAT(SummaryText(status), HasSubstr("logloss 0.45000, calibration - on 50 rows"));
  EXPECT_TRUE(nlohmann::json::parse(SummaryJson(status))["eval_calibration"].is_null());
  eval->set_rows(0);
  eval->set_loss(0);
  EXPECT_THAT(SummaryText(status), HasSubstr("logloss -, calibration - on 0 rows"));
  EXPECT_TRUE(nlohmann::json::parse(SummaryJson(status))["eval_loss"].is_null());
}

TEST(Summary, AFailedJobNamesTheSourcesItOpenedOrElseThoseOfTheJob) {
  v1::JobStatus failed;
  failed.set_state(v1::JobStatus::FAILED);
  failed.mutable_progress()->set_rows_read(70);
  failed.mutable_progress()->set_rows_trained(64);
  failed.mutable_progress()->set_loss(0.5);
  v1::JobStatus opened = failed;
  opened.mutable_summary()->add_sources("/data/a.tsv");
  v1::Job job;
  job.mutable_data()->mutable_train()->add_path("*.tsv");
  job.mutable_data()->mutable_test()->add_path("*.tsv");
  job.mutable_data()->mutable_test()->add_path("t.tsv");
  FillInFromJob(job, &failed);
  FillInFromJob(job, &opened);
  EXPECT_THAT(SummaryText(failed), HasSubstr("source         *.tsv, t.tsv\n"));
  EXPECT_THAT(SummaryText(opened), HasSubstr("source         /data/a.tsv\n"));
  EXPECT_EQ(nlohmann::json::parse(SummaryJson(opened))["sources"], nlohmann::json({"/data/a.tsv"}));
  for (const v1::JobStatus& status : {failed, opened}) {
    EXPECT_THAT(SummaryText(status), HasSubstr("rows read      70\n"));
    EXPECT_THAT(SummaryText(status), HasSubstr("rows trained   64\n"));
    EXPECT_THAT(SummaryText(status), HasSubstr("train loss     0.50000\n"));
  }
}

TEST(Summary, ALanguageModelsJobThatFailedBeforeItsFirstStepSpeaksOfTokens) {
  v1::Job job;
  job.mutable_model()->mutable_gpt2();
  v1::JobStatus failed;
  failed.set_state(v1::JobStatus::FAILED);
  FillInFromJob(job, &failed);
  EXPECT_THAT(SummaryText(failed), AllOf(HasSubstr("tokens read    0\n"), HasSubstr("tokens/s       -\n")));
  EXPECT_EQ(nlohmann::json::parse(SummaryJson(failed))["rows_are_tokens"], true);
}

TEST(Summary, FiguresOfAFinishedJobAreItsSummarys) {
  v1::JobStatus status = Succeeded();
  status.mutable_progress()->set_samples_per_second(1);
  status.mutable_progress()->set_loss(9);
  EXPECT_EQ(FiguresOf(status).samples_per_second, 2000);
  EXPECT_EQ(FiguresOf(status).train_loss, 0.5);
  EXPECT_EQ(FiguresOf(status).steps, 10u);
}

TEST(Summary, LossesKeepAllTheirDigits) {
  EXPECT_EQ(LossesCsv(Succeeded()), "step,loss\n0,0.69999999999999996\n9,0.33333333333333331\n");
}

class ProgressTest : public testing::Test {
 protected:
  // What is on the screen after these updates, one a second.
  static std::string Show(bool terminal, const std::vector<v1::JobStatus>& updates) {
    char* text = nullptr;
    size_t size = 0;
    std::FILE* out = open_memstream(&text, &size);
    {
      ProgressView view(out, terminal);
      absl::Time now = absl::UnixEpoch();
      for (const v1::JobStatus& update : updates) {
        view.Update(update, now);
        now += absl::Seconds(1);
      }
    }
    std::fclose(out);
    std::string shown(text, size);
    free(text);
    return shown;
  }

  static v1::JobStatus AtStep(uint64_t step) {
    v1::JobStatus status;
    status.set_job_id("job-1");
    status.set_state(v1::JobStatus::RUNNING);
    v1::Progress* progress = status.mutable_progress();
    progress->set_step(step);
    progress->set_steps_total(100);
    progress->set_samples_per_second(1234);
    progress->set_loss(0.5);
    progress->set_eta_seconds(65);
    return status;
  }
};

TEST_F(ProgressTest, PlainLinesComeEveryTwoSecondsAndWithEachEvaluation) {
  v1::JobStatus with_eval = AtStep(40);
  v1::EvalResult* eval = with_eval.add_evals();
  eval->set_step(40);
  eval->set_rows(10);
  eval->set_loss(0.6);
  eval->set_auc(0.7);
  const std::string shown = Show(false, {AtStep(10), AtStep(20), AtStep(30), with_eval});
  EXPECT_THAT(shown, HasSubstr("step 10/100  1234 samples/s  loss 0.5000  ETA 1m5s\n"));
  EXPECT_THAT(shown, Not(HasSubstr("step 20/")));
  EXPECT_THAT(shown, HasSubstr("step 30/"));
  EXPECT_THAT(shown, HasSubstr("evaluation after step 40: AUC 0.7000, logloss 0.60000"));
  EXPECT_THAT(shown, Not(HasSubstr("\r")));
}

TEST_F(ProgressTest, ALanguageModelThatIsOnlyEvaluatedHasAValidationLoss) {
  v1::JobStatus status;
  status.mutable_summary()->set_rows_are_tokens(true);
  v1::EvalResult* eval = status.add_evals();
  eval->set_step(50);
  eval->set_rows(640);
  eval->set_loss(1.5);
  EXPECT_EQ(Show(false, {status}), "evaluation after step 50: validation loss 1.5000 on 640 tokens\n");
}

TEST_F(ProgressTest, StepsThatChangedNothingAreCounted) {
  v1::JobStatus status = AtStep(10);
  status.mutable_progress()->set_steps_skipped(3);
  EXPECT_THAT(Show(false, {status}), HasSubstr("loss 0.5000  3 skipped  ETA"));
}

TEST_F(ProgressTest, ATerminalHasOneBarThatIsDrawnOver) {
  const std::string shown = Show(true, {AtStep(25), AtStep(50)});
  EXPECT_THAT(shown, HasSubstr("\r[######..................]  25%  step 25/100"));
  EXPECT_THAT(shown, HasSubstr("\r[############............]  50%  step 50/100"));
  EXPECT_EQ(std::count(shown.begin(), shown.end(), '\n'), 1);
}

TEST_F(ProgressTest, AQueuedJobSaysOnceWhatItWaitsFor) {
  v1::JobStatus queued;
  queued.set_job_id("job-1");
  queued.set_state(v1::JobStatus::QUEUED);
  queued.set_message("waits for 1 worker");
  EXPECT_EQ(Show(false, {queued, queued}), "job-1 is queued: waits for 1 worker\n");
}

}  // namespace
}  // namespace sparrow
