#include "worker/batch_reader.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/bounded_queue.h"
#include "base/status_macros.h"
#include "worker/bad_rows.h"
#include "worker/batch_builder.h"
#include "worker/row_range.h"
#include "worker/row_source.h"

namespace sparrow {
namespace {

constexpr uint64_t kBatchRowsMax = uint64_t{1} << 24;

absl::Status CheckOptions(const BatchReaderOptions& options) {
  if (options.batch_size == 0 || options.batch_size > kBatchRowsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("batch_size is ", options.batch_size, ", expected 1 to ", kBatchRowsMax));
  }
  if (options.rank >= options.workers) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank is ", options.rank, " of ", options.workers, " workers, expected less"));
  }
  if (options.threads < 1) return absl::InvalidArgumentError(absl::StrCat(options.threads, " threads, expected 1"));
  if (options.queue_batches_max == 0) return absl::InvalidArgumentError("queue_batches_max is 0, expected at least 1");
  if (!options.bounded_rows.empty() && options.bounded_rows.size() != options.features.size()) {
    return absl::InvalidArgumentError(absl::StrCat("bounded_rows has ", options.bounded_rows.size(), " entries for ",
                                                   options.features.size(), " features"));
  }
  for (size_t i = 0; i < options.bounded_rows.size(); ++i) {
    const v1::FeatureConfig& feature = options.features[i];
    const uint64_t rows = options.bounded_rows[i];
    if (rows != 0 && feature.has_modulo() && feature.modulo() > rows) {
      return absl::InvalidArgumentError(absl::StrCat("feature \"", feature.name(), "\": modulo ", feature.modulo(),
                                                     " makes ids that its table of ", rows,
                                                     " rows does not have; lower modulo or raise bounded_rows"));
    }
  }
  return absl::OkStatus();
}

class ThreadedReader : public BatchReader {
 public:
  explicit ThreadedReader(const BatchReaderOptions& options)
      : options_(options),
        bad_rows_(options.data.on_bad_row(), options.data.bad_rows_max()),
        ready_(options.queue_batches_max) {}

  ~ThreadedReader() override {
    stop_.store(true, std::memory_order_relaxed);
    ready_.Close();
    if (thread_.joinable()) thread_.join();
  }

  absl::Status Start();

  absl::StatusOr<bool> Next(Batch* batch) override;

  BatchReaderStats Stats() const override {
    absl::MutexLock lock(&mu_);
    return stats_;
  }
  uint64_t EpochRows() const override { return epoch_rows_.load(std::memory_order_relaxed); }
  uint32_t DenseColumns() const override { return source_->DenseColumns(); }
  const std::vector<std::string>& files() const override { return source_->files(); }

 private:
  // What the thread hands to Next: a batch, or how it ended.
  struct Item {
    absl::Status status;
    bool end = false;
    uint64_t bytes_read = 0;  // So far.
    std::string first_skipped;
    Batch batch;
  };

  bool Stopped() const { return stop_.load(std::memory_order_relaxed) || (options_.cancelled && options_.cancelled()); }
  absl::Status OpenSource();
  absl::Status CheckFirstRow();

  // The thread.
  void Run();
  absl::Status ReadEpochs();
  absl::Status ReadEpoch(uint64_t epoch, uint64_t first_row);
  // Reads this worker's part of the global batch of at most `size` rows that comes next; returns the rows of all parts.
  absl::StatusOr<uint64_t> ReadGlobalBatch(uint64_t size, Batch* batch);
  absl::Status FinishEpoch(uint64_t rows, uint64_t rows_read);
  absl::Status NoRows() const;
  Batch TakeSpare();

  const BatchReaderOptions options_;

  // Written by Start, then used by the thread alone, but for what is constant in source_.
  std::unique_ptr<RowSource> source_;
  std::optional<BatchBuilder> builder_;
  BadRows bad_rows_;
  RowSpan span_;
  uint64_t step_ = 0;
  uint64_t bytes_before_ = 0;  // Read by Start.

  BoundedQueue<Item> ready_;
  std::thread thread_;
  absl::StatusOr<bool> ended_ = true;  // Of Next's caller: what every later Next returns, unless true.

  mutable absl::Mutex mu_;
  std::vector<Batch> spare_
      ABSL_GUARDED_BY(mu_);  // For their memory; at most those in the queue and on both sides of it.
  BatchReaderStats stats_ ABSL_GUARDED_BY(mu_);

  std::atomic<bool> stop_ = false;        // Relaxed: a hint to stop early; Close and join order the rest.
  std::atomic<uint64_t> epoch_rows_ = 0;  // Relaxed: a number by itself.
};

absl::Status ThreadedReader::Start() {
  RETURN_IF_ERROR(CheckOptions(options_));
  RETURN_IF_ERROR(OpenSource());
  RETURN_IF_ERROR(CheckFirstRow());
  step_ = options_.first_step;
  bytes_before_ = source_->BytesRead();
  thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

absl::Status ThreadedReader::OpenSource() {
  RowSourceOptions from;
  from.data_root = options_.data_root;
  from.data = options_.data;
  from.source = options_.source;
  from.features = options_.features;
  from.stop = [this] { return Stopped(); };
  from.threads = options_.threads;
  ASSIGN_OR_RETURN(source_, OpenRowSource(from));
  // A range that is wrong by itself is reported before the files are read for it.
  if (!NeedsCount(options_.source.rows())) RETURN_IF_ERROR(ResolveRange(options_.source.rows(), {}).status());
  RETURN_IF_ERROR(source_->Check());
  std::optional<uint64_t> rows;
  if (source_->CountIsFree() || NeedsCount(options_.source.rows())) {
    ASSIGN_OR_RETURN(rows, source_->CountRows());
  }
  absl::StatusOr<RowSpan> span = ResolveRange(options_.source.rows(), rows);
  if (!span.ok()) return Annotate(span.status(), source_->files()[0]);
  span_ = *span;
  if (rows.has_value()) epoch_rows_.store(span_.count, std::memory_order_relaxed);

  BatchBuilderOptions build;
  build.dense_columns = source_->DenseColumns();
  build.dense_transform = options_.data.dense_transform();
  build.features = options_.features;
  build.shapes = source_->Shapes();
  build.bounded_rows = options_.bounded_rows;
  builder_.emplace(std::move(build));
  return absl::OkStatus();
}

// A file of another format shows in its first row: better before a job has started than after.
absl::Status ThreadedReader::CheckFirstRow() {
  const bool read_for_certain = span_.first == 0 && options_.first_epoch == 0 && options_.first_row_in_epoch == 0;
  if (options_.data.on_bad_row() != v1::DataConfig::STOP || !read_for_certain) return absl::OkStatus();
  Batch first;
  builder_->Begin(&first);
  RETURN_IF_ERROR(source_->Read(1, &*builder_, &bad_rows_).status());
  builder_->End();
  return source_->Restart();
}

absl::StatusOr<bool> ThreadedReader::Next(Batch* batch) {
  if (!ended_.ok() || !*ended_) return ended_;
  std::optional<Item> item = ready_.Pop();
  if (!item.has_value()) return ended_ = absl::StatusOr<bool>(absl::CancelledError("the reader was closed"));
  if (!item->status.ok()) return ended_ = absl::StatusOr<bool>(item->status);
  if (item->end) return ended_ = absl::StatusOr<bool>(false);
  std::swap(*batch, item->batch);
  absl::MutexLock lock(&mu_);
  stats_.rows_read += batch->rows_read;
  stats_.rows_skipped += batch->rows_read - batch->rows;
  stats_.bytes_read = item->bytes_read;
  if (stats_.first_skipped.empty()) stats_.first_skipped = std::move(item->first_skipped);
  spare_.push_back(std::move(item->batch));
  return true;
}

Batch ThreadedReader::TakeSpare() {
  absl::MutexLock lock(&mu_);
  if (spare_.empty()) return {};
  Batch batch = std::move(spare_.back());
  spare_.pop_back();
  return batch;
}

void ThreadedReader::Run() {
  Item last;
  last.status = ReadEpochs();
  last.end = true;
  ready_.Push(std::move(last));
  ready_.Close();
}

absl::Status ThreadedReader::ReadEpochs() {
  for (uint64_t epoch = options_.first_epoch; epoch < options_.epochs; ++epoch) {
    RETURN_IF_ERROR(ReadEpoch(epoch, epoch == options_.first_epoch ? options_.first_row_in_epoch : 0));
  }
  return absl::OkStatus();
}

absl::Status ThreadedReader::ReadEpoch(uint64_t epoch, uint64_t first_row) {
  RETURN_IF_ERROR(source_->Restart());
  bad_rows_.StartPass();
  ASSIGN_OR_RETURN(const uint64_t passed, source_->Skip(span_.first));
  if (passed < span_.first) return NoRows();
  const uint64_t wanted = std::min(first_row, span_.count);
  ASSIGN_OR_RETURN(uint64_t row, source_->Skip(wanted));
  if (row < first_row) {
    return absl::InvalidArgumentError(absl::StrCat(source_->files()[0], ": the job has read ", first_row,
                                                   " rows of this epoch, but the input has only ", row,
                                                   "; resume with the files it was started with"));
  }
  ASSIGN_OR_RETURN(bool at_end, source_->AtEnd());
  if (at_end && row == 0) return NoRows();
  uint64_t own_rows = 0;
  while (row < span_.count && !at_end) {
    Item item;
    item.batch = TakeSpare();
    Batch& batch = item.batch;
    ASSIGN_OR_RETURN(const uint64_t global_rows,
                     ReadGlobalBatch(std::min(options_.batch_size, span_.count - row), &batch));
    row += global_rows;
    own_rows += batch.rows_read;
    ASSIGN_OR_RETURN(at_end, source_->AtEnd());
    batch.step = step_++;
    batch.epoch = epoch;
    batch.global_rows = global_rows;
    batch.rows_in_epoch = row;
    batch.last_in_epoch = at_end || row == span_.count;
    // The sum of an epoch is checked before its last batch is handed out.
    if (batch.last_in_epoch) RETURN_IF_ERROR(FinishEpoch(row, own_rows));
    item.bytes_read = source_->BytesRead() - bytes_before_;
    if (!bad_rows_.examples().empty()) item.first_skipped = bad_rows_.examples().front();
    if (!ready_.Push(std::move(item))) return absl::CancelledError("the reader was closed");
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> ThreadedReader::ReadGlobalBatch(uint64_t size, Batch* batch) {
  const uint64_t begin = std::min(size, options_.rank * options_.batch_size / options_.workers);
  const uint64_t end = std::min(size, (options_.rank + uint64_t{1}) * options_.batch_size / options_.workers);
  builder_->Begin(batch);
  ASSIGN_OR_RETURN(const uint64_t before, source_->Skip(begin));
  ASSIGN_OR_RETURN(batch->rows_read, source_->Read(end - begin, &*builder_, &bad_rows_));
  builder_->End();
  ASSIGN_OR_RETURN(const uint64_t after, source_->Skip(size - end));
  return before + batch->rows_read + after;
}

// `rows`: of the epoch, over all workers. `rows_read`: of this worker since the epoch began or was resumed.
absl::Status ThreadedReader::FinishEpoch(uint64_t rows, uint64_t rows_read) {
  if (rows_read != 0 && bad_rows_.pass_rows() == rows_read) {
    return absl::InvalidArgumentError(absl::StrCat(
        "none of the ", rows_read, " rows read in this epoch fits; the first: ", bad_rows_.examples().front()));
  }
  const uint64_t known = epoch_rows_.exchange(rows, std::memory_order_relaxed);
  if (known == 0 || known == rows) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(source_->files()[0], ": an epoch had ", known, " rows before and ", rows,
                                          " now; the files were changed while they were read"));
}

absl::Status ThreadedReader::NoRows() const {
  return absl::InvalidArgumentError(absl::StrCat(source_->files()[0], ": rows { ",
                                                 options_.source.rows().ShortDebugString(), " } leaves no row of ",
                                                 source_->files().size(), " file(s); skip less"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<BatchReader>> BatchReader::Open(const BatchReaderOptions& options) {
  auto reader = std::make_unique<ThreadedReader>(options);
  RETURN_IF_ERROR(reader->Start());
  return reader;
}

}  // namespace sparrow
