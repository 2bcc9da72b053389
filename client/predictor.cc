#include "client/predictor.h"

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/metrics.h"
#include "base/status_macros.h"
#include "client/direct_transport.h"
#include "client/scratch_directory.h"
#include "dense/model.h"
#include "embedding/partition.h"
#include "embedding/table_config.h"
#include "server/shard.h"
#include "worker/batch_model.h"
#include "worker/batch_reader.h"
#include "worker/checkpoint.h"
#include "worker/job_layout.h"
#include "worker/prepared_batch.h"
#include "worker/ps_client.h"

namespace sparrow {
namespace {

constexpr char kJobId[] = "predict";
constexpr uint64_t kEpoch = 1;

// A file that appears under its name when it is complete.
class CsvFile {
 public:
  explicit CsvFile(std::string path) : path_(std::move(path)), temporary_(path_ + ".tmp") {}
  ~CsvFile() {
    if (file_ == nullptr) return;
    std::fclose(file_);
    std::remove(temporary_.c_str());
  }

  absl::Status Open() {
    file_ = std::fopen(temporary_.c_str(), "we");
    if (file_ == nullptr) return ErrnoStatus(errno, "create", path_);
    return absl::OkStatus();
  }
  absl::Status Append(const std::string& text) {
    if (std::fwrite(text.data(), 1, text.size(), file_) == text.size()) return absl::OkStatus();
    return ErrnoStatus(errno, "write", path_);
  }
  absl::Status Finish() {
    const int result = std::fclose(std::exchange(file_, nullptr));
    if (result != 0 || std::rename(temporary_.c_str(), path_.c_str()) != 0) {
      const int error = errno;
      std::remove(temporary_.c_str());
      return ErrnoStatus(error, "write", path_);
    }
    return absl::OkStatus();
  }

 private:
  const std::string path_;
  const std::string temporary_;
  std::FILE* file_ = nullptr;
};

// The checkpoint's rows on a shard of our own, without a cluster around it.
class Rows {
 public:
  absl::Status Open(const v1::Job& job, const JobLayout& layout, const PredictionOptions& options, uint64_t step) {
    ASSIGN_OR_RETURN(scratch_, ScratchDirectory::Create());
    ShardOptions shard;
    shard.data = scratch_->path();
    shard.checkpoint_root = options.checkpoint_root;
    shard.memory_bytes = options.memory_bytes;
    ASSIGN_OR_RETURN(shard_, Shard::Create(shard, &metrics_));

    const ShardAssignment assignment = ShardAssignment::RowWise(1);
    PsClientOptions client;
    client.context.set_job_id(kJobId);
    client.context.set_epoch(kEpoch);
    const std::vector<v1::TableConfig> tables(job.tables().begin(), job.tables().end());
    client.context.set_fingerprint(ConfigFingerprint(tables, job.train().seed(), assignment));
    client.tables = layout.Shapes();
    std::vector<PsServer> servers;
    servers.push_back({"this process", MakeDirectTransport(shard_.get())});
    client_ = std::make_unique<PsClient>(client, assignment, std::move(servers));

    v1::OpenJobRequest request;
    request.set_workers(1);
    request.set_seed(job.train().seed());
    *request.mutable_tables() = job.tables();
    request.set_restore_from(options.checkpoint);
    request.set_first_step(step);
    return client_->OpenJob(request).status();
  }

  PsClient* client() { return client_.get(); }

 private:
  Metrics metrics_;
  std::unique_ptr<ScratchDirectory> scratch_;
  std::unique_ptr<Shard> shard_;
  std::unique_ptr<PsClient> client_;  // After the shard that it calls.
};

}  // namespace

absl::Status CheckPredicts(const v1::Job& job) {
  if (!job.model().has_gpt2()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("job \"", job.name(), "\" is a language model (model.gpt2), whose data has no rows to predict; ",
                   "sparrowctl evaluate measures its loss, sparrowctl sample writes its text"));
}

absl::StatusOr<uint64_t> WritePredictions(const v1::Job& job, const PredictionOptions& options,
                                          const std::string& path) {
  RETURN_IF_ERROR(CheckPredicts(job));
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, OpenCheckpoint(options.checkpoint_root, options.checkpoint));
  RETURN_IF_ERROR(CheckSameModel(checkpoint, job));
  const JobLayout layout = MakeJobLayout(job);
  ASSIGN_OR_RETURN(const std::unique_ptr<Model> model,
                   MakeModel(job.model(), {layout.dense_columns, layout.FeatureDims()}, job.train().seed()));
  RETURN_IF_ERROR(LoadDense(checkpoint, model.get(), /*optimizer=*/nullptr, /*scaler=*/nullptr));

  BatchReaderOptions input;
  input.data_root = options.data_root;
  input.data = job.data();
  input.source = job.data().test();
  input.features.assign(job.features().begin(), job.features().end());
  input.bounded_rows = layout.FeatureRows();
  input.batch_size = job.eval().batch_size();
  input.cancelled = options.cancelled;
  ASSIGN_OR_RETURN(const std::unique_ptr<BatchReader> reader, BatchReader::Open(input));

  Rows rows;
  const uint64_t step = checkpoint.manifest.step();
  RETURN_IF_ERROR(rows.Open(job, layout, options, step));
  CsvFile file(path);
  RETURN_IF_ERROR(file.Open());
  RETURN_IF_ERROR(file.Append("row,label,probability\n"));

  PreparedBatch prepared;  // Outlives the pull into its rows.
  PsPull pull(rows.client());
  BatchModel batch_model(&layout, model.get());
  uint64_t written = 0;
  for (;;) {
    ASSIGN_OR_RETURN(const bool more, reader->Next(&prepared.batch));
    if (!more) break;
    RETURN_IF_ERROR(PrepareBatch(layout, *rows.client(), /*before=*/nullptr, &prepared));
    pull.Start({.step = step}, &prepared.partition, prepared.rows);
    RETURN_IF_ERROR(pull.Finish());
    const std::span<const float> logits = batch_model.Forward(prepared);
    std::string text;
    for (size_t i = 0; i < logits.size(); ++i) {
      const char* label = job.data().test().unlabelled() ? "" : prepared.batch.labels[i] == 1 ? "1" : "0";
      absl::StrAppendFormat(&text, "%d,%s,%.9g\n", written++, label,
                            1 / (1 + std::exp(-static_cast<double>(logits[i]))));
    }
    RETURN_IF_ERROR(file.Append(text));
  }
  RETURN_IF_ERROR(file.Finish());
  return written;
}

}  // namespace sparrow
