#include "coordinator/job_history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sparrow {
namespace {

v1::ReportRequest Losses(uint64_t begin, uint64_t end) {
  v1::ReportRequest report;
  for (uint64_t step = begin; step < end; ++step) {
    v1::LossPoint* point = report.add_loss_points();
    point->set_step(step);
    point->set_loss(static_cast<double>(step));
  }
  return report;
}

TEST(JobHistory, ALongLossCurveStaysBoundedEvenlySpacedAndKeepsItsFirstPoint) {
  JobHistory history;
  v1::JobStatus status;
  constexpr uint64_t kSteps = 450'000;
  for (uint64_t step = 0; step < kSteps; step += 1000) {
    history.Append(Losses(step, step + 1000), &status);
    ASSERT_LE(status.loss_curve_size(), kLossPointsMax);
  }
  // 100,001 points halve to every 2nd, 200,001 to every 4th, 400,001 to every 8th.
  ASSERT_EQ(status.loss_curve_size(), static_cast<int>(kSteps / 8));
  for (int i = 0; i < status.loss_curve_size(); ++i) {
    ASSERT_EQ(status.loss_curve(i).step(), static_cast<uint64_t>(i) * 8);
    ASSERT_EQ(status.loss_curve(i).loss(), static_cast<double>(i) * 8);
  }
}

TEST(JobHistory, PointsOfStepsThatAreThereArePassedOver) {
  JobHistory history;
  v1::JobStatus status;
  history.Append(Losses(0, 10), &status);
  history.Append(Losses(5, 12), &status);
  ASSERT_EQ(status.loss_curve_size(), 12);
  for (int i = 0; i < 12; ++i) EXPECT_EQ(status.loss_curve(i).step(), static_cast<uint64_t>(i));
}

TEST(JobHistory, EvaluationsStayBoundedAndTheNewestIsThere) {
  JobHistory history;
  v1::JobStatus status;
  for (uint64_t step = 0; step < 5000; ++step) {
    v1::ReportRequest report;
    report.add_evals()->set_step(step);
    history.Append(report, &status);
    ASSERT_LE(status.evals_size(), kEvalsMax);
    ASSERT_EQ(status.evals(status.evals_size() - 1).step(), step);
    ASSERT_EQ(status.evals(0).step(), 0u);
  }
  EXPECT_GE(status.evals_size(), kEvalsMax / 2);
}

TEST(JobHistory, AnEvaluationOfTheSameStepReplacesTheOneBefore) {
  JobHistory history;
  v1::JobStatus status;
  v1::ReportRequest report;
  report.add_evals()->set_step(100);
  report.add_evals()->set_step(100);
  report.mutable_evals(1)->set_rows(7);
  report.mutable_evals(1)->set_auc_reason(std::string(10'000, 'x'));
  history.Append(report, &status);
  ASSERT_EQ(status.evals_size(), 1);
  EXPECT_EQ(status.evals(0).rows(), 7u);
  EXPECT_LT(status.evals(0).auc_reason().size(), 300u);
}

}  // namespace
}  // namespace sparrow
