// What outlives the coordinator: control planes one after the other on one state directory.

#include <fstream>

#include "tests/coordinator/plane_fixture.h"
#include "tests/support/temporary_directory.h"

namespace sparrow {
namespace {

using testing::HasSubstr;

class RestartTest : public PlaneTest {
 protected:
  RestartTest() : PlaneTest("") { Restart(directory.path()); }
  ~RestartTest() override {
    plane.reset();
    store.reset();
  }

  TemporaryDirectory directory;
};

TEST_F(RestartTest, QueuedJobsAreStillQueuedInTheirOrderAndNumbersGoOn) {
  v1::SubmitRequest request = Submission("first", 1, 1);
  request.set_restore_from("checkpoints/x");
  request.set_request_id("abc");
  Submit(request);
  Submit(Submission("second", 1, 1));
  Restart(directory.path());
  EXPECT_EQ(StateOf("job-1"), v1::JobStatus::QUEUED);
  EXPECT_EQ(StatusOf("job-1").submitted_unix_ms(), 1'700'000'000'000u);
  EXPECT_EQ(StateOf("job-2"), v1::JobStatus::QUEUED);
  EXPECT_EQ(Submit(request), "job-1") << "a repeat of a call from before the restart";
  EXPECT_EQ(Submit(Submission("third")), "job-3");
  AddServer("a:1");
  const std::string worker = AddWorker();
  EXPECT_EQ(TaskOf(worker).job_id(), "job-1");
  EXPECT_EQ(TaskOf(worker).restore_from(), "checkpoints/x");
}

TEST_F(RestartTest, ARunningJobHasFailedWithARemedyAndKeepsWhatItHadReported) {
  AddServer("a:1");
  const std::string worker = AddWorker();
  const std::string job = Submit(Submission("first"));
  v1::ReportRequest report = ReportOf(worker, job, 0, v1::ReportRequest::RUNNING);
  report.mutable_progress()->set_step(17);
  report.add_loss_points()->set_loss(0.25);
  ASSERT_TRUE(plane->Report(report).ok());
  plane->ShutDown();
  Restart(directory.path());
  EXPECT_EQ(StateOf(job), v1::JobStatus::FAILED);
  EXPECT_EQ(StatusOf(job).message(),
            "the coordinator restarted while it ran; submit the job anew, with --resume CHECKPOINT if there is one");
  EXPECT_EQ(StatusOf(job).progress().step(), 17u);
  EXPECT_EQ(plane->GetJob(job)->status().loss_curve(0).loss(), 0.25);
}

TEST_F(RestartTest, ARunningJobHasFailedAlsoIfTheCoordinatorWasKilled) {
  AddServer("a:1");
  AddWorker();
  const std::string job = Submit(Submission("first"));
  ASSERT_EQ(StateOf(job), v1::JobStatus::RUNNING);
  Restart(directory.path());  // Without ShutDown.
  EXPECT_EQ(StateOf(job), v1::JobStatus::FAILED);
}

TEST_F(RestartTest, FinalStatesStay) {
  const std::string cancelled = Submit(Submission("first"));
  ASSERT_TRUE(plane->CancelJob(cancelled).ok());
  AddServer("a:1");
  const std::string worker = AddWorker();
  const std::string done = Submit(Submission("second"));
  Report(worker, done, 0, v1::ReportRequest::SUCCEEDED);
  Restart(directory.path());
  EXPECT_EQ(StateOf(cancelled), v1::JobStatus::CANCELLED);
  EXPECT_EQ(StateOf(done), v1::JobStatus::SUCCEEDED);
}

TEST_F(RestartTest, AnOldMembersIdIsNotGivenToANewOne) {
  AddWorker();
  AddWorker();
  Restart(directory.path());
  EXPECT_TRUE(absl::IsNotFound(Heartbeat("worker-1").status()));
  EXPECT_EQ(AddWorker(), "worker-3") << "else the member that had the id would go on under it";
}

TEST_F(RestartTest, AQueuedJobThatWantsAllMembersWaitsForThemToComeBack) {
  Submit(Submission("all"));
  Restart(directory.path());
  AddServer("a:1");
  const std::string early = AddWorker();
  EXPECT_EQ(StateOf("job-1"), v1::JobStatus::QUEUED);
  EXPECT_THAT(StatusOf("job-1").message(), HasSubstr("come back"));
  const std::string late = AddWorker();
  Pass(kLease / 2, {"server-1", early, late});
  Pass(kLease / 2, {"server-1", early, late});
  EXPECT_EQ(TaskOf(early).workers(), 2u);
}

TEST_F(RestartTest, TheStateCannotBeOpenedTwice) {
  const absl::Status status = StateStore::Open(directory.path()).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(directory.path()));
  EXPECT_THAT(std::string(status.message()), HasSubstr("--state"));
}

TEST_F(RestartTest, AnotherFormatIsRefused) {
  ASSERT_TRUE(store->Write({{"format", "2"}}).ok());
  plane.reset();
  store.reset();
  const absl::Status status = StateStore::Open(directory.path()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("format 2"));
}

TEST_F(RestartTest, ADamagedRecordIsRefusedByItsKey) {
  Submit(Submission("first"));
  ASSERT_TRUE(store->Write({{"job/00000000000000000001/status", "\xff\xff"}}).ok());
  plane.reset();
  const absl::Status status =
      ControlPlane::Create({.lease = kLease, .heartbeat = absl::Milliseconds(500), .clock = &clock}, store.get(),
                           coordinator_metrics.get())
          .status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("job/00000000000000000001/status"));
}

TEST(StateStore, AFileInTheWayIsNamed) {
  TemporaryDirectory directory;
  std::ofstream(directory.File("x")) << "here";
  const absl::Status status = StateStore::Open(directory.File("x")).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr(directory.File("x")));
}

TEST(StateStore, WritesAreSeenInOrderByPrefixAndAnEmptyValueDeletes) {
  TemporaryDirectory directory;
  const auto store = *StateStore::Open(directory.path());
  ASSERT_TRUE(store->Write({{"a/2", "two"}, {"a/1", "one"}, {"b/1", "other"}, {"a/3", "three"}}).ok());
  ASSERT_TRUE(store->Write({{"a/2", ""}}).ok());
  std::string seen;
  ASSERT_TRUE(store
                  ->ForEach("a/",
                            [&](absl::string_view key, absl::string_view value) {
                              absl::StrAppend(&seen, key, "=", value, ";");
                              return absl::OkStatus();
                            })
                  .ok());
  EXPECT_EQ(seen, "a/1=one;a/3=three;");
}

}  // namespace
}  // namespace sparrow
