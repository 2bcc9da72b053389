#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/cuda/stream.h"
#include "base/status_macros.h"
#include "bench/sparrow_bench/commands.h"
#include "bench/sparrow_bench/delayed_transport.h"
#include "bench/sparrow_bench/job_run.h"
#include "bench/sparrow_bench/report.h"
#include "bench/sparrow_bench/step_profile.h"
#include "client/click_log.h"
#include "tests/support/temporary_directory.h"
#include "worker/job_check.h"

namespace sparrow::bench {
namespace {

struct StepFlags {
  std::string jobs = "deploy/jobs";
  int64_t warm_up_steps = 50;
  int64_t quickstart_steps = 1500;
  int64_t criteo_steps = 150;
  std::string json;
  bool smoke = false;
  bool profile = false;
  StepProfileFlags profiled;
};

// One way of training the same steps.
struct Way {
  bool sockets = false;
  bool prefetch = false;
  double delay_ms = 0;  // Of every pull, in which nobody works.
};

struct Measured {
  Way way;
  Measurement row;  // But for name and bound.
  RunFigures figures;
  std::string bound;
  double bound_ms = 0;  // Of a step.
};

void Print(const std::string& name, const Measured& m, bool first, bool equal) {
  if (first) {
    absl::PrintF("%-20s %-7s %-8s %8s", "name", "way", "prefetch", "delay ms");
    for (const char* part : kStepPartNames) absl::PrintF(" %9s", part);
    absl::PrintF(" %8s %8s %10s  %-22s %8s %6s  %s\n", "step ms", "CPU ms", "samples/s", "bound", "its ms", "share",
                 "losses");
  }
  absl::PrintF("%-20s %-7s %-8s %8.2f", name, m.way.sockets ? "tcp" : "direct", m.way.prefetch ? "on" : "off",
               m.way.delay_ms);
  for (const double ms : m.figures.part_ms) absl::PrintF(" %9.3f", ms);
  absl::PrintF(" %8.3f %8.3f %10.0f  %-22s %8.3f %5.0f%%  %s\n", m.figures.step_ms, m.figures.cpu_ms,
               m.figures.samples_per_second, m.bound, m.bound_ms, 100 * m.bound_ms / m.figures.step_ms,
               equal ? "equal" : "DIFFER");
  std::fflush(stdout);
}

Fields Report(const std::string& name, const Measured& m, bool equal) {
  const RunFigures& f = m.figures;
  Measurement row = m.row;
  row.name = name;
  row.bound = m.bound;
  row.bound_rows_per_second = 1e3 * f.rows_of_step / m.bound_ms;
  Fields fields = FieldsOf(row);
  fields.insert(
      fields.end(),
      {{"prefetch", m.way.prefetch}, {"pull_delay_ms", m.way.delay_ms}, {"step_ms", f.step_ms}, {"cpu_ms", f.cpu_ms}});
  for (size_t part = 0; part < kStepParts; ++part) {
    fields.emplace_back(absl::StrCat(kStepPartNames[part], "_ms"), f.part_ms[part]);
  }
  fields.insert(fields.end(), {{"losses_equal", equal},
                               {"samples_per_second", f.samples_per_second},
                               {"bound_samples_per_second", f.samples_per_second * f.step_ms / m.bound_ms}});
  return fields;
}

// Measures every way of training the job's steps. Internal if their losses are not bit-equal.
absl::Status MeasureJob(const std::string& name, const v1::Job& job, const Window& window,
                        const TemporaryDirectory& directory, std::vector<Fields>* report) {
  std::vector<double> losses;
  bool all_equal = true;
  const auto measure = [&](const Way& way) {
    v1::Job changed = job;
    changed.mutable_train()->set_prefetch(way.prefetch);
    EmbeddedClusterOptions cluster;
    cluster.data_root = directory.path();
    cluster.checkpoint_root = directory.File("out");
    cluster.sockets = way.sockets;
    if (way.delay_ms > 0) {
      cluster.wrap_transport = [&way](std::unique_ptr<PsTransport> inner) {
        return MakeDelayedTransport(std::move(inner), absl::Milliseconds(way.delay_ms));
      };
    }
    Measured measured;
    measured.way = way;
    measured.figures = RunJob(changed, cluster, /*restore_from=*/"", window);
    measured.row = MeasurementOf("", changed, cluster, measured.figures);
    return measured;
  };
  const auto add = [&](const std::string& row, const Measured& measured) {
    if (losses.empty()) losses = measured.figures.losses;
    const bool equal = measured.figures.losses == losses;
    all_equal = all_equal && equal;
    Print(row, measured, report->empty(), equal);
    report->push_back(Report(row, measured, equal));
  };

  // What a step takes without pulls, and what its pulls take, both on the training thread.
  double compute_ms = 0, pull_ms = 0;
  for (const Way& way : {Way{.prefetch = false}, Way{.prefetch = true}, Way{.sockets = true, .prefetch = false},
                         Way{.sockets = true, .prefetch = true}}) {
    Measured measured = measure(way);
    const RunFigures& f = measured.figures;
    measured.bound = "the model alone";
    measured.bound_ms = f.part(StepPart::kForward) + f.part(StepPart::kBackward) + f.part(StepPart::kOptimizer);
    add(absl::StrCat("step_", name), measured);
    if (!way.sockets && !way.prefetch) {
      pull_ms = f.part(StepPart::kPull) + f.part(StepPart::kWait);
      compute_ms = f.step_ms - pull_ms;
    }
  }
  // Pulls that take as long as the rest of a step. Nothing is hidden without prefetch, all of it with.
  const double delay_ms = std::max(0.0, compute_ms - pull_ms);
  for (const bool prefetch : {false, true}) {
    Measured measured = measure({.prefetch = prefetch, .delay_ms = delay_ms});
    const RunFigures& f = measured.figures;
    // Of this run: the machine may have been another in the one before.
    const double compute = f.step_ms - f.part(StepPart::kWait);
    measured.bound = prefetch ? "max(pull, compute)" : "pull + compute";
    measured.bound_ms = prefetch ? std::max(delay_ms, compute) : delay_ms + compute;
    add(absl::StrCat("overlap_", name), measured);
  }
  if (!all_equal) return absl::InternalError(absl::StrCat(name, ": the losses depend on how rows are pulled"));
  return absl::OkStatus();
}

absl::Status Measure(const StepFlags& flags) {
  const TemporaryDirectory directory;
  std::vector<Fields> report;
  {
    ASSIGN_OR_RETURN(v1::Job job, LoadClickJob(flags.jobs, "quickstart", "clicks.tsv"));
    RETURN_IF_ERROR(ValidateJob(job));
    const Window window = {.warm_up = static_cast<uint64_t>(flags.warm_up_steps),
                           .measured = static_cast<uint64_t>(flags.quickstart_steps)};
    ClickLogOptions log;
    log.rows = (window.warm_up + window.measured) * job.train().batch_size();
    log.out = directory.File("clicks.tsv");
    RETURN_IF_ERROR(WriteClickLog(log, nullptr).status());
    RETURN_IF_ERROR(MeasureJob("quickstart", job, window, directory, &report));
  }
  {
    ASSIGN_OR_RETURN(v1::Job job, LoadClickJob(flags.jobs, "criteo_kaggle", "zipf.tsv"));
    constexpr uint64_t kDivisor = 8;  // Of the tables' rows: a row is new in few of the measured steps.
    ShrinkTables(flags.smoke ? 500 : kDivisor, &job);
    job.mutable_train()->set_batch_size(flags.smoke ? 256 : 2048);
    RETURN_IF_ERROR(ValidateJob(job));
    const Window window = {.warm_up = static_cast<uint64_t>(flags.warm_up_steps),
                           .measured = static_cast<uint64_t>(flags.criteo_steps)};
    RETURN_IF_ERROR(
        WriteZipfLog(job, (window.warm_up + window.measured) * job.train().batch_size(), directory.File("zipf.tsv")));
    RETURN_IF_ERROR(MeasureJob("criteo_kaggle", job, window, directory, &report));
  }
  return WriteJson(report, flags.json);
}

absl::Status Profile(const StepFlags& flags) {
  StepProfileFlags profiled = flags.profiled;
  profiled.jobs = flags.jobs;
  profiled.smoke = flags.smoke;
  profiled.warm_up_steps = flags.warm_up_steps;
  if (flags.smoke) profiled.steps = 4;
  if (flags.smoke && profiled.batch_size == 0) profiled.batch_size = 256;
  ASSIGN_OR_RETURN(const std::vector<Fields> report, ProfileStep(profiled));
  return WriteJson(report, flags.json);
}

}  // namespace

int StepCommand(const Arguments& arguments) {
  StepFlags flags;
  const std::vector<Option> options = {
      {"jobs", &flags.jobs, "Directory of quickstart.textproto and criteo_kaggle.textproto, which are trained."},
      {"warm-up-steps", IntFlag{&flags.warm_up_steps, 1, 1 << 20}, "Steps before those that are measured."},
      {"quickstart-steps", IntFlag{&flags.quickstart_steps, 2, 1 << 20}, "Steps that are measured of quickstart."},
      {"criteo-steps", IntFlag{&flags.criteo_steps, 2, 1 << 20}, "Steps that are measured of criteo_kaggle."},
      {"json", &flags.json, "File for the report as JSON."},
      {"smoke", &flags.smoke, "A few steps: shows that it works, measures nothing."},
      {"profile", &flags.profile, "Splits a step on a GPU into its kernels, each beside its bound."},
      {"of", &flags.profiled.of,
       "Whose step is split: dlrm or dcnv2 (MLPerf's shapes, tables in GPU memory), a job of --jobs, or a job file "
       "(.textproto)."},
      {"data-root", &flags.profiled.data_root, "Where the inputs of that job file are."},
      {"batch-size", IntFlag{&flags.profiled.batch_size, 0, 1 << 20},
       "Of the step that is split; 0: 65,536 of dlrm, 8,192 of dcnv2, a job's own."},
      {"zipf", &flags.profiled.zipf, "Ids of dlrm and dcnv2 by Zipf's law with exponent 1.05, not uniform."},
      {"profile-steps", IntFlag{&flags.profiled.steps, 2, 1 << 16}, "Steps of which the medians are."},
  };
  const Usage usage = {
      .program = "sparrow-bench step",
      .positional = "",
      .summary =
          "Where does the time of a training step go, and how much of a pull does train.prefetch hide? A whole\n"
          "cluster in this process trains the jobs quickstart (batch 512) and criteo_kaggle (batch 2,048, an eighth\n"
          "of the rows, ids by Zipf's law with exponent 1.05), with prefetch off and on, the data plane by calls and\n"
          "over loopback TCP. The bound is what the model alone takes.\n"
          "The rows named overlap have a delay before each pull in which nobody works, as a network would have it, so\n"
          "long that pull and compute (a step without what it waits) take the same time: the bound is their sum\n"
          "without prefetch, the larger of them with. Without the delay both need the cores, and where these are all\n"
          "busy nothing can overlap. Losses that are not bit-equal are an error.\n"
          "--profile: where the time of a step on a GPU goes. A table in markdown: of each kernel, product and copy "
          "its\n"
          "time (CUPTI's, kernels one by one, not as a graph), the bytes and operations that it needs, and the bound:\n"
          "the largest of what these take at the rate of a copy and of a large product, both measured in the same "
          "run,\n"
          "and, for each launch, of the shortest kernel. Below it the time in which nothing was at work, and the time\n"
          "of a step that is not traced, as a graph. A kernel that says nothing of its cost is an error. Without a "
          "GPU\n"
          "it says so and ends with status 77; the parts of a step on a CPU are what `step` alone tells.",
      .examples =
          "  sparrow-bench step\n  sparrow-bench step --criteo-steps 500 --json out.json\n"
          "  sparrow-bench step --profile --of dlrm --batch-size 2048\n"
          "  sparrow-bench step --profile --of quickstart\n"};
  if (const std::optional<int> status = ParseCommand(usage, options, arguments)) return *status;
  if (flags.smoke) {
    flags.warm_up_steps = 4;
    flags.quickstart_steps = 20;
    flags.criteo_steps = 8;
  }
  if (flags.profile && GpuCount() == 0) {
    std::fprintf(stderr, "sparrow-bench step --profile: needs a GPU: %s\n", GpuAbsence().c_str());
    return kNoGpu;
  }
  const absl::Status status = flags.profile ? Profile(flags) : Measure(flags);
  if (status.ok()) return 0;
  std::fprintf(stderr, "sparrow-bench step: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace sparrow::bench
