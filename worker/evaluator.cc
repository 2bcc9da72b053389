#include "worker/evaluator.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/bytes.h"
#include "base/status_macros.h"
#include "dense/binary_metrics.h"
#include "worker/prefetcher.h"

namespace sparrow {
namespace {

constexpr size_t kGatherRowsMax = 1 << 19;  // Of one worker in one message: 4 MiB.

}  // namespace

absl::StatusOr<std::unique_ptr<Evaluator>> Evaluator::Create(const Parts& parts, const BatchReaderOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<BatchReader> reader, BatchReader::Open(options));
  return std::unique_ptr<Evaluator>(new Evaluator(parts, options, std::move(reader)));
}

Evaluator::Evaluator(const Parts& parts, const BatchReaderOptions& options, std::unique_ptr<BatchReader> reader)
    : parts_(parts),
      reader_options_(options),
      reader_(std::move(reader)),
      files_(reader_->files()),
      pull_(parts.client) {}

absl::StatusOr<v1::EvalResult> Evaluator::Evaluate(uint64_t step, Collective* collective) {
  const absl::Time start = absl::Now();
  RETURN_IF_ERROR(Score(step));
  RETURN_IF_ERROR(Annotate(Gather(collective), "gathering the scores"));
  v1::EvalResult result;
  result.set_step(step);
  const WorkerMetrics& metrics = *parts_.metrics;
  if (collective->rank() == 0) {
    const BinaryMetrics binary = ComputeBinaryMetrics(logits_, labels_);
    result.set_rows(binary.rows);
    result.set_loss(binary.logloss);
    if (binary.auc.has_value()) {
      result.set_auc(*binary.auc);
      metrics.eval_auc.Set(*binary.auc);
    }
    result.set_auc_reason(binary.auc_reason);
    result.set_calibration(binary.calibration);
    metrics.eval_logloss.Set(binary.logloss);
  }
  metrics.evaluations.Increment();
  metrics.eval_seconds.Observe(absl::ToDoubleSeconds(absl::Now() - start));
  return result;
}

absl::Status Evaluator::Score(uint64_t step) {
  if (reader_ == nullptr) {
    ASSIGN_OR_RETURN(reader_, BatchReader::Open(reader_options_));
  }
  Prefetcher prefetcher(std::move(reader_), parts_.layout, parts_.client, Prefetcher::Keys::kUnique);
  StopSignal::Scope stop(parts_.stop, [&] { prefetcher.Cancel(); });
  logits_.clear();
  labels_.clear();
  for (;;) {
    ASSIGN_OR_RETURN(std::unique_ptr<PreparedBatch> prepared, prefetcher.Next());
    if (prepared == nullptr) {
      parts_.metrics->input_bytes.Add(static_cast<double>(prefetcher.reader().Stats().bytes_read));
      return absl::OkStatus();
    }
    pull_.Start({.step = step}, &prepared->partition, prepared->rows);
    RETURN_IF_ERROR(pull_.Finish());
    ASSIGN_OR_RETURN(const std::span<const float> logits, parts_.trainer->Forward(*prepared));
    logits_.insert(logits_.end(), logits.begin(), logits.end());
    labels_.insert(labels_.end(), prepared->batch.labels.begin(), prepared->batch.labels.end());
    parts_.metrics->rows_read.Add(static_cast<double>(prepared->batch.rows_read));
    parts_.metrics->rows_skipped.Add(static_cast<double>(prepared->batch.rows_read - prepared->batch.rows));
    parts_.metrics->rows_pulled.Add(static_cast<double>(prepared->partition.rows()));
    parts_.metrics->pull_bytes.Add(static_cast<double>(pull_.bytes()));
    prefetcher.Recycle(std::move(prepared));
  }
}

absl::Status Evaluator::Gather(Collective* collective) {
  if (collective->size() == 1) return absl::OkStatus();
  // All members must agree on the number of messages: that of the one with the most rows.
  const uint64_t own_rows = logits_.size();
  ASSIGN_OR_RETURN(const std::vector<std::string> counts,
                   collective->AllGather(AsBytes(std::span<const uint64_t>(&own_rows, 1))));
  uint64_t rows_max = 0;
  for (const std::string& bytes : counts) {
    uint64_t rows = 0;
    if (bytes.size() != sizeof(rows)) {
      return absl::InternalError(absl::StrCat("a worker sent ", bytes.size(), " bytes for a row count"));
    }
    CopyBytes(bytes, std::span<uint64_t>(&rows, 1));
    rows_max = std::max(rows_max, rows);
  }
  const bool keep = collective->rank() == 0;
  std::vector<float> logits;
  std::vector<float> labels;
  for (uint64_t begin = 0; begin < rows_max; begin += kGatherRowsMax) {
    const uint64_t first = std::min<uint64_t>(begin, own_rows);
    const uint64_t n = std::min<uint64_t>(kGatherRowsMax, own_rows - first);
    const auto bytes_of = [&](const std::vector<float>& values) {
      return AsBytes(std::span<const float>(values.data() + first, n));
    };
    ASSIGN_OR_RETURN(const std::vector<std::string> gathered,
                     collective->AllGather(absl::StrCat(bytes_of(logits_), bytes_of(labels_))));
    if (!keep) continue;
    for (const std::string& bytes : gathered) {
      const size_t floats = bytes.size() / sizeof(float);
      const size_t end = logits.size();
      logits.resize(end + floats / 2);
      labels.resize(end + floats / 2);
      const absl::string_view both = bytes;
      CopyBytes(both.substr(0, bytes.size() / 2), std::span<float>(logits).subspan(end));
      CopyBytes(both.substr(bytes.size() / 2), std::span<float>(labels).subspan(end));
    }
  }
  if (keep) {
    logits_ = std::move(logits);
    labels_ = std::move(labels);
  }
  return absl::OkStatus();
}

}  // namespace sparrow
