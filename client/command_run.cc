// sparrowctl run

#include <algorithm>

#include "base/file.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "client/cli.h"
#include "client/embedded_cluster.h"
#include "client/follow_job.h"
#include "client/job_file.h"
#include "client/resume_path.h"
#include "client/run_embedded.h"
#include "server/shard.h"
#include "worker/job_check.h"

namespace sparrow {

int RunCommand(const Arguments& arguments, Interrupt* interrupt) {
  EmbeddedClusterOptions cluster;
  JobOutputs outputs;
  std::vector<std::string> sets;
  std::string resume;
  int64_t workers = 0, servers = 0;
  bool verbose = false;
  const std::vector<Option> options = {
      {"data-root", &cluster.data_root, "Directory that the job's files lie under.", false},
      {"device", &cluster.device,
       "What trains: cpu, or cuda:N, a GPU of this machine; several, with commas, are the workers' in turn.", false},
      {"plan-file", &cluster.plan_file,
       "File in which a GPU's fastest matrix products are noted, so that the next run need not try them; none if "
       "empty.",
       false},
      {"parse-threads", IntFlag{&cluster.parse_threads, 0, 256},
       "Threads of each worker that turn input into batches; 0: half of the cores, shared by the workers, 8 at most.",
       false},
      {"set", &sets,
       "Changes the job: --set train.batch_size=512, --set tables[2].dim=32, --set data.train.path+=b.tsv. "
       "May be repeated.",
       false},
      {"json", &outputs.json, "Writes the summary to this file as one JSON object, also if the job fails.", false},
      {"losses", &outputs.losses,
       "Writes the loss curve to this file as CSV: step,loss. train.loss_every_steps says how "
       "dense it is.",
       false},
      {"workers", IntFlag{&workers, 0, 1024}, "Workers in this process; 0: the job's cluster.workers, or one.", false},
      {"servers", IntFlag{&servers, 0, 1024},
       "Parameter servers in this process; 0: the job's cluster.servers, or one.", false},
      {"memory", BytesFlag{&cluster.memory_bytes, kMemoryBytesMin},
       "DRAM for the rows of each server; what is over goes to disk.", false},
      {"disk", BytesFlag{&cluster.disk_bytes},
       "Disk for the rows of each server: half for them, half for merging their files; a job that needs more fails. "
       "0: no limit.",
       false},
      {"checkpoint-root", &cluster.checkpoint_root, "Directory that checkpoints are written under.", false},
      {"resume", &resume,
       "Goes on from this checkpoint, or the newest whole one of this job's directory, under --checkpoint-root.",
       false},
      {"verbose", &verbose, "Shows what coordinator, servers and workers log, and not their warnings alone.", false},
      {"metrics", AddressFlag{&cluster.metrics, AddressUse::kListenOnTcp, /*may_be_empty=*/true},
       "Serves Prometheus metrics at http://HOST:PORT/metrics; port 0 picks one.", false},
  };
  const Usage usage{
      "sparrowctl run", "JOB",
      "Trains the job in the file JOB with a whole cluster inside this process: coordinator, servers and workers, the\n"
      "same parts as the daemons. Shows progress, ends with a summary. Ctrl-C cancels the job. The exit status is 0 "
      "only\n"
      "if the job succeeded.",
      "  sparrowctl run deploy/jobs/quickstart.textproto --data-root out/quickstart --json out.json\n"
      "  sparrowctl run JOB.textproto --set train.epochs=2 --workers 2 --servers 2 --memory 1GiB\n"};
  std::vector<std::string> positional;
  if (const std::optional<int> exit = ParseCommandLine(usage, options, arguments, &positional)) return *exit;
  if (const absl::Status status = CheckOutputs(outputs); !status.ok()) return Fail(status);
  if (verbose) SetMinLogSeverity(LogSeverity::kInfo);

  absl::StatusOr<v1::Job> job = LoadJobFile(positional[0], sets);
  if (!job.ok()) return FailBeforeStart(job.status(), v1::Job(), outputs);
  absl::Status status = Annotate(ValidateJob(*job), positional[0]);
  if (status.ok()) status = CheckDirectory("--data-root", cluster.data_root);
  if (status.ok()) status = CheckDirectoryOrNew("--checkpoint-root", cluster.checkpoint_root);
  if (!status.ok()) return FailBeforeStart(status, *job, outputs);

  const auto count = [](int64_t flag, uint32_t configured) {
    return flag > 0 ? static_cast<uint32_t>(flag) : std::max(configured, 1u);
  };
  cluster.workers = count(workers, job->cluster().workers());
  cluster.servers = count(servers, job->cluster().servers());
  return RunEmbedded(*job, cluster, ResumePath(resume, cluster.checkpoint_root), outputs, interrupt);
}

}  // namespace sparrow
