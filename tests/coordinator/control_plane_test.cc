#include "coordinator/control_plane.h"

#include <vector>

#include "tests/coordinator/plane_fixture.h"

namespace sparrow {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class ControlPlaneTest : public PlaneTest {};

// ------------------------------------------------------------------------------------------------ members

TEST_F(ControlPlaneTest, MembersAreNumberedByKindAndNumbersAreNotUsedAgain) {
  EXPECT_EQ(AddServer("a:1"), "server-1");
  EXPECT_EQ(AddWorker(), "worker-1");
  EXPECT_EQ(AddServer("b:1"), "server-2");
  v1::LeaveRequest leave;
  leave.set_member_id("server-2");
  EXPECT_TRUE(plane->Leave(leave).ok());
  EXPECT_EQ(AddServer("c:1"), "server-3");
}

TEST_F(ControlPlaneTest, AnotherVersionIsRefusedNamingBoth) {
  v1::RegisterRequest request = Registration(v1::WORKER, "10.0.0.1");
  request.set_version("0.0.9");
  const absl::Status status = plane->Register(request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"0.0.9\""));
  EXPECT_THAT(std::string(status.message()), HasSubstr(kVersion));
}

TEST_F(ControlPlaneTest, ARegistrationWithoutKindOrAServerWithoutAddressIsRefused) {
  EXPECT_TRUE(absl::IsInvalidArgument(plane->Register(Registration(v1::MEMBER_KIND_UNSPECIFIED, "a:1")).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(plane->Register(Registration(v1::SERVER, "")).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(plane->Register(Registration(v1::WORKER, std::string(2000, 'x'))).status()));
}

TEST_F(ControlPlaneTest, ARepeatedRegistrationMakesNoSecondMember) {
  v1::RegisterRequest request = Registration(v1::WORKER, "10.0.0.1");
  request.set_request_id("abc");
  EXPECT_EQ(plane->Register(request)->member_id(), "worker-1");
  EXPECT_EQ(plane->Register(request)->member_id(), "worker-1");
  EXPECT_EQ(plane->GetCluster().members_size(), 1);
}

TEST_F(ControlPlaneTest, ALeaseThatIsNotRenewedExpiresAndOneThatIsLives) {
  const std::string dies = AddServer("a:1");
  const std::string lives = AddServer("b:1");
  for (int i = 0; i < 3; ++i) Pass(kLease / 2 - absl::Milliseconds(1), {lives});
  EXPECT_TRUE(absl::IsNotFound(Heartbeat(dies).status()));
  EXPECT_TRUE(Heartbeat(lives).ok());
  EXPECT_EQ(coordinator_metrics->lease_expirations.at(v1::SERVER).Value(), 1);
  EXPECT_EQ(coordinator_metrics->lease_expirations.at(v1::WORKER).Value(), 0);
  EXPECT_EQ(coordinator_metrics->members.at(v1::SERVER).Value(), 1);
  EXPECT_EQ(AddServer("a:1"), "server-3") << "it registers anew";
}

TEST_F(ControlPlaneTest, ACoordinatorThatStoodStillBlamesNobody) {
  const std::string server = AddServer("a:1");
  const std::string worker = AddWorker();
  const std::string job = Submit(Submission("first"));
  ASSERT_EQ(StateOf(job), v1::JobStatus::RUNNING);
  for (const absl::Duration jump : {3 * kLease, -3 * kLease}) {  // Stopped and continued; a clock that was set back.
    clock.Advance(jump);
    plane->Tick();
    EXPECT_TRUE(Heartbeat(server).ok());
    EXPECT_EQ(StateOf(job), v1::JobStatus::RUNNING);
  }
  Pass(kLease, {server});  // And then a worker that is silent is missed as ever.
  EXPECT_EQ(StateOf(job), v1::JobStatus::FAILED);
  EXPECT_EQ(coordinator_metrics->lease_expirations.at(v1::WORKER).Value(), 1);
  EXPECT_EQ(coordinator_metrics->lease_expirations.at(v1::SERVER).Value(), 0);
}

TEST_F(ControlPlaneTest, AServerThatRestartsAtItsAddressReplacesTheOneBeforeAtOnce) {
  const std::string server = AddServer("a:1");
  AddWorker();
  const std::string job = Submit(Submission("first"));
  ASSERT_EQ(StateOf(job), v1::JobStatus::RUNNING);
  EXPECT_EQ(AddServer("a:1"), "server-2");
  EXPECT_TRUE(absl::IsNotFound(Heartbeat(server).status()));
  EXPECT_EQ(StateOf(job), v1::JobStatus::FAILED);
  EXPECT_THAT(StatusOf(job).message(), HasSubstr("server-1 (a:1) was replaced"));
}

TEST_F(ControlPlaneTest, TheClusterListsMembersInOrderWithTheirLoad) {
  for (int i = 0; i < 11; ++i) AddServer(absl::StrCat("s:", i));
  const std::string worker = AddWorker("10.0.0.1");
  v1::HeartbeatRequest heartbeat;
  heartbeat.set_member_id("server-10");
  heartbeat.set_rows(7);
  heartbeat.set_memory_used_bytes(99);
  ASSERT_TRUE(plane->Heartbeat(heartbeat).ok());
  clock.Advance(absl::Milliseconds(250));
  const std::string job = Submit(Submission("first"));
  const v1::GetClusterResponse cluster = plane->GetCluster();
  ASSERT_EQ(cluster.members_size(), 12);
  EXPECT_EQ(cluster.members(1).member_id(), "server-2") << "by number, not by text";
  EXPECT_EQ(cluster.members(9).member_id(), "server-10");
  EXPECT_EQ(cluster.members(9).rows(), 7u);
  EXPECT_EQ(cluster.members(9).memory_used_bytes(), 99u);
  EXPECT_EQ(cluster.members(9).last_heartbeat_age_ms(), 250u);
  EXPECT_EQ(cluster.members(11).job_id(), job);
}

// ------------------------------------------------------------------------------------------------ submission

TEST_F(ControlPlaneTest, AJobThatCannotBeIsRefusedByField) {
  const auto refusal = [&](const std::function<void(v1::SubmitRequest*)>& spoil) {
    v1::SubmitRequest request = Submission("good");
    spoil(&request);
    const absl::Status status = plane->Submit(request).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(refusal([](auto* r) { r->clear_job(); }), HasSubstr("no job"));
  EXPECT_THAT(refusal([](auto* r) { r->mutable_job()->clear_name(); }), HasSubstr("name"));
  EXPECT_THAT(refusal([](auto* r) { r->mutable_job()->set_name("a b"); }), HasSubstr("\"a b\""));
  EXPECT_THAT(refusal([](auto* r) { r->mutable_job()->set_name(std::string(129, 'x')); }), HasSubstr("129 bytes"));
  EXPECT_THAT(refusal([](auto* r) { r->mutable_job()->clear_data(); }), HasSubstr("data.train.path"));
  EXPECT_THAT(refusal([](auto* r) { r->mutable_job()->clear_model(); }), HasSubstr("model"));
  EXPECT_THAT(refusal([](auto* r) { r->mutable_job()->mutable_train()->set_batch_size(0); }),
              HasSubstr("train.batch_size is 0"));
  EXPECT_THAT(refusal([](auto* r) { r->mutable_job()->mutable_train()->set_batch_size((1 << 24) + 1); }),
              HasSubstr("16777217"));
  EXPECT_THAT(refusal([](auto* r) { r->mutable_job()->mutable_cluster()->set_workers(5000); }), HasSubstr("5000"));
  EXPECT_THAT(refusal([](auto* r) { r->mutable_job()->mutable_cluster()->set_servers(4097); }), HasSubstr("4097"));
  EXPECT_THAT(
      refusal([](auto* r) { r->mutable_job()->mutable_data()->mutable_train()->add_path(std::string(5 << 20, 'x')); }),
      HasSubstr("bytes"));
  EXPECT_THAT(refusal([](auto* r) { r->set_restore_from(std::string(5000, 'x')); }), HasSubstr("restore_from"));
  EXPECT_EQ(plane->ListJobs().jobs_size(), 0);
}

TEST_F(ControlPlaneTest, ARepeatedSubmissionMakesNoSecondJob) {
  v1::SubmitRequest request = Submission("first");
  request.set_request_id("abc");
  EXPECT_EQ(Submit(request), "job-1");
  EXPECT_EQ(Submit(request), "job-1");
  EXPECT_EQ(Submit(Submission("first")), "job-2") << "the same job may be submitted twice on purpose";
}

TEST_F(ControlPlaneTest, AnUnknownJobIsNotFoundAndTheKnownOnesAreListed) {
  Submit(Submission("first"));
  Submit(Submission("second"));
  for (const std::string id : {"job-3", "job-", "job-01", "job--1", "worker-1", "", "job-99999999999999999999"}) {
    const absl::Status status = plane->CancelJob(id);
    EXPECT_TRUE(absl::IsNotFound(status)) << id;
    EXPECT_THAT(std::string(status.message()), HasSubstr("known: job-2, job-1"));
    EXPECT_TRUE(absl::IsNotFound(plane->GetJob(id).status()));
    EXPECT_TRUE(absl::IsNotFound(plane->Look(id).status()));
  }
}

// ------------------------------------------------------------------------------------------------ scheduling

TEST_F(ControlPlaneTest, AQueuedJobSaysWhatItWaitsForAndStartsWhenItIsThere) {
  const std::string job = Submit(Submission("first", 2, 1));
  EXPECT_EQ(StatusOf(job).message(), "needs 2 workers, none is there; needs 1 server, none is there");
  AddServer("a:1");
  AddWorker();
  EXPECT_EQ(StatusOf(job).message(), "needs 2 workers, 1 is there");
  EXPECT_EQ(StateOf(job), v1::JobStatus::QUEUED);
  AddWorker();
  EXPECT_EQ(StateOf(job), v1::JobStatus::RUNNING);
  EXPECT_EQ(StatusOf(job).epoch(), 1u);
  EXPECT_EQ(StatusOf(job).started_unix_ms(), 1'700'000'000'000u);
}

TEST_F(ControlPlaneTest, ATaskNamesRanksServersAndTheShardMapInMemberOrder) {
  for (int i = 1; i <= 11; ++i) AddWorker(absl::StrCat("10.0.0.", i));
  for (int i = 1; i <= 3; ++i) AddServer(absl::StrCat("s", i, ":1"));
  v1::SubmitRequest request = Submission("first");
  request.set_restore_from("checkpoints/first");
  const std::string job = Submit(request);
  for (uint32_t i = 1; i <= 11; ++i) {
    const v1::Task task = TaskOf(absl::StrCat("worker-", i));
    EXPECT_EQ(task.job_id(), job);
    EXPECT_EQ(task.rank(), i - 1);
    EXPECT_EQ(task.workers(), 11u);
    EXPECT_EQ(task.epoch(), 1u);
    EXPECT_EQ(task.restore_from(), "checkpoints/first");
    EXPECT_EQ(task.job().name(), "first");
    EXPECT_THAT(task.server_addresses(), ElementsAre("s1:1", "s2:1", "s3:1"));
    ASSERT_EQ(task.shard_map().owner_size(), 4096);
    EXPECT_EQ(task.shard_map().owner(0), 0u);
    EXPECT_EQ(task.shard_map().owner(1365), 0u) << "1365 * 3 / 4096 = 0.9998";
    EXPECT_EQ(task.shard_map().owner(1366), 1u);
    EXPECT_EQ(task.shard_map().owner(4095), 2u);
    EXPECT_EQ(task.shard_map().version(), plane->GetCluster().shard_map_version());
  }
  EXPECT_THAT(Heartbeat("server-2")->live_job_ids(), ElementsAre(job));
}

TEST_F(ControlPlaneTest, JobsStartInTheOrderOfSubmissionEvenIfALaterOneWouldFit) {
  AddServer("a:1");
  AddWorker();
  const std::string large = Submit(Submission("large", 2));
  const std::string small = Submit(Submission("small", 1));
  EXPECT_EQ(StateOf(large), v1::JobStatus::QUEUED);
  EXPECT_EQ(StateOf(small), v1::JobStatus::QUEUED);
  EXPECT_EQ(StatusOf(small).message(), "waits for job-1, which is before it");
  AddWorker();
  EXPECT_EQ(StateOf(large), v1::JobStatus::RUNNING);
  EXPECT_EQ(StatusOf(small).message(), "needs 1 worker, none of 2 is free");
  AddWorker();
  EXPECT_EQ(StateOf(small), v1::JobStatus::RUNNING);
}

TEST_F(ControlPlaneTest, ServersAreSharedAndWorkersAreNot) {
  AddServer("a:1");
  AddServer("b:1");
  const std::string first_worker = AddWorker();
  const std::string second_worker = AddWorker();
  const std::string first = Submit(Submission("first", 1, 2));
  const std::string second = Submit(Submission("second", 1, 2));
  EXPECT_EQ(TaskOf(first_worker).job_id(), first);
  EXPECT_EQ(TaskOf(second_worker).job_id(), second);
  EXPECT_THAT(Heartbeat("server-1")->live_job_ids(), ElementsAre(first, second));
}

TEST_F(ControlPlaneTest, TwoJobsRunOneAfterTheOtherOnTheSameWorkers) {
  AddServer("a:1");
  AddWorker();
  AddWorker();
  const std::string first = Submit(Submission("first"));
  const std::string second = Submit(Submission("second"));
  EXPECT_FALSE(Report("worker-1", first, 0, v1::ReportRequest::SUCCEEDED));
  EXPECT_EQ(StateOf(first), v1::JobStatus::RUNNING) << "worker-2 is not done";
  EXPECT_EQ(StateOf(second), v1::JobStatus::QUEUED) << "it wants all workers, not the one that was faster";
  EXPECT_EQ(TaskOf("worker-1").job_id(), "");
  Report("worker-2", first, 1, v1::ReportRequest::SUCCEEDED);
  EXPECT_EQ(StateOf(first), v1::JobStatus::SUCCEEDED);
  EXPECT_EQ(StateOf(second), v1::JobStatus::RUNNING);
  EXPECT_EQ(TaskOf("worker-1").job_id(), second);
  EXPECT_EQ(TaskOf("worker-2").workers(), 2u);
  EXPECT_GT(TaskOf("worker-2").shard_map().version(), 1u);
}

// ------------------------------------------------------------------------------------------------ failure

class RunningJobTest : public PlaneTest {
 protected:
  RunningJobTest() {
    AddServer("a:1");
    AddServer("b:1");
    AddWorker("10.0.0.1");
    AddWorker("10.0.0.2");
    job = Submit(Submission("first"));
  }
  void SetUp() override {
    ASSERT_EQ(StateOf(job), v1::JobStatus::RUNNING);
    ASSERT_EQ(TaskOf("worker-1").job_id(), job);
    ASSERT_EQ(TaskOf("worker-2").job_id(), job);
  }

  std::string job;
};

TEST_F(RunningJobTest, AWorkersFailureIsTheJobsAndNamesItAndStopsTheOthers) {
  Report("worker-2", job, 1, v1::ReportRequest::FAILED, "train.tsv:7: 3 fields,\nexpected 4");
  EXPECT_EQ(StateOf(job), v1::JobStatus::FAILED);
  EXPECT_EQ(StatusOf(job).message(), "worker-2 (rank 1): train.tsv:7: 3 fields, expected 4");
  EXPECT_EQ(TaskOf("worker-1").job_id(), "") << "the task is gone";
  EXPECT_TRUE(Report("worker-1", job, 0, v1::ReportRequest::RUNNING)) << "and a report says stop";
  Report("worker-1", job, 0, v1::ReportRequest::STOPPED);
  EXPECT_EQ(StatusOf(job).message(), "worker-2 (rank 1): train.tsv:7: 3 fields, expected 4") << "the first cause stays";
}

TEST_F(RunningJobTest, TheNextJobGetsEachWorkerOnlyAfterItHasReportedItsEnd) {
  const std::string all = Submit(Submission("second"));
  Report("worker-2", job, 1, v1::ReportRequest::FAILED, "no");
  EXPECT_EQ(StateOf(all), v1::JobStatus::QUEUED);
  EXPECT_EQ(StatusOf(all).message(), "waits for worker-1 to end job-1");
  Report("worker-1", job, 0, v1::ReportRequest::STOPPED);
  EXPECT_EQ(StateOf(all), v1::JobStatus::RUNNING);
  EXPECT_EQ(TaskOf("worker-1").workers(), 2u);
}

TEST_F(RunningJobTest, AFailingJobDoesNotHoldUpOneThatNeedsOnlyTheFreeWorkers) {
  const std::string one = Submit(Submission("second", 1));
  Report("worker-2", job, 1, v1::ReportRequest::FAILED, "no");
  EXPECT_EQ(StateOf(one), v1::JobStatus::RUNNING) << "although worker-1 still stops";
  EXPECT_EQ(TaskOf("worker-2").job_id(), one);
  EXPECT_EQ(TaskOf("worker-1").job_id(), "");
}

TEST_F(ControlPlaneTest, AWorkerThatNeverSawItsTaskIsFreeWhenTheJobHasEndedWithoutIt) {
  AddServer("a:1");
  AddWorker();
  AddWorker();
  const std::string failed = Submit(Submission("first"));
  ASSERT_EQ(TaskOf("worker-1").job_id(), failed);
  Report("worker-1", failed, 0, v1::ReportRequest::FAILED, "before worker-2 has asked");
  const std::string cancelled = Submit(Submission("second", 2));
  EXPECT_EQ(StatusOf(cancelled).message(), "needs 2 workers, 1 of 2 is free");
  EXPECT_EQ(TaskOf("worker-2").job_id(), "") << "this heartbeat ends the task it never began";
  ASSERT_EQ(StateOf(cancelled), v1::JobStatus::RUNNING);
  ASSERT_TRUE(plane->CancelJob(cancelled).ok());
  EXPECT_EQ(TaskOf("worker-1").job_id(), "");
  EXPECT_EQ(TaskOf("worker-2").job_id(), "");
  EXPECT_EQ(StateOf(cancelled), v1::JobStatus::CANCELLED);
}

TEST_F(RunningJobTest, AWorkerThatEndedItsTaskAndCouldNotReportFailsTheJob) {
  ASSERT_TRUE(Heartbeat("worker-1").ok());
  ASSERT_TRUE(Heartbeat("worker-2").ok());
  v1::HeartbeatRequest idle;
  idle.set_member_id("worker-2");
  ASSERT_TRUE(plane->Heartbeat(idle).ok());
  EXPECT_EQ(StateOf(job), v1::JobStatus::FAILED);
  EXPECT_THAT(StatusOf(job).message(), HasSubstr("worker-2 (rank 1) ended its task and could not report"));
}

TEST_F(RunningJobTest, AServerThatIsNotHeardOfFailsTheJobAndIsNamed) {
  Pass(kLease - absl::Milliseconds(1), {"server-1", "worker-1", "worker-2"});
  EXPECT_EQ(StateOf(job), v1::JobStatus::RUNNING);
  Pass(absl::Milliseconds(1));
  EXPECT_EQ(StateOf(job), v1::JobStatus::FAILED);
  EXPECT_EQ(StatusOf(job).message(),
            "server-2 (b:1) was not heard of for 10s; start it again and submit the job anew, with --resume CHECKPOINT "
            "if there is one");
}

TEST_F(RunningJobTest, AMemberThatLeavesFailsTheJobAndSaysWhy) {
  v1::LeaveRequest leave;
  leave.set_member_id("worker-1");
  leave.set_reason("SIGTERM");
  ASSERT_TRUE(plane->Leave(leave).ok());
  EXPECT_EQ(StatusOf(job).message(),
            "worker-1 (10.0.0.1) left (SIGTERM); start it again and submit the job anew, with --resume CHECKPOINT if "
            "there is one");
  EXPECT_TRUE(plane->Leave(leave).ok()) << "may be repeated";
}

TEST_F(RunningJobTest, AJobThatHasSavedIsToldToGoOnFromItsDirectory) {
  v1::ReportRequest report = ReportOf("worker-1", job, 0, v1::ReportRequest::RUNNING);
  report.mutable_progress()->set_step(150);
  report.mutable_progress()->set_checkpoint("/saved/first-job-1/step-100");
  ASSERT_TRUE(plane->Report(report).ok());
  v1::LeaveRequest leave;
  leave.set_member_id("worker-2");
  ASSERT_TRUE(plane->Leave(leave).ok());
  EXPECT_THAT(StatusOf(job).message(), ::testing::EndsWith("submit the job anew, with --resume /saved/first-job-1"));
}

TEST_F(RunningJobTest, AWorkerThatHasDoneItsPartMayLeave) {
  Report("worker-2", job, 1, v1::ReportRequest::SUCCEEDED);
  v1::LeaveRequest leave;
  leave.set_member_id("worker-2");
  ASSERT_TRUE(plane->Leave(leave).ok());
  EXPECT_EQ(StateOf(job), v1::JobStatus::RUNNING);
  Report("worker-1", job, 0, v1::ReportRequest::SUCCEEDED);
  EXPECT_EQ(StateOf(job), v1::JobStatus::SUCCEEDED);
}

TEST_F(RunningJobTest, AWorkerThatStopsUnaskedFailsTheJob) {
  Report("worker-2", job, 1, v1::ReportRequest::STOPPED);
  EXPECT_EQ(StateOf(job), v1::JobStatus::FAILED);
  EXPECT_THAT(StatusOf(job).message(), HasSubstr("worker-2 (rank 1) was stopped"));
}

TEST_F(RunningJobTest, AWorkerWhoseLeaseIsLostComesBackAsAnotherOneAndGetsTheNextJob) {
  Pass(kLease, {"server-1", "server-2", "worker-1"});
  EXPECT_EQ(StateOf(job), v1::JobStatus::FAILED);
  EXPECT_TRUE(absl::IsNotFound(plane->Report(ReportOf("worker-2", job, 1, v1::ReportRequest::RUNNING)).status()));
  EXPECT_EQ(AddWorker(), "worker-3");
  Report("worker-1", job, 0, v1::ReportRequest::STOPPED);
  const std::string next = Submit(Submission("second"));
  EXPECT_EQ(TaskOf("worker-1").job_id(), next);
  EXPECT_EQ(TaskOf("worker-3").job_id(), next);
  EXPECT_EQ(TaskOf("worker-3").rank(), 1u);
}

TEST_F(RunningJobTest, ReportsOfAnotherEpochRankOrMemberAreRefused) {
  v1::ReportRequest report = ReportOf("worker-1", job, 0, v1::ReportRequest::FAILED, "no");
  report.set_epoch(0);
  EXPECT_TRUE(absl::IsFailedPrecondition(plane->Report(report).status()));
  report.set_epoch(2);
  EXPECT_TRUE(absl::IsFailedPrecondition(plane->Report(report).status()));
  report.set_epoch(1);
  report.set_rank(1);
  EXPECT_TRUE(absl::IsFailedPrecondition(plane->Report(report).status()));
  report.set_rank(7);
  EXPECT_TRUE(absl::IsFailedPrecondition(plane->Report(report).status()));
  report.set_rank(0);
  report.set_member_id("worker-9");
  EXPECT_TRUE(absl::IsNotFound(plane->Report(report).status()));
  report.set_member_id("server-1");
  EXPECT_TRUE(absl::IsFailedPrecondition(plane->Report(report).status()));
  report.set_member_id("worker-1");
  report.set_job_id("job-9");
  EXPECT_TRUE(absl::IsNotFound(plane->Report(report).status()));
  EXPECT_EQ(StateOf(job), v1::JobStatus::RUNNING);
}

TEST_F(RunningJobTest, ProgressIsRankZerosAndARepeatedReportChangesNothing) {
  v1::ReportRequest report = ReportOf("worker-1", job, 0, v1::ReportRequest::RUNNING);
  report.mutable_progress()->set_step(2);
  for (uint64_t step = 0; step < 2; ++step) {
    v1::LossPoint* point = report.add_loss_points();
    point->set_step(step);
    point->set_loss(0.5);
  }
  report.add_evals()->set_step(2);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(plane->Report(report).ok());
  report.set_member_id("worker-2");
  report.set_rank(1);
  report.mutable_progress()->set_step(99);
  ASSERT_TRUE(plane->Report(report).ok());
  EXPECT_EQ(StatusOf(job).progress().step(), 2u);
  EXPECT_EQ(StatusOf(job).evals_size(), 1);
  EXPECT_EQ(StatusOf(job).loss_curve_size(), 0) << "only GetJob has it";
  EXPECT_EQ(plane->GetJob(job)->status().loss_curve_size(), 2);
  EXPECT_EQ(plane->GetJob(job)->job().name(), "first");
}

TEST_F(RunningJobTest, TheEndMayBeReportedAgain) {
  Report("worker-1", job, 0, v1::ReportRequest::SUCCEEDED);
  Report("worker-1", job, 0, v1::ReportRequest::SUCCEEDED);
  Report("worker-2", job, 1, v1::ReportRequest::SUCCEEDED);
  const std::string next = Submit(Submission("second"));
  Report("worker-2", job, 1, v1::ReportRequest::SUCCEEDED);
  EXPECT_EQ(StateOf(job), v1::JobStatus::SUCCEEDED);
  EXPECT_EQ(TaskOf("worker-2").job_id(), next) << "the late repeat did not free it from its new task";
}

TEST_F(RunningJobTest, TheSummaryOfRankZeroIsKept) {
  v1::ReportRequest report = ReportOf("worker-1", job, 0, v1::ReportRequest::SUCCEEDED);
  report.mutable_summary()->set_rows_trained(41);
  ASSERT_TRUE(plane->Report(report).ok());
  Report("worker-2", job, 1, v1::ReportRequest::SUCCEEDED);
  EXPECT_EQ(StatusOf(job).summary().rows_trained(), 41u);
}

// ------------------------------------------------------------------------------------------------ cancel

TEST_F(ControlPlaneTest, AQueuedJobIsCancelledAtOnce) {
  const std::string first = Submit(Submission("first"));
  EXPECT_TRUE(plane->CancelJob(first).ok());
  EXPECT_EQ(StateOf(first), v1::JobStatus::CANCELLED);
  AddServer("a:1");
  const std::string worker = AddWorker();
  EXPECT_EQ(TaskOf(worker).job_id(), "");
  EXPECT_TRUE(absl::IsFailedPrecondition(plane->CancelJob(first)));
}

TEST_F(RunningJobTest, ARunningJobIsCancelledWhenItsWorkersHaveStopped) {
  EXPECT_TRUE(plane->CancelJob(job).ok());
  EXPECT_TRUE(plane->CancelJob(job).ok()) << "may be repeated";
  EXPECT_EQ(StateOf(job), v1::JobStatus::RUNNING);
  EXPECT_EQ(TaskOf("worker-1").job_id(), "");
  EXPECT_TRUE(Report("worker-1", job, 0, v1::ReportRequest::RUNNING));
  Report("worker-1", job, 0, v1::ReportRequest::STOPPED);
  EXPECT_EQ(StateOf(job), v1::JobStatus::RUNNING);
  Report("worker-2", job, 1, v1::ReportRequest::FAILED, "connection lost as the others stopped");
  EXPECT_EQ(StateOf(job), v1::JobStatus::CANCELLED);
  EXPECT_EQ(TaskOf(AddWorker()).job_id(), "");
  EXPECT_EQ(StateOf(Submit(Submission("second", 3))), v1::JobStatus::RUNNING) << "all three are free";
}

TEST_F(RunningJobTest, ACancelledJobEndsWhenTheLastWorkerIsLost) {
  ASSERT_TRUE(plane->CancelJob(job).ok());
  Report("worker-1", job, 0, v1::ReportRequest::STOPPED);
  Pass(kLease, {"server-1", "server-2", "worker-1"});
  EXPECT_EQ(StateOf(job), v1::JobStatus::CANCELLED);
}

TEST_F(RunningJobTest, CancelAfterTheEndSaysWhichEnd) {
  Report("worker-1", job, 0, v1::ReportRequest::SUCCEEDED);
  Report("worker-2", job, 1, v1::ReportRequest::SUCCEEDED);
  const absl::Status status = plane->CancelJob(job);
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("SUCCEEDED"));
}

// ------------------------------------------------------------------------------------------------ rendezvous

class Answer {
 public:
  RendezvousBoard::Done Take() {
    return [this](absl::StatusOr<v1::GetRendezvousResponse> result) {
      EXPECT_FALSE(result_.has_value()) << "answered twice";
      result_ = std::move(result);
    };
  }
  bool there() const { return result_.has_value(); }
  const absl::StatusOr<v1::GetRendezvousResponse>& result() const { return *result_; }

 private:
  std::optional<absl::StatusOr<v1::GetRendezvousResponse>> result_;
};

v1::PutRendezvousRequest PutOf(const std::string& job, const std::string& key, const std::string& value) {
  v1::PutRendezvousRequest request;
  request.set_job_id(job);
  request.set_epoch(1);
  request.set_key(key);
  request.set_value(value);
  return request;
}

v1::GetRendezvousRequest GetOf(const std::string& job, const std::vector<std::string>& keys, uint32_t timeout_ms) {
  v1::GetRendezvousRequest request;
  request.set_job_id(job);
  request.set_epoch(1);
  for (const std::string& key : keys) request.add_keys(key);
  request.set_timeout_ms(timeout_ms);
  return request;
}

TEST_F(RunningJobTest, RendezvousWaitsForAllKeysAndAnswersInTheOrderAsked) {
  Answer answer;
  plane->GetRendezvous(GetOf(job, {"b", "a"}, 5000), answer.Take());
  ASSERT_TRUE(plane->PutRendezvous(PutOf(job, "a", "1")).ok());
  EXPECT_FALSE(answer.there());
  ASSERT_TRUE(plane->PutRendezvous(PutOf(job, "b", std::string("\0\xff", 2))).ok());
  ASSERT_TRUE(answer.there());
  ASSERT_TRUE(answer.result().ok());
  EXPECT_THAT(answer.result()->values(), ElementsAre(std::string("\0\xff", 2), "1"));
}

TEST_F(RunningJobTest, RendezvousTimesOutNamingTheMissingKeys) {
  Answer answer;
  Answer at_once;
  ASSERT_TRUE(plane->PutRendezvous(PutOf(job, "rank0", "x")).ok());
  plane->GetRendezvous(GetOf(job, {"rank0", "rank1", "rank2"}, 5000), answer.Take());
  plane->GetRendezvous(GetOf(job, {"rank1"}, 0), at_once.Take());
  ASSERT_TRUE(at_once.there());
  EXPECT_TRUE(absl::IsDeadlineExceeded(at_once.result().status()));
  Pass(absl::Milliseconds(4999));
  EXPECT_FALSE(answer.there());
  Pass(absl::Milliseconds(1));
  ASSERT_TRUE(answer.there());
  EXPECT_TRUE(absl::IsDeadlineExceeded(answer.result().status()));
  EXPECT_THAT(std::string(answer.result().status().message()), HasSubstr("\"rank1\", \"rank2\""));
  EXPECT_THAT(std::string(answer.result().status().message()), Not(HasSubstr("rank0")));
}

TEST_F(RunningJobTest, ThoseWhoWaitAreToldThatTheJobHasEndedAndTheBoardIsCleared) {
  Answer answer;
  ASSERT_TRUE(plane->PutRendezvous(PutOf(job, "a", "1")).ok());
  EXPECT_EQ(coordinator_metrics->rendezvous_entries.Value(), 1);
  plane->GetRendezvous(GetOf(job, {"b"}, 60'000), answer.Take());
  Report("worker-2", job, 1, v1::ReportRequest::FAILED, "disk full");
  ASSERT_TRUE(answer.there());
  EXPECT_EQ(answer.result().status().code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(answer.result().status().message()), HasSubstr("disk full"));
  EXPECT_EQ(coordinator_metrics->rendezvous_entries.Value(), 0);
  EXPECT_EQ(plane->PutRendezvous(PutOf(job, "a", "1")).code(), absl::StatusCode::kAborted);
}

TEST_F(RunningJobTest, ThoseWhoWaitAreToldThatTheCoordinatorStops) {
  Answer answer;
  plane->GetRendezvous(GetOf(job, {"b"}, 60'000), answer.Take());
  plane->ShutDown();
  ASSERT_TRUE(answer.there());
  EXPECT_TRUE(absl::IsUnavailable(answer.result().status()));
  EXPECT_TRUE(absl::IsUnavailable(Heartbeat("worker-1").status()));
}

TEST_F(RunningJobTest, RendezvousOfAnotherEpochOrOutsideItsLimitsIsRefused) {
  v1::PutRendezvousRequest put = PutOf(job, "a", "1");
  put.set_epoch(2);
  EXPECT_TRUE(absl::IsFailedPrecondition(plane->PutRendezvous(put)));
  EXPECT_TRUE(absl::IsInvalidArgument(plane->PutRendezvous(PutOf(job, "", "1"))));
  EXPECT_TRUE(absl::IsInvalidArgument(plane->PutRendezvous(PutOf(job, std::string(1025, 'k'), "1"))));
  EXPECT_TRUE(plane->PutRendezvous(PutOf(job, "a", std::string(1 << 20, 'v'))).ok());
  const absl::Status status = plane->PutRendezvous(PutOf(job, "a", std::string((1 << 20) + 1, 'v')));
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("1048577 bytes; at most 1048576"));
  EXPECT_TRUE(absl::IsNotFound(plane->PutRendezvous(PutOf("job-9", "a", "1"))));
}

// ------------------------------------------------------------------------------------------------ metrics

TEST_F(RunningJobTest, JobsAreCountedByState) {
  Submit(Submission("second"));
  EXPECT_EQ(coordinator_metrics->jobs.at(v1::JobStatus::RUNNING).Value(), 1);
  EXPECT_EQ(coordinator_metrics->jobs.at(v1::JobStatus::QUEUED).Value(), 1);
  ASSERT_TRUE(plane->CancelJob("job-2").ok());
  EXPECT_EQ(coordinator_metrics->jobs.at(v1::JobStatus::QUEUED).Value(), 0);
  EXPECT_EQ(coordinator_metrics->jobs.at(v1::JobStatus::CANCELLED).Value(), 1);
}

TEST_F(ControlPlaneTest, HeartbeatsAreCountedByKind) {
  const std::string worker = AddWorker();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Heartbeat(worker).ok());
  EXPECT_EQ(coordinator_metrics->heartbeats.at(v1::WORKER).Value(), 3);
  EXPECT_EQ(coordinator_metrics->heartbeats.at(v1::SERVER).Value(), 0);
}

}  // namespace
}  // namespace sparrow
