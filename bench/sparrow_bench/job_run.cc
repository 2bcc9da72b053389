#include "bench/sparrow_bench/job_run.h"

#include <sys/resource.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "base/parallel.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "bench/support/cold_reads.h"
#include "bench/support/resident.h"
#include "bench/support/zipf.h"
#include "client/click_log.h"
#include "client/direct_transport.h"
#include "client/job_file.h"
#include "client/summary.h"
#include "dense/dense_optimizer.h"
#include "dense/model.h"
#include "embedding/table_config.h"
#include "tests/support/forwarding_transport.h"
#include "worker/checkpoint.h"
#include "worker/job_checkpoints.h"
#include "worker/job_layout.h"
#include "worker/ps_client.h"

namespace sparrow::bench {
namespace {

// When the push of each step began. Thread-safe.
class PushTimes {
 public:
  void Note(uint64_t step) {
    absl::MutexLock lock(&mu_);
    if (at_.size() <= step) at_.resize(step + 1, absl::InfinitePast());
    if (at_[step] == absl::InfinitePast()) at_[step] = absl::Now();  // A part that is sent again is no other step.
  }
  // Milliseconds from the push of the step before to that of each step of the window.
  std::vector<double> StepMs(const Window& window) const {
    absl::MutexLock lock(&mu_);
    CHECK_EQ(at_.size(), window.warm_up + window.measured);
    std::vector<double> ms;
    for (uint64_t step = window.warm_up; step < at_.size(); ++step) {
      ms.push_back(absl::ToDoubleMilliseconds(at_[step] - at_[step - 1]));
    }
    return ms;
  }

 private:
  mutable absl::Mutex mu_;
  std::vector<absl::Time> at_ ABSL_GUARDED_BY(mu_);  // [steps]
};

class TimedTransport final : public ForwardingTransport {
 public:
  TimedTransport(std::unique_ptr<PsTransport> inner, PushTimes* times)
      : ForwardingTransport(std::move(inner)), times_(times) {}

  void Push(const RowPush* request, v1::PushResponse* response, absl::Duration timeout, Done done) override {
    times_->Note(request->message.step());
    ForwardingTransport::Push(request, response, timeout, std::move(done));
  }

 private:
  PushTimes* const times_;
};

// Everything that only grows, at one moment.
struct Counts {
  absl::Time at;
  double cpu_seconds = 0;
  double steps = 0;
  double rows_pulled = 0;
  double rows_used = 0;  // Pulled and pushed.
  std::array<double, kStepParts> part_seconds{};
  Shard::Usage usage;
};

double CpuSeconds() {
  rusage usage;
  CHECK_EQ(getrusage(RUSAGE_SELF, &usage), 0);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

Counts Count(const WorkerMetrics& metrics, EmbeddedCluster* cluster) {
  Counts counts;
  counts.at = absl::Now();
  counts.cpu_seconds = CpuSeconds();
  counts.steps = metrics.steps.Value();
  counts.rows_pulled = metrics.rows_pulled.Value();
  counts.rows_used = metrics.rows_pulled.Value() + metrics.rows_pushed.Value();
  for (size_t part = 0; part < kStepParts; ++part) counts.part_seconds[part] = metrics.step_seconds[part].Sum();
  counts.usage = cluster->shard(0)->GetUsage();
  return counts;
}

v1::JobStatus StatusOf(CoordinatorLink* link, const std::string& job_id) {
  const absl::StatusOr<v1::GetJobResponse> job = link->GetJob(job_id);
  CHECK(job.ok()) << job.status();
  return job->status();
}

// Looks every millisecond until so many steps are done, and now and then whether the job is still alive.
void AwaitSteps(uint64_t steps, const WorkerMetrics& metrics, CoordinatorLink* link, const std::string& job_id,
                uint64_t* resident_bytes) {
  constexpr int kLookAtJobEvery = 500;
  for (int look = 1; metrics.steps.Value() < static_cast<double>(steps); ++look) {
    absl::SleepFor(absl::Milliseconds(1));
    if (look % kLookAtJobEvery == 0) {
      const v1::JobStatus status = StatusOf(link, job_id);
      CHECK(!IsFinal(status.state()) || status.state() == v1::JobStatus::SUCCEEDED) << status.message();
    }
    if (look % 20 == 0) *resident_bytes = std::max(*resident_bytes, ResidentBytes());
  }
}

}  // namespace

RunFigures RunJob(v1::Job job, EmbeddedClusterOptions options, const std::string& restore_from, const Window& window,
                  const std::function<void()>& at_window) {
  job.mutable_cluster()->set_workers(1);
  job.mutable_cluster()->set_servers(1);
  job.mutable_checkpoint()->set_at_end(false);
  job.mutable_checkpoint()->clear_interval();
  job.mutable_train()->set_loss_every_steps(1);
  job.mutable_train()->set_steps_max(window.warm_up + window.measured);
  PushTimes push_times;
  options.wrap_transport = [wrap = options.wrap_transport, &push_times](std::unique_ptr<PsTransport> inner) {
    if (wrap != nullptr) inner = wrap(std::move(inner));
    return std::make_unique<TimedTransport>(std::move(inner), &push_times);
  };
  absl::StatusOr<std::unique_ptr<EmbeddedCluster>> started = EmbeddedCluster::Start(options);
  CHECK(started.ok()) << started.status();
  EmbeddedCluster* const cluster = started->get();
  const WorkerMetrics metrics(cluster->metrics());
  v1::SubmitRequest request;
  *request.mutable_job() = job;
  request.set_restore_from(restore_from);
  const absl::StatusOr<v1::SubmitResponse> submitted = cluster->link()->Submit(request);
  CHECK(submitted.ok()) << submitted.status();

  RunFigures figures;
  const auto await = [&](uint64_t steps) {
    AwaitSteps(steps, metrics, cluster->link(), submitted->job_id(), &figures.resident_bytes);
    return Count(metrics, cluster);
  };
  const Counts begin = await(window.warm_up);
  if (at_window != nullptr) at_window();
  // The last step is not waited for: the tables are gone soon after it.
  const Counts end = await(window.warm_up + window.measured - 1);
  const absl::Status watched =
      cluster->link()->WatchJob(submitted->job_id(), [](const v1::JobStatus&) { return true; });
  CHECK(watched.ok()) << watched;
  const v1::JobStatus status = StatusOf(cluster->link(), submitted->job_id());
  CHECK(status.state() == v1::JobStatus::SUCCEEDED) << status.message();

  const double seconds = absl::ToDoubleSeconds(end.at - begin.at);
  const double steps = end.steps - begin.steps;
  const double cold_reads = static_cast<double>(end.usage.cold_reads - begin.usage.cold_reads);
  figures.step_ms = 1e3 * seconds / steps;
  const std::vector<double> step_ms = push_times.StepMs(window);
  figures.step_p50_ms = Percentile(step_ms, 0.5);
  figures.step_p99_ms = Percentile(step_ms, 0.99);
  figures.rows_of_step = (end.rows_pulled - begin.rows_pulled) / steps;
  figures.rows_per_second = (end.rows_pulled - begin.rows_pulled) / seconds;
  figures.cpu_ms = 1e3 * (end.cpu_seconds - begin.cpu_seconds) / steps;
  figures.samples_per_second = steps * job.train().batch_size() / seconds;
  for (size_t part = 0; part < kStepParts; ++part) {
    figures.part_ms[part] = 1e3 * (end.part_seconds[part] - begin.part_seconds[part]) / steps;
  }
  figures.cold_reads_per_second = cold_reads / seconds;
  figures.evictions_per_second = static_cast<double>(end.usage.evictions - begin.usage.evictions) / seconds;
  figures.dram_hit_rate = 1 - cold_reads / (end.rows_used - begin.rows_used);
  figures.rows = end.usage.rows;
  figures.table_bytes = end.usage.memory_bytes;
  for (const v1::LossPoint& point : status.loss_curve()) figures.losses.push_back(point.loss());
  CHECK_EQ(figures.losses.size(), window.warm_up + window.measured);
  return figures;
}

Measurement MeasurementOf(const std::string& name, const v1::Job& job, const EmbeddedClusterOptions& cluster,
                          const RunFigures& figures) {
  for (const v1::TableConfig& table : job.tables()) CHECK_EQ(table.dim(), job.tables(0).dim());
  uint64_t checksum = 0;
  for (const double loss : figures.losses) checksum = Mix64(checksum + std::bit_cast<uint64_t>(loss));
  return {.name = name,
          .transport = cluster.sockets ? "tcp" : "direct",
          .wire = kWireNames[job.train().pull_type()],
          .keys = static_cast<uint64_t>(std::llround(figures.rows_of_step)),
          .dim = job.tables(0).dim(),
          .servers = 1,
          .workers = 1,
          .rows_per_second = figures.rows_per_second,
          .p50_ms = figures.step_p50_ms,
          .p99_ms = figures.step_p99_ms,
          .checksum = HexChecksum(checksum)};
}

absl::StatusOr<v1::Job> LoadClickJob(const std::string& jobs, const std::string& name, const std::string& log) {
  ASSIGN_OR_RETURN(v1::Job job, LoadJobFile(absl::StrCat(jobs, "/", name, ".textproto")));
  job.mutable_data()->mutable_train()->Clear();
  job.mutable_data()->mutable_train()->add_path(log);
  job.mutable_data()->clear_test();
  job.clear_eval();
  return job;
}

void ShrinkTables(uint64_t divisor, v1::Job* job) {
  for (v1::TableConfig& table : *job->mutable_tables()) {
    table.set_bounded_rows(std::max<uint64_t>(1, table.bounded_rows() / divisor));
  }
  for (v1::FeatureConfig& feature : *job->mutable_features()) feature.clear_modulo();
}

uint64_t RowsOf(const v1::Job& job) {
  uint64_t rows = 0;
  for (const v1::TableConfig& table : job.tables()) rows += table.bounded_rows();
  return rows;
}

absl::Status WriteZipfLog(const v1::Job& job, uint64_t rows, const std::string& path) {
  CHECK_EQ(job.tables_size(), kClickCategoricals);
  constexpr uint64_t kPrime = 2654435761;  // Above the rows of any table, so a factor of none.
  constexpr uint64_t kChunkRows = 1 << 14;
  const ClickModel model(1);
  std::vector<Zipf> columns;
  for (const v1::TableConfig& table : job.tables()) {
    CHECK_LT(table.bounded_rows(), kPrime);
    columns.emplace_back(table.bounded_rows(), kZipfExponent);
  }
  std::ofstream file(path, std::ios::binary);
  std::vector<std::string> pieces(static_cast<size_t>(ParallelThreads()));
  for (uint64_t first = 0; first < rows; first += kChunkRows * pieces.size()) {
    ParallelFor(static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        std::string& text = pieces[static_cast<size_t>(p)];
        text.clear();
        const uint64_t piece = first + static_cast<uint64_t>(p) * kChunkRows;
        for (uint64_t row = piece; row < std::min(rows, piece + kChunkRows); ++row) {
          ClickRow click = model.MakeRow(row);
          click.ids_missing = 0;
          for (size_t c = 0; c < columns.size(); ++c) {
            const uint64_t rank = columns[c].Rank(RandomUniform(c + 1, row));
            click.ids[c] = static_cast<uint32_t>(rank * kPrime % job.tables(static_cast<int>(c)).bounded_rows());
          }
          AppendCriteoLine(click, &text);
        }
      }
    });
    for (const std::string& text : pieces) file << text;
  }
  file.close();
  return file.good() ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("cannot write ", path));
}

absl::StatusOr<std::string> WriteFullCheckpoint(const v1::Job& job, const std::string& scratch,
                                                const std::string& checkpoint_root) {
  const JobLayout layout = MakeJobLayout(job);
  Metrics metrics;
  ASSIGN_OR_RETURN(
      const std::unique_ptr<Shard> shard,
      Shard::Create({.data = scratch, .checkpoint_root = checkpoint_root, .memory_bytes = uint64_t{64} << 30},
                    &metrics));
  const ShardAssignment shards = ShardAssignment::RowWise(1);
  const std::vector<v1::TableConfig> tables(job.tables().begin(), job.tables().end());
  PsClientOptions options;
  options.context.set_job_id("full");
  options.context.set_epoch(1);
  options.context.set_fingerprint(ConfigFingerprint(tables, job.train().seed(), shards));
  options.tables = layout.Shapes();
  std::vector<PsServer> ends;
  ends.push_back({"this process", MakeDirectTransport(shard.get())});
  PsClient client(options, shards, std::move(ends));
  v1::OpenJobRequest open;
  open.set_workers(1);
  open.set_seed(job.train().seed());
  *open.mutable_tables() = job.tables();
  RETURN_IF_ERROR(client.OpenJob(open).status());

  constexpr uint64_t kRowsOfPull = 100'000;
  PsPull pull(&client);
  for (size_t t = 0; t < layout.tables.size(); ++t) {
    for (uint64_t begin = 0; begin < layout.tables[t].bounded_rows; begin += kRowsOfPull) {
      std::vector<std::vector<Key>> keys(layout.tables.size());
      for (Key key = begin; key < std::min(begin + kRowsOfPull, layout.tables[t].bounded_rows); ++key) {
        keys[t].push_back(key);
      }
      std::vector<float> room(keys[t].size() * layout.tables[t].dim);
      std::vector<std::span<float>> rows(keys.size());
      rows[t] = room;
      KeyPartition partition;
      client.Partition(std::vector<std::span<const Key>>(keys.begin(), keys.end()), /*before=*/nullptr, &partition);
      pull.Start({.create = true}, &partition, rows);
      RETURN_IF_ERROR(pull.Finish());
    }
  }

  const auto put = [&](const std::string& relative, const std::string& directory,
                       v1::Manifest* manifest) -> absl::Status {
    ASSIGN_OR_RETURN(const std::vector<v1::SavedFile> files, client.SaveTables(relative, 0));
    manifest->mutable_files()->Assign(files.begin(), files.end());
    ASSIGN_OR_RETURN(const std::unique_ptr<Model> model,
                     MakeModel(job.model(), {layout.dense_columns, layout.FeatureDims()}, job.train().seed()));
    ASSIGN_OR_RETURN(const std::unique_ptr<DenseOptimizer> optimizer,
                     MakeDenseOptimizer(job.train().optimizer(), model->weights().size()));
    ASSIGN_OR_RETURN(*manifest->mutable_dense(), SaveDense(directory, *model, optimizer.get(), /*scaler=*/nullptr));
    return absl::OkStatus();
  };
  ASSIGN_OR_RETURN(const std::unique_ptr<JobCheckpoints> checkpoints,
                   JobCheckpoints::Prepare(checkpoint_root, job.name(), "full"));
  ASSIGN_OR_RETURN(const JobCheckpoints::Saved saved, checkpoints->Save(job, /*cursor=*/{}, /*keep=*/1, put));
  RETURN_IF_ERROR(client.CloseJob());
  shard->Shutdown();
  return RelativeToRoot(checkpoint_root, saved.directory);
}

}  // namespace sparrow::bench
