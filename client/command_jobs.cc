// sparrowctl jobs, cancel, cluster

#include <algorithm>
#include <cstdio>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/bytes.h"
#include "client/cli.h"
#include "client/connect.h"
#include "client/summary.h"

namespace sparrow {
namespace {

using Table = std::vector<std::vector<std::string>>;

// Columns as wide as their widest cell, two blanks between them.
void PrintTable(const Table& table) {
  std::vector<size_t> widths(table[0].size());
  for (const std::vector<std::string>& row : table) {
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  for (const std::vector<std::string>& row : table) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c) {
      absl::StrAppend(&line, row[c]);
      if (c + 1 < row.size()) line.append(widths[c] - row[c].size() + 2, ' ');
    }
    std::puts(line.c_str());
  }
}

std::string JobAuc(const v1::JobStatus& job) {
  if (job.evals().empty()) return "-";
  const v1::EvalResult& eval = job.evals(job.evals_size() - 1);
  return eval.has_auc() ? absl::StrFormat("%.4f", eval.auc()) : eval.auc_reason();
}

// Parses the arguments of a command that has --coordinator alone, and connects. An exit status if that is all.
std::optional<int> Connect(const Usage& usage, const Arguments& arguments, std::vector<std::string>* positional,
                           std::unique_ptr<CoordinatorLink>* link) {
  std::string coordinator = kDefaultCoordinator;
  const std::vector<Option> options = {
      {"coordinator", AddressFlag{&coordinator, AddressUse::kConnect}, kCoordinatorHelp, false}};
  if (const std::optional<int> exit = ParseCommandLine(usage, options, arguments, positional)) return exit;
  absl::StatusOr<std::unique_ptr<CoordinatorLink>> connected = ConnectToCoordinator(coordinator);
  if (!connected.ok()) return Fail(connected.status());
  *link = *std::move(connected);
  return std::nullopt;
}

}  // namespace

int JobsCommand(const Arguments& arguments, Interrupt*) {
  const Usage usage{"sparrowctl jobs", "", "Lists the jobs of a cluster: state, steps, speed, loss, last AUC.",
                    "  sparrowctl jobs --coordinator node1:7070\n"};
  std::vector<std::string> positional;
  std::unique_ptr<CoordinatorLink> link;
  if (const std::optional<int> exit = Connect(usage, arguments, &positional, &link)) return *exit;
  const absl::StatusOr<v1::ListJobsResponse> jobs = link->ListJobs();
  if (!jobs.ok()) return Fail(jobs.status());
  if (jobs->jobs().empty()) {
    std::puts("no jobs");
    return kExitSuccess;
  }
  Table table = {{"JOB", "NAME", "STATE", "STEP", "SAMPLES/S", "LOSS", "AUC", "MESSAGE"}};
  for (const v1::JobStatus& job : jobs->jobs()) {
    const JobFigures figures = FiguresOf(job);
    table.push_back({job.job_id(), job.name(), StateName(job.state()), absl::StrCat(figures.steps),
                     FigureText("%.0f", figures.samples_per_second), FigureText("%.4f", figures.train_loss),
                     JobAuc(job), job.message()});
  }
  PrintTable(table);
  return kExitSuccess;
}

int CancelCommand(const Arguments& arguments, Interrupt*) {
  const Usage usage{"sparrowctl cancel", "JOB_ID", "Ends a job, queued or running. Its workers are free afterwards.",
                    "  sparrowctl cancel job-1 --coordinator node1:7070\n"};
  std::vector<std::string> positional;
  std::unique_ptr<CoordinatorLink> link;
  if (const std::optional<int> exit = Connect(usage, arguments, &positional, &link)) return *exit;
  if (const absl::Status status = link->CancelJob(positional[0]); !status.ok()) return Fail(status);
  std::printf("cancelled %s\n", positional[0].c_str());
  return kExitSuccess;
}

int ClusterCommand(const Arguments& arguments, Interrupt*) {
  const Usage usage{"sparrowctl cluster", "", "Lists the servers and workers of a cluster and what they do.",
                    "  sparrowctl cluster --coordinator node1:7070\n"};
  std::vector<std::string> positional;
  std::unique_ptr<CoordinatorLink> link;
  if (const std::optional<int> exit = Connect(usage, arguments, &positional, &link)) return *exit;
  const absl::StatusOr<v1::GetClusterResponse> cluster = link->GetCluster();
  if (!cluster.ok()) return Fail(cluster.status());
  if (cluster->members().empty()) {
    std::printf("no members; start sparrow-server and sparrow-worker with --coordinator %s\n", link->address().c_str());
    return kExitSuccess;
  }
  Table table = {{"MEMBER", "ADDRESS", "DEVICE", "MEMORY", "ROWS", "JOB", "METRICS", "HEARD OF"}};
  for (const v1::Member& member : cluster->members()) {
    const bool server = member.kind() == v1::SERVER;
    table.push_back(
        {member.member_id(), member.address(), server ? "-" : member.device(),
         server ? absl::StrCat(FormatBytes(member.memory_used_bytes()), " of ", FormatBytes(member.memory_bytes()))
                : "-",
         server ? absl::StrCat(member.rows()) : "-", member.job_id().empty() ? "-" : member.job_id(),
         member.metrics_address().empty() ? "-" : member.metrics_address(),
         absl::StrFormat("%.1f s ago", static_cast<double>(member.last_heartbeat_age_ms()) / 1e3)});
  }
  PrintTable(table);
  return kExitSuccess;
}

}  // namespace sparrow
