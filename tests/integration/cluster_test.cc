// The same job on daemons as in one process: equal losses whatever the numbers of servers and workers, equal
// evaluation, metrics that move, and what happens when a member goes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "nlohmann/json.hpp"
#include "tests/support/child_process.h"
#include "tests/support/local_cluster.h"
#include "tests/support/temporary_directory.h"

namespace sparrow {
namespace {

using ::testing::HasSubstr;

// Workers differ in the order of fp32 sums; Adagrad divides by the root of the same sums. The bound.
constexpr double kLossTolerance = 1e-4;
constexpr int kSteps = 200;

// 200 steps of 256 rows of a generated click log, through the quickstart's model.
class Cluster : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    data_ = new TemporaryDirectory;
    const RunResult gen =
        RunProgram({ProgramPath("sparrowctl"), "gen", "clicks", "--rows", "52000", "--out", data_->File("clicks.tsv"),
                    "--test-rows", "2000", "--test-out", data_->File("clicks.test.tsv"), "--seed", "5"});
    ASSERT_EQ(gen.status, 0) << gen.err;
    embedded_ = new std::vector<double>;
    *embedded_ = Losses(Train({"run", "--workers", "1", "--servers", "1"}, data_->File("embedded")));
  }
  static void TearDownTestSuite() {
    delete embedded_;
    delete data_;
  }

  static std::string Job() { return absl::StrCat(SPARROW_SOURCE_DIR, "/deploy/jobs/quickstart.textproto"); }

  // `sparrowctl COMMAND JOB ...` for kSteps steps with the loss of each in OUT.csv and the summary in OUT.json.
  static std::string Train(std::vector<std::string> command, const std::string& out) {
    std::vector<std::string> arguments = {ProgramPath("sparrowctl"), command[0], Job()};
    arguments.insert(arguments.end(), command.begin() + 1, command.end());
    for (const std::string& more :
         {std::string("--set"), absl::StrCat("train.steps_max=", kSteps), std::string("--set"),
          std::string("train.batch_size=256"), std::string("--set"), std::string("train.loss_every_steps=1"),
          std::string("--losses"), out + ".csv", std::string("--json"), out + ".json"}) {
      arguments.push_back(more);
    }
    if (command[0] == "run") {
      for (const std::string& more :
           {std::string("--data-root"), data_->path(), std::string("--checkpoint-root"), out + ".checkpoints"}) {
        arguments.push_back(more);
      }
    }
    const RunResult run = RunProgram(arguments, absl::Minutes(3));
    EXPECT_EQ(run.status, 0) << run.out << run.err;
    return out;
  }

  static std::vector<double> Losses(const std::string& out) {
    std::vector<double> losses;
    std::ifstream file(out + ".csv");
    std::string line;
    std::getline(file, line);
    EXPECT_EQ(line, "step,loss");
    while (std::getline(file, line)) {
      const std::vector<std::string> fields = absl::StrSplit(line, ',');
      EXPECT_EQ(fields[0], absl::StrCat(losses.size()));
      losses.push_back(std::stod(fields[1]));
    }
    return losses;
  }

  static nlohmann::json Summary(const std::string& out) {
    const absl::StatusOr<std::string> text = ReadFile(out + ".json");
    EXPECT_TRUE(text.ok()) << text.status();
    return nlohmann::json::parse(*text);
  }

  static void ExpectEqualLosses(const std::vector<double>& actual, const std::vector<double>& expected) {
    ASSERT_EQ(expected.size(), static_cast<size_t>(kSteps));
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t step = 0; step < expected.size(); ++step) {
      ASSERT_NEAR(actual[step], expected[step], kLossTolerance * expected[step]) << "step " << step;
    }
  }

  static TemporaryDirectory* data_;
  static std::vector<double>* embedded_;
};

TemporaryDirectory* Cluster::data_ = nullptr;
std::vector<double>* Cluster::embedded_ = nullptr;

struct Counts {
  int servers;
  int workers;
};

class ClusterOf : public Cluster, public ::testing::WithParamInterface<Counts> {};

TEST_P(ClusterOf, ProcessesGiveTheLossesOfOneProcess) {
  LocalCluster cluster({.servers = GetParam().servers, .workers = GetParam().workers, .data_root = data_->path()});
  const std::string out =
      Train({"submit", "--coordinator", cluster.coordinator(), "--watch"}, cluster.directory() + "/out");
  ExpectEqualLosses(Losses(out), *embedded_);
  const nlohmann::json summary = Summary(out);
  EXPECT_EQ(summary["state"], "SUCCEEDED");
  EXPECT_EQ(summary["rows_trained"], kSteps * 256);
  EXPECT_EQ(summary["workers"], GetParam().workers);
  EXPECT_EQ(summary["servers"], GetParam().servers);
  const nlohmann::json embedded = Summary(data_->File("embedded"));
  EXPECT_NEAR(summary["eval_auc"].get<double>(), embedded["eval_auc"].get<double>(), 1e-3);
  EXPECT_NEAR(summary["eval_loss"].get<double>(), embedded["eval_loss"].get<double>(), 1e-3);
}

INSTANTIATE_TEST_SUITE_P(Counts, ClusterOf, testing::Values(Counts{1, 1}, Counts{2, 2}, Counts{3, 1}, Counts{5, 3}),
                         [](const testing::TestParamInfo<Counts>& info) {
                           return absl::StrCat(info.param.servers, "Servers", info.param.workers, "Workers");
                         });

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
  Train({"submit", "--coordinator", cluster.coordinator(), "--watch"}, cluster.directory() + "/out");
  EXPECT_GT(Scrape(server, "sparrow_server_rows_pulled_total"), 10000);
  EXPECT_GT(Scrape(server, "sparrow_server_rows_pushed_total"), 10000);
  EXPECT_EQ(Scrape(worker, "sparrow_worker_samples_total"), kSteps * 256);
  EXPECT_GT(Scrape(worker, "sparrow_worker_step_seconds_count"), kSteps);
  EXPECT_GT(Scrape(cluster.metrics()[0], "sparrow_coordinator_heartbeats_total"), 0);
}

// Starts a job that would run for long, and waits until it trains.
std::unique_ptr<ChildProcess> StartLongJob(LocalCluster* cluster, const std::string& job) {
  auto watch = std::make_unique<ChildProcess>(std::vector<std::string>{
      ProgramPath("sparrowctl"), "submit", job, "--coordinator", cluster->coordinator(), "--watch", "--set",
      "train.batch_size=8", "--set", "train.epochs=100", "--set", "train.loss_every_steps=1"});
  CHECK(watch->WaitForOutput("step ", absl::Seconds(60)).has_value()) << watch->Stdout() << watch->Stderr();
  return watch;
}

TEST_F(Cluster, AServerThatIsKilledFailsTheJobByNameAndTheClusterTakesTheNextJob) {
  LocalCluster cluster({.servers = 2, .workers = 2, .data_root = data_->path()});
  auto watch = StartLongJob(&cluster, Job());
  cluster.servers()[1]->Signal(SIGKILL);
  const std::optional<int> status = watch->Wait(absl::Seconds(60));
  ASSERT_TRUE(status.has_value()) << "the job hangs";
  EXPECT_EQ(*status, 1);
  EXPECT_THAT(watch->Stderr(), HasSubstr("server-2"));

  Train({"submit", "--coordinator", cluster.coordinator(), "--watch"}, cluster.directory() + "/next");
  EXPECT_EQ(Summary(cluster.directory() + "/next")["servers"], 1);
}

TEST_F(Cluster, AWorkerThatIsKilledFailsTheJobByName) {
  LocalCluster cluster({.servers = 1, .workers = 2, .data_root = data_->path()});
  auto watch = StartLongJob(&cluster, Job());
  cluster.workers()[0]->Signal(SIGKILL);
  const std::optional<int> status = watch->Wait(absl::Seconds(60));
  ASSERT_TRUE(status.has_value()) << "the job hangs";
  EXPECT_EQ(*status, 1);
  EXPECT_THAT(watch->Stderr(), HasSubstr("worker-1"));
}

TEST_F(Cluster, EveryProgramEndsCleanlyOnSigtermInMidJob) {
  LocalCluster cluster({.servers = 1, .workers = 2, .data_root = data_->path()});
  auto watch = StartLongJob(&cluster, Job());
  for (auto& worker : cluster.workers()) worker->Signal(SIGTERM);
  for (auto& worker : cluster.workers()) EXPECT_EQ(worker->Wait(absl::Seconds(10)), 0) << worker->Stderr();
  EXPECT_EQ(watch->Wait(absl::Seconds(20)), 1);
  cluster.servers()[0]->Signal(SIGTERM);
  EXPECT_EQ(cluster.servers()[0]->Wait(absl::Seconds(10)), 0) << cluster.servers()[0]->Stderr();
  cluster.coordinator_process()->Signal(SIGINT);
  EXPECT_EQ(cluster.coordinator_process()->Wait(absl::Seconds(10)), 0) << cluster.coordinator_process()->Stderr();
}

TEST_F(Cluster, ACancelledJobEndsAndFreesItsWorkers) {
  LocalCluster cluster({.servers = 1, .workers = 1, .data_root = data_->path()});
  auto watch = StartLongJob(&cluster, Job());
  EXPECT_EQ(RunProgram({ProgramPath("sparrowctl"), "cancel", "job-1", "--coordinator", cluster.coordinator()}).status,
            0);
  EXPECT_EQ(watch->Wait(absl::Seconds(20)), 1);
  EXPECT_THAT(RunProgram({ProgramPath("sparrowctl"), "jobs", "--coordinator", cluster.coordinator()}).out,
              HasSubstr("CANCELLED"));
  Train({"submit", "--coordinator", cluster.coordinator(), "--watch"}, cluster.directory() + "/next");
}

}  // namespace
}  // namespace sparrow
