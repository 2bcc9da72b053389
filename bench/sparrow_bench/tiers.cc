#include <algorithm>
#include <cstdio>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "bench/sparrow_bench/commands.h"
#include "bench/sparrow_bench/job_run.h"
#include "bench/sparrow_bench/report.h"
#include "bench/support/cold_reads.h"
#include "bench/support/resident.h"
#include "embedding/table_config.h"
#include "tests/support/temporary_directory.h"
#include "worker/job_check.h"

namespace sparrow::bench {
namespace {

struct TiersFlags {
  std::string jobs = "deploy/jobs";
  int64_t divisor = 8;
  int64_t batch_size = 2048;
  int64_t warm_up_steps = 100;
  int64_t steps = 200;
  int64_t cold_rows = 400'000;
  int64_t milliseconds = 2000;  // Of the cold reads.
  std::string json;
  bool smoke = false;
};

// How many times the budget the records of all tables have. 0: everything is in DRAM.
constexpr uint64_t kTimes[] = {0, 10, 37};

struct Tier {
  std::string name;
  uint64_t times = 0;
  uint64_t budget_bytes = 0;  // --memory of the server.
  uint64_t resident_bytes = 0;
  bool losses_equal = true;
  RunFigures figures;
  Measurement row;  // But for the bound.
};

void Print(const Tier& tier, const Tier& all, uint64_t record_bytes) {
  if (tier.times == 0) {
    absl::PrintF("%-13s %10s %10s %9s %9s %10s %8s %8s %9s %9s %11s %6s  %s\n", "name", "budget MB", "records MB",
                 "step ms", "CPU ms", "samples/s", "share", "DRAM hit", "cold/s", "evicted/s", "resident MB", "rows",
                 "losses");
  }
  const RunFigures& f = tier.figures;
  absl::PrintF("%-13s %10.1f %10.1f %9.2f %9.2f %10.0f %7.1f%% %7.2f%% %9.0f %9.0f %11.1f %5.1fM  %s\n", tier.name,
               static_cast<double>(tier.budget_bytes) / 1e6, static_cast<double>(record_bytes) / 1e6, f.step_ms,
               f.cpu_ms, f.samples_per_second, 100 * f.samples_per_second / all.figures.samples_per_second,
               100 * f.dram_hit_rate, f.cold_reads_per_second, f.evictions_per_second,
               static_cast<double>(tier.resident_bytes) / 1e6, static_cast<double>(f.rows) / 1e6,
               tier.losses_equal ? "equal" : "DIFFER");
  std::fflush(stdout);
}

Fields Report(const Tier& tier, const Tier& all, uint64_t record_bytes) {
  const RunFigures& f = tier.figures;
  Measurement row = tier.row;
  row.bound = "everything in DRAM";
  row.bound_rows_per_second = all.row.rows_per_second;
  Fields fields = FieldsOf(row);
  fields.insert(fields.end(), {{"times_budget", tier.times},
                               {"budget_bytes", tier.budget_bytes},
                               {"table_bytes", record_bytes},
                               {"rows", f.rows},
                               {"dram_bytes", f.table_bytes},
                               {"resident_bytes", tier.resident_bytes},
                               {"step_ms", f.step_ms},
                               {"cpu_ms", f.cpu_ms}});
  for (size_t part = 0; part < kStepParts; ++part) {
    fields.emplace_back(absl::StrCat(kStepPartNames[part], "_ms"), f.part_ms[part]);
  }
  fields.insert(fields.end(), {{"dram_hit_rate", f.dram_hit_rate},
                               {"cold_reads_per_second", f.cold_reads_per_second},
                               {"evictions_per_second", f.evictions_per_second},
                               {"losses_equal", tier.losses_equal},
                               {"samples_per_second", f.samples_per_second},
                               {"bound_samples_per_second", all.figures.samples_per_second}});
  return fields;
}

Fields MeasureColdReads(const TiersFlags& flags) {
  ColdReads reads(static_cast<uint64_t>(flags.cold_rows));
  ColdReads::Batch sum;
  const ColdReads::Batch first = reads.Next();  // It opens files.
  std::vector<double> batch_ms;
  while (sum.table_seconds < static_cast<double>(flags.milliseconds) / 1000) {
    const ColdReads::Batch batch = reads.Next();
    sum.rows += batch.rows;
    sum.cold += batch.cold;
    sum.table_seconds += batch.table_seconds;
    batch_ms.push_back(1e3 * batch.table_seconds);
    sum.multiget_seconds += batch.multiget_seconds;
  }
  const double rows = static_cast<double>(sum.rows);
  absl::PrintF("cold reads: %.0f rows/s, RocksDB's MultiGet %.0f rows/s: %.1f%% of it; %.1f%% of them from disk\n",
               rows / sum.table_seconds, rows / sum.multiget_seconds, 100 * sum.multiget_seconds / sum.table_seconds,
               100 * static_cast<double>(sum.cold) / rows);
  Fields fields = FieldsOf({.name = "cold_reads",
                            .transport = "direct",
                            .wire = "fp32",
                            .keys = first.rows,
                            .dim = ColdTableSpec().dim,
                            .servers = 0,  // A table alone, and one thread that reads it.
                            .workers = 1,
                            .rows_per_second = rows / sum.table_seconds,
                            .p50_ms = Percentile(batch_ms, 0.5),
                            .p99_ms = Percentile(batch_ms, 0.99),
                            .bound = "RocksDB's MultiGet",
                            .bound_rows_per_second = rows / sum.multiget_seconds,
                            .checksum = HexChecksum(first.checksum)});
  fields.emplace_back("cold_share", static_cast<double>(sum.cold) / rows);
  return fields;
}

absl::Status Measure(const TiersFlags& flags) {
  const TemporaryDirectory directory;
  ASSIGN_OR_RETURN(v1::Job job, LoadClickJob(flags.jobs, "criteo_kaggle", "clicks.tsv"));
  ShrinkTables(static_cast<uint64_t>(flags.divisor), &job);
  job.mutable_train()->set_batch_size(static_cast<uint32_t>(flags.batch_size));
  RETURN_IF_ERROR(ValidateJob(job));
  const Window window = {.warm_up = static_cast<uint64_t>(flags.warm_up_steps),
                         .measured = static_cast<uint64_t>(flags.steps)};
  const uint64_t samples = (window.warm_up + window.measured) * job.train().batch_size();
  RETURN_IF_ERROR(WriteZipfLog(job, samples, directory.File("clicks.tsv")));
  ASSIGN_OR_RETURN(const std::string full, WriteFullCheckpoint(job, directory.File("full"), directory.File("out")));
  uint64_t record_bytes = 0;
  for (const v1::TableConfig& table : job.tables()) {
    ASSIGN_OR_RETURN(const TableSpec spec, ParseTableConfig(table, job.train().seed()));
    record_bytes += table.bounded_rows() * spec.Layout().record_bytes();
  }

  const uint64_t resident_before = ResidentBytes();
  std::vector<Fields> report;
  std::optional<Tier> all;
  bool losses_equal = true;
  for (const uint64_t times : kTimes) {
    Tier tier;
    tier.name = times == 0 ? "tiers_in_dram" : absl::StrCat("tiers_", times, "x");
    tier.times = times;
    // All of it: rows in their slots, an index that is half empty, RocksDB's eighth.
    tier.budget_bytes = times == 0 ? 4 * record_bytes + (64 << 20) : record_bytes / times;
    EmbeddedClusterOptions cluster;
    cluster.data_root = directory.path();
    cluster.checkpoint_root = directory.File("out");
    cluster.memory_bytes = tier.budget_bytes;
    tier.figures = RunJob(job, cluster, full, window);
    tier.row = MeasurementOf(tier.name, job, cluster, tier.figures);
    tier.resident_bytes = tier.figures.resident_bytes - std::min(tier.figures.resident_bytes, resident_before);
    if (times == 0) {
      all = tier;
      if (tier.figures.cold_reads_per_second > 0) return absl::InternalError("not everything was in DRAM");
    } else if (tier.figures.cold_reads_per_second == 0) {
      return absl::InternalError(absl::StrCat(tier.name, ": nothing was read from the cold tier"));
    }
    tier.losses_equal = tier.figures.losses == all->figures.losses;
    losses_equal = losses_equal && tier.losses_equal;
    Print(tier, *all, record_bytes);
    report.push_back(Report(tier, *all, record_bytes));
  }
  report.push_back(MeasureColdReads(flags));
  RETURN_IF_ERROR(WriteJson(report, flags.json));
  if (!losses_equal) return absl::InternalError("the losses depend on the budget");
  return absl::OkStatus();
}

}  // namespace

int TiersCommand(const Arguments& arguments) {
  TiersFlags flags;
  const std::vector<Option> options = {
      {"jobs", &flags.jobs, "Directory of criteo_kaggle.textproto, whose model and tables are trained."},
      {"divisor", IntFlag{&flags.divisor, 1, 1 << 20}, "The rows of each table are divided by this."},
      {"batch-size", IntFlag{&flags.batch_size, 2, 1 << 20}, "Samples of a step."},
      {"warm-up-steps", IntFlag{&flags.warm_up_steps, 1, 1 << 20}, "Steps before those that are measured."},
      {"steps", IntFlag{&flags.steps, 2, 1 << 20}, "Steps that are measured."},
      {"milliseconds", IntFlag{&flags.milliseconds, 1, 600'000}, "Of the cold reads."},
      {"json", &flags.json, "File for the report as JSON."},
      {"smoke", &flags.smoke, "Small tables and a few steps: shows that it works, measures nothing."},
  };
  const Usage usage = {
      .program = "sparrow-bench tiers",
      .positional = "",
      .summary =
          "What does it cost to train tables 10 and 37 times larger than the memory of their server? A whole cluster\n"
          "in this process trains the same steps of criteo_kaggle's model with everything in DRAM and with those\n"
          "budgets (the server's --memory: RocksDB's part and the index are in it, the tables' size is that of their\n"
          "records alone). Ids are drawn by Zipf's law with exponent 1.05; all rows exist from the start, from a\n"
          "checkpoint. The bound is the run with everything in DRAM. Losses that are not bit-equal are an error. Then\n"
          "cold reads of a table alone, beside MultiGet of RocksDB with the same options. Files are in the system's\n"
          "page cache as far as it has room.",
      .examples = "  sparrow-bench tiers\n  sparrow-bench tiers --divisor 4 --steps 500 --json out.json\n"};
  if (const std::optional<int> status = ParseCommand(usage, options, arguments)) return *status;
  if (flags.smoke) {
    flags.divisor = 500;
    flags.batch_size = 256;
    flags.warm_up_steps = 4;
    flags.steps = 8;
    flags.cold_rows = 20'000;
    flags.milliseconds = 20;
  }
  const absl::Status status = Measure(flags);
  if (status.ok()) return 0;
  std::fprintf(stderr, "sparrow-bench tiers: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace sparrow::bench
