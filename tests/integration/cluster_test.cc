// The same job on daemons as in one process: equal losses whatever the numbers of servers and workers, equal
// evaluation, metrics that move, and what happens when a member goes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/support/child_process.h"
#include "tests/support/local_cluster.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/training_run.h"

namespace sparrow {
namespace {

using ::testing::HasSubstr;

constexpr int kSteps = 200;
constexpr char kJob[] = "deploy/jobs/quickstart.textproto";

// 200 steps of 256 rows of a generated click log, through the quickstart's model.
class Cluster : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    data_ = new TemporaryDirectory;
    const RunResult gen =
        RunProgram({ProgramPath("sparrowctl"), "gen", "clicks", "--rows", "52000", "--out", data_->File("clicks.tsv"),
                    "--test-rows", "2000", "--test-out", data_->File("clicks.test.tsv"), "--seed", "5"});
    ASSERT_EQ(gen.status, 0) << gen.err;
  }
  static void TearDownTestSuite() { delete data_; }

  // kSteps steps on the cluster.
  static TrainingRun TrainOn(const LocalCluster& cluster) {
    return Train({.job = kJob,
                  .flags = {},
                  .sets = {absl::StrCat("train.steps_max=", kSteps), "train.batch_size=256"},
                  .coordinator = cluster.coordinator(),
                  .data_root = ""});
  }

  static TemporaryDirectory* data_;
};

TemporaryDirectory* Cluster::data_ = nullptr;

// Values of one metric name at an address, summed over its labels.
double Scrape(const std::string& address, const std::string& name) {
  const RunResult curl =
      RunProgram({"/usr/bin/curl", "-sf", "--noproxy", "*", absl::StrCat("http://", address, "/metrics")});
  EXPECT_EQ(curl.status, 0) << address;
  double sum = 0;
  bool found = false;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(curl.out, '\n'))) {
    if (line.rfind(name, 0) != 0 || (line[name.size()] != '{' && line[name.size()] != ' ')) continue;
    sum += std::stod(line.substr(line.rfind(' ') + 1));
    found = true;
  }
  EXPECT_TRUE(found) << address << " has no " << name;
  return sum;
}

TEST_F(Cluster, EachDaemonServesMetricsThatMoveWithAJob) {
  LocalCluster cluster({.servers = 1, .workers = 1, .data_root = data_->path()});
  const std::string& server = cluster.metrics()[1];
  const std::string& worker = cluster.metrics()[2];
  EXPECT_EQ(Scrape(server, "sparrow_server_rows_pulled_total"), 0);
  EXPECT_EQ(Scrape(worker, "sparrow_worker_samples_total"), 0);
  EXPECT_EQ(TrainOn(cluster).status, 0);
  EXPECT_GT(Scrape(server, "sparrow_server_rows_pulled_total"), 10000);
  EXPECT_GT(Scrape(server, "sparrow_server_rows_pushed_total"), 10000);
  EXPECT_EQ(Scrape(worker, "sparrow_worker_samples_total"), kSteps * 256);
  EXPECT_GT(Scrape(worker, "sparrow_worker_step_seconds_count"), kSteps);
  EXPECT_GT(Scrape(cluster.metrics()[0], "sparrow_coordinator_heartbeats_total"), 0);
}

// Starts a job that would run for long, and waits until it trains.
std::unique_ptr<ChildProcess> StartLongJob(const LocalCluster& cluster) {
  auto watch = std::make_unique<ChildProcess>(
      std::vector<std::string>{ProgramPath("sparrowctl"), "submit", absl::StrCat(SPARROW_SOURCE_DIR, "/", kJob),
                               "--coordinator", cluster.coordinator(), "--watch", "--set", "train.batch_size=8",
                               "--set", "train.epochs=100", "--set", "train.loss_every_steps=1"});
  CHECK(watch->WaitForOutput("step ", absl::Seconds(60)).has_value()) << watch->Stdout() << watch->Stderr();
  return watch;
}

TEST_F(Cluster, AServerWithAnotherCheckpointRootFailsTheJobBeforeItsFirstStep) {
  LocalCluster cluster({.servers = 2, .workers = 2, .data_root = data_->path(), .shared_checkpoint_root = false});
  const TrainingRun run = TrainOn(cluster);
  EXPECT_EQ(run.status, 1);
  EXPECT_THAT(run.err, HasSubstr("worker-"));
  EXPECT_THAT(run.err, HasSubstr("parameter server 1 at 127.0.0.1:"));
  EXPECT_THAT(run.err, HasSubstr("opening the job: "));
  EXPECT_THAT(run.err, HasSubstr("--checkpoint-root " + cluster.directory() + "/own-checkpoints: "));
  EXPECT_THAT(run.err, HasSubstr("give all members one --checkpoint-root that they share and may write"));
  for (const size_t worker : {3, 4}) EXPECT_EQ(Scrape(cluster.metrics()[worker], "sparrow_worker_samples_total"), 0);
}

TEST_F(Cluster, AServerThatIsKilledFailsTheJobByNameAndTheClusterTakesTheNextJob) {
  LocalCluster cluster({.servers = 2, .workers = 2, .data_root = data_->path()});
  auto watch = StartLongJob(cluster);
  cluster.servers()[1]->Signal(SIGKILL);
  const std::optional<int> status = watch->Wait(absl::Seconds(60));
  ASSERT_TRUE(status.has_value()) << "the job hangs";
  EXPECT_EQ(*status, 1);
  EXPECT_THAT(watch->Stderr(), HasSubstr("server-2"));

  const TrainingRun next = TrainOn(cluster);
  EXPECT_EQ(next.status, 0) << next.err;
  EXPECT_EQ(next.summary["servers"], 1);
}

TEST_F(Cluster, AWorkerThatIsKilledFailsTheJobByName) {
  LocalCluster cluster({.servers = 1, .workers = 2, .data_root = data_->path()});
  auto watch = StartLongJob(cluster);
  cluster.workers()[0]->Signal(SIGKILL);
  const std::optional<int> status = watch->Wait(absl::Seconds(60));
  ASSERT_TRUE(status.has_value()) << "the job hangs";
  EXPECT_EQ(*status, 1);
  EXPECT_THAT(watch->Stderr(), HasSubstr("worker-1"));
}

TEST_F(Cluster, EveryProgramEndsCleanlyOnSigtermInMidJob) {
  LocalCluster cluster({.servers = 1, .workers = 2, .data_root = data_->path()});
  auto watch = StartLongJob(cluster);
  for (auto& worker : cluster.workers()) worker->Signal(SIGTERM);
  for (auto& worker : cluster.workers()) EXPECT_EQ(worker->Wait(absl::Seconds(10)), 0) << worker->Stderr();
  EXPECT_EQ(watch->Wait(absl::Seconds(20)), 1);
  cluster.servers()[0]->Signal(SIGTERM);
  EXPECT_EQ(cluster.servers()[0]->Wait(absl::Seconds(10)), 0) << cluster.servers()[0]->Stderr();
  cluster.coordinator_process()->Signal(SIGINT);
  EXPECT_EQ(cluster.coordinator_process()->Wait(absl::Seconds(10)), 0) << cluster.coordinator_process()->Stderr();
}

// Nobody has to be killed: https://stackoverflow.com/questions/39810356/shut-down-server-in-tensorflow
TEST_F(Cluster, WhenAllWorkersHaveFinishedEveryProgramEndsOnASignalAndItsPortIsFree) {
  LocalCluster cluster({.servers = 2, .workers = 1, .data_root = data_->path()});
  const TrainingRun run = TrainOn(cluster);
  ASSERT_EQ(run.status, 0) << run.err;
  const std::string checkpoint = run.summary["checkpoint"].get<std::string>();
  EXPECT_TRUE(std::filesystem::exists(checkpoint + "/MANIFEST.textproto")) << checkpoint;
  std::vector<ChildProcess*> programs = {cluster.servers()[0].get(), cluster.servers()[1].get(),
                                         cluster.workers()[0].get(), cluster.coordinator_process()};
  for (size_t i = 0; i < programs.size(); ++i) {
    const absl::Time start = absl::Now();
    programs[i]->Signal(i % 2 == 0 ? SIGTERM : SIGINT);
    EXPECT_EQ(programs[i]->Wait(absl::Seconds(20)), 0) << programs[i]->Stderr();
    EXPECT_LT(absl::Now() - start, absl::Seconds(8));
  }
  for (const std::string& address : cluster.metrics()) {
    EXPECT_NE(
        RunProgram({"/usr/bin/curl", "-sf", "--noproxy", "*", absl::StrCat("http://", address, "/metrics")}).status, 0)
        << address << " is still served";
  }
}

TEST_F(Cluster, ACancelledJobEndsAndFreesItsWorkers) {
  LocalCluster cluster({.servers = 1, .workers = 1, .data_root = data_->path()});
  auto watch = StartLongJob(cluster);
  EXPECT_EQ(RunProgram({ProgramPath("sparrowctl"), "cancel", "job-1", "--coordinator", cluster.coordinator()}).status,
            0);
  EXPECT_EQ(watch->Wait(absl::Seconds(20)), 1);
  EXPECT_THAT(RunProgram({ProgramPath("sparrowctl"), "jobs", "--coordinator", cluster.coordinator()}).out,
              HasSubstr("CANCELLED"));
  EXPECT_EQ(TrainOn(cluster).status, 0);
}

}  // namespace
}  // namespace sparrow
