#include "worker/trainer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "dense/dense_optimizer.h"
#include "dense/loss_scaler.h"
#include "dense/model.h"
#include "embedding/table_config.h"
#include "worker/batch_reader.h"
#include "worker/batch_trainer.h"
#include "worker/checkpoint.h"
#include "worker/checkpointer.h"
#include "worker/evaluator.h"
#include "worker/hot_replica.h"
#include "worker/hot_rows.h"
#include "worker/job_check.h"
#include "worker/job_layout.h"
#include "worker/prefetcher.h"
#include "worker/replicated_rows.h"
#include "worker/same_input.h"
#include "worker/step_rows.h"
#include "worker/train_loop.h"
#include "worker/training_record.h"
#include "worker/training_run.h"

namespace sparrow {
namespace {

class Training final : public TrainingRun {
 public:
  Training(TrainTask task, const WorkerMetrics& metrics, TrainObserver* observer, StopSignal* stop)
      : in_(std::move(task)), job_(in_.task.job()), metrics_(metrics), observer_(observer), stop_(stop) {}

  absl::Status Run() override {
    RETURN_IF_ERROR(ValidateJob(job_));
    layout_ = MakeJobLayout(job_);
    RETURN_IF_ERROR(MakeClient());
    const StopSignal::Scope stop_client(stop_, [this] { client_->Cancel(); });
    RETURN_IF_ERROR(MakeTrainer());
    if (in_.wrap_trainer) trainer_ = in_.wrap_trainer(std::move(trainer_));
    RETURN_IF_ERROR(OpenInput());
    summary_.set_workers(in_.task.workers());
    summary_.set_servers(client_->shards().servers());
    if (IsFirst()) observer_->OnOpened(summary_);
    // The others find the servers open: they meet rank 0 after that.
    if (IsFirst()) RETURN_IF_ERROR(OpenJob());
    ASSIGN_OR_RETURN(collective_, in_.meet());
    const StopSignal::Scope stop_collective(stop_, [this] { collective_->Abort(); });
    RETURN_IF_ERROR(CheckSameInput(record_.files(), collective_.get()));
    if (reader_ != nullptr) {
      RETURN_IF_ERROR(trainer_->Join(
          {.collective = collective_.get(), .board = in_.board, .cancelled = [this] { return stop_->stopped(); }}));
      RETURN_IF_ERROR(Train());
    }
    if (const absl::Status evaluated = EvaluateAtEnd(); !evaluated.ok()) return SaveAfterAll(evaluated);
    return Finish();
  }

  v1::Summary TakeSummary() override { return std::move(summary_); }

 private:
  LossScaler* Scaler() { return scaler_.has_value() ? &*scaler_ : nullptr; }
  bool IsFirst() const { return in_.task.rank() == 0; }

  absl::Status MakeClient() {
    const auto& owner = in_.task.shard_map().owner();
    ASSIGN_OR_RETURN(ShardAssignment shards,
                     ShardAssignment::FromOwners({owner.data(), static_cast<size_t>(owner.size())},
                                                 static_cast<uint32_t>(in_.servers.size())));
    PsClientOptions options = in_.client;
    options.tables = layout_.Shapes();
    for (int t = 0; t < job_.tables_size(); ++t) {
      ASSIGN_OR_RETURN(TableSpec spec, ParseTableConfig(job_.tables(t), job_.train().seed()));
      options.tables[t].record_floats = static_cast<uint32_t>(spec.Layout().record_bytes() / sizeof(float));
      specs_.push_back(std::move(spec));
    }
    options.pull_type = static_cast<RowType>(job_.train().pull_type());
    options.push_type = static_cast<RowType>(job_.train().push_type());
    options.context.set_job_id(in_.task.job_id());
    options.context.set_epoch(in_.task.epoch());
    options.context.set_worker(in_.task.rank());
    const std::vector<v1::TableConfig> tables(job_.tables().begin(), job_.tables().end());
    options.context.set_fingerprint(ConfigFingerprint(tables, job_.train().seed(), shards));
    client_.emplace(options, std::move(shards), std::move(in_.servers));
    return absl::OkStatus();
  }

  absl::Status MakeTrainer() {
    ASSIGN_OR_RETURN(model_,
                     MakeModel(job_.model(), {layout_.dense_columns, layout_.FeatureDims()}, job_.train().seed()));
    ASSIGN_OR_RETURN(optimizer_, MakeDenseOptimizer(job_.train().optimizer(), *model_));
    if (job_.train().precision() == v1::TrainConfig::FLOAT16) scaler_.emplace(job_.train().loss_scale());
    RETURN_IF_ERROR(LoadCheckpoint());
    BatchTrainerParts parts{.layout = &layout_, .model = model_.get(), .optimizer = optimizer_.get(), .clip_norm = {}};
    if (job_.train().has_clip_norm()) parts.clip_norm = job_.train().clip_norm();
    const uint64_t workers = in_.task.workers();
    const uint64_t batch = job_.train().batch_size();
    if (!in_.device.gpu.has_value()) {
      trainer_ = MakeCpuBatchTrainer(parts, /*cut=*/workers == 1 ? batch / 2 : 0);
      return absl::OkStatus();
    }
    const uint64_t rank = in_.task.rank();
    uint64_t rows_max = (batch + workers - 1) / workers;
    if (job_.data().has_test()) {
      rows_max = std::max(rows_max, (job_.eval().batch_size() + workers - 1) / workers);
    }
    ASSIGN_OR_RETURN(
        trainer_,
        MakeGpuBatchTrainer(parts, job_,
                            {.gpu = *in_.device.gpu,
                             .rows_max = static_cast<int64_t>(rows_max),
                             .rows_full = static_cast<int64_t>((rank + 1) * batch / workers - rank * batch / workers),
                             .plan_file = in_.plan_file}));
    return absl::OkStatus();
  }

  absl::Status LoadCheckpoint() {
    if (in_.task.restore_from().empty()) return absl::OkStatus();
    ASSIGN_OR_RETURN(checkpoint_, OpenToResume(in_, *stop_));
    // Nothing is trained without epochs, so another optimizer than the checkpoint's does no harm then.
    RETURN_IF_ERROR(
        LoadDense(*checkpoint_, model_.get(), job_.train().epochs() > 0 ? optimizer_.get() : nullptr, Scaler()));
    cursor_ = CursorOf(checkpoint_->manifest);
    summary_.set_resumed_from(AsUtf8(checkpoint_->directory));
    return absl::OkStatus();
  }

  BatchReaderOptions ReaderOptions(const v1::DataSource& source, uint64_t batch_size) const {
    BatchReaderOptions options;
    options.data_root = in_.data_root;
    options.data = job_.data();
    options.source = source;
    options.features.assign(job_.features().begin(), job_.features().end());
    options.bounded_rows = layout_.FeatureRows();
    options.batch_size = batch_size;
    options.rank = in_.task.rank();
    options.workers = in_.task.workers();
    options.threads = in_.parse_threads;
    options.cancelled = [this] { return stop_->stopped(); };
    return options;
  }

  // Opens everything that is to be read, so that what is wrong with it is found before anything else happens.
  absl::Status OpenInput() {
    const v1::TrainConfig& train = job_.train();
    steps_end_ = train.has_steps_max() ? train.steps_max() : std::numeric_limits<uint64_t>::max();
    if (cursor_.epoch < train.epochs() && cursor_.step < steps_end_) {
      BatchReaderOptions options = ReaderOptions(job_.data().train(), train.batch_size());
      options.epochs = train.epochs();
      options.first_step = cursor_.step;
      options.first_epoch = cursor_.epoch;
      options.first_row_in_epoch = cursor_.rows_in_epoch;
      absl::StatusOr<std::unique_ptr<BatchReader>> reader = BatchReader::Open(options);
      if (!reader.ok()) return Annotate(reader.status(), "data.train");
      reader_ = std::move(*reader);
      record_.AddSources(reader_->files());
    }
    if (!job_.data().has_test()) return absl::OkStatus();
    absl::StatusOr<std::unique_ptr<Evaluator>> evaluator = Evaluator::Create(
        {.layout = &layout_, .client = &*client_, .trainer = trainer_.get(), .metrics = &metrics_, .stop = stop_},
        ReaderOptions(job_.data().test(), job_.eval().batch_size()));
    if (!evaluator.ok()) return Annotate(evaluator.status(), "data.test");
    evaluator_ = std::move(*evaluator);
    record_.AddSources(evaluator_->files());
    return absl::OkStatus();
  }

  // Before training: whether a checkpoint is to be written.
  bool WillSave() const { return reader_ != nullptr && checkpointer_.wanted(); }

  absl::Status OpenJob() {
    v1::OpenJobRequest request;
    request.set_workers(in_.task.workers());
    request.set_seed(job_.train().seed());
    *request.mutable_tables() = job_.tables();
    request.mutable_shard_map()->set_version(in_.task.shard_map().version());
    request.set_first_step(cursor_.step);
    request.set_prefetch(job_.train().prefetch());
    if (checkpoint_.has_value()) {
      ASSIGN_OR_RETURN(*request.mutable_restore_from(), RelativeToRoot(in_.checkpoint_root, checkpoint_->directory));
    }
    if (WillSave()) {
      RETURN_IF_ERROR(checkpointer_.Prepare(in_.checkpoint_root));
      request.set_checkpoint_probe(checkpointer_.checkpoints()->probe());
    }
    const absl::Status opened = client_->OpenJob(request).status();
    if (checkpointer_.checkpoints() != nullptr) checkpointer_.checkpoints()->RemoveProbe();
    return opened;
  }

  absl::Status Train() {
    const v1::TrainConfig& train = job_.train();
    ASSIGN_OR_RETURN(std::unique_ptr<StepRows> rows, MakeRows());
    Prefetcher prefetcher(std::move(reader_), &layout_, &*client_, KeysOfBatches());
    const StopSignal::Scope stop_prefetcher(stop_, [&] { prefetcher.Cancel(); });
    TrainLoop loop({.config = &train,
                    .prefetcher = &prefetcher,
                    .trainer = trainer_.get(),
                    .collective = collective_.get(),
                    .metrics = &metrics_,
                    .scaler = Scaler(),
                    .steps_end = steps_end_},
                   std::move(rows));
    uint64_t steps_total = 0;
    const uint64_t first_step = cursor_.step;
    absl::Time resumed = absl::Now();  // Of the clock of training, which stands still during evaluation.
    absl::Duration trained_for = absl::ZeroDuration();

    uint64_t bytes_counted = 0;

    RETURN_IF_ERROR(loop.Start());
    while (loop.more()) {
      if (stop_->stopped()) return absl::CancelledError("training was stopped");
      // The rows of an epoch may be known only once the first one has been read.
      if (steps_total == 0) steps_total = StepsTotal(prefetcher.reader().EpochRows());
      ASSIGN_OR_RETURN(const TrainLoop::StepResult result, loop.Step());
      Book(result, steps_total);
      const uint64_t bytes_read = prefetcher.reader().Stats().bytes_read;
      metrics_.input_bytes.Add(static_cast<double>(bytes_read - std::exchange(bytes_counted, bytes_read)));
      const uint64_t every = job_.eval().every_steps();
      if (evaluator_ != nullptr && every > 0 && cursor_.step % every == 0) {
        trained_for += absl::Now() - resumed;
        RETURN_IF_ERROR(loop.WriteBack());
        RETURN_IF_ERROR(Evaluate());
        resumed = absl::Now();
      }
      ASSIGN_OR_RETURN(const bool save, checkpointer_.IsDue(cursor_.step, collective_.get()));
      if (save) {
        trained_for += absl::Now() - resumed;
        RETURN_IF_ERROR(SaveOnTheWay(&loop));
        resumed = absl::Now();
      }
    }
    RETURN_IF_ERROR(loop.WriteBack());
    RETURN_IF_ERROR(CheckWeights());
    trained_for += absl::Now() - resumed;

    record_.BookTime(absl::ToDoubleSeconds(trained_for));
    const double steps = static_cast<double>(cursor_.step - first_step);
    for (size_t part = 0; part < kStepParts; ++part) {
      (*summary_.mutable_step_seconds())[kStepPartNames[part]] = steps > 0 ? loop.seconds()[part] / steps : 0;
    }
    const BatchReaderStats stats = prefetcher.reader().Stats();
    if (stats.rows_skipped > 0) {
      LOG(WARNING) << in_.task.job_id() << ": " << stats.rows_skipped
                   << " rows were skipped, the first because: " << stats.first_skipped;
    }
    trained_ = cursor_.step > first_step;
    return absl::OkStatus();
  }

  // Between two steps. Every worker calls it; none goes on before rank 0 has saved.
  absl::Status SaveOnTheWay(TrainLoop* loop) {
    const absl::Time start = absl::Now();
    RETURN_IF_ERROR(loop->WriteBack());
    RETURN_IF_ERROR(Annotate(collective_->Barrier(), "waiting until all workers have done the step to be saved"));
    if (IsFirst()) {
      RETURN_IF_ERROR(CheckWeights());
      RETURN_IF_ERROR(checkpointer_.SaveOnTheWay(cursor_, start, [this](auto&&... to) { return Put(to...); }));
    }
    return Annotate(collective_->Barrier(), "waiting until rank 0 has written a checkpoint");
  }

  // The loss of a step is of the weights before it: what the last one did to them is seen here alone.
  absl::Status CheckWeights() {
    RETURN_IF_ERROR(trainer_->CopyToModel());
    const std::span<const float> weights = model_->weights();
    const auto wrong = std::find_if(weights.begin(), weights.end(), [](float w) { return !std::isfinite(w); });
    if (wrong == weights.end()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("after step ", cursor_.step - 1, ": weight ",
                                                   wrong - weights.begin(), " of the dense model is ", *wrong,
                                                   ": training has diverged; lower the learning rates"));
  }

  // REQUIRES: MakeRows.
  Prefetcher::Keys KeysOfBatches() const {
    const v1::TrainConfig& train = job_.train();
    if (!train.has_hot_rows()) return train.prefetch() ? Prefetcher::Keys::kPartEarly : Prefetcher::Keys::kUnique;
    const bool on_gpu = hot_replica_ != nullptr ? hot_replica_->on_gpu() : in_.device.gpu.has_value();
    return on_gpu ? Prefetcher::Keys::kAsRead : Prefetcher::Keys::kUnique;
  }

  absl::StatusOr<std::unique_ptr<StepRows>> MakeRows() {
    const v1::TrainConfig& train = job_.train();
    if (!train.has_hot_rows()) return MakeServerRows(&*client_, train.prefetch(), &metrics_);
    shares_ = ShareHotRows(train.hot_rows(), specs_);
    if (in_.task.workers() > 1) {
      ASSIGN_OR_RETURN(hot_replica_, trainer_->MakeHotReplica(shares_, specs_));
      return std::make_unique<ReplicatedRows>(
          ReplicatedRows::Parts{.tables = specs_,
                                .shares = shares_,
                                .replica = hot_replica_.get(),
                                .early = hot_replica_->on_gpu() && !scaler_.has_value(),
                                .client = &*client_,
                                .collective = collective_.get(),
                                .ahead = train.prefetch(),
                                .metrics = &metrics_});
    }
    ASSIGN_OR_RETURN(hot_rows_, trainer_->MakeHotRowStore(shares_, specs_));
    return std::make_unique<HotRows>(HotRows::Parts{.tables = specs_,
                                                    .shares = shares_,
                                                    .store = hot_rows_.get(),
                                                    .client = &*client_,
                                                    .ahead = train.prefetch(),
                                                    // Cores are free while a GPU computes.
                                                    .return_cores = trainer_->computes_elsewhere() ? HalfOfCores() : 0,
                                                    .metrics = &metrics_});
  }

  static int HalfOfCores() { return std::max(1, Cores() / 2); }

  // From where the data stands now. 0: not known.
  uint64_t StepsTotal(uint64_t epoch_rows) const {
    uint64_t total = 0;
    if (epoch_rows > 0) {
      const uint64_t batch = job_.train().batch_size();
      const auto steps = [batch](uint64_t rows) { return (rows + batch - 1) / batch; };
      total = cursor_.step + steps(epoch_rows - std::min(epoch_rows, cursor_.rows_in_epoch)) +
              (job_.train().epochs() - cursor_.epoch - 1) * steps(epoch_rows);
      return std::min(total, steps_end_);
    }
    return steps_end_ == std::numeric_limits<uint64_t>::max() ? 0 : steps_end_;
  }

  // Takes a step into summary, cursor and reports.
  void Book(const TrainLoop::StepResult& result, uint64_t steps_total) {
    cursor_.Pass(result.step, result.epoch, result.rows_in_epoch, result.last_in_epoch);
    record_.Book({.step = result.step,
                  .epoch = result.epoch,
                  .steps_total = steps_total,
                  .rows_read = result.rows_read,
                  .samples = result.samples,
                  .loss_sum = result.loss_sum,
                  .skipped = result.skipped,
                  .seconds = result.seconds});
  }

  absl::Status Evaluate() {
    ASSIGN_OR_RETURN(const v1::EvalResult result, evaluator_->Evaluate(cursor_.step, collective_.get()));
    evaluated_step_ = cursor_.step;
    if (!IsFirst()) return absl::OkStatus();
    *summary_.mutable_eval() = result;
    if (job_.train().epochs() == 0) summary_.set_rows_read(result.rows());  // An evaluation alone.
    observer_->OnEval(result);
    return absl::OkStatus();
  }

  absl::Status EvaluateAtEnd() {
    if (evaluator_ == nullptr || evaluated_step_ == cursor_.step) return absl::OkStatus();
    return Evaluate();
  }

  // A test set that cannot be read does not cost the training.
  absl::Status SaveAfterAll(const absl::Status& evaluated) {
    const absl::Status failed = Annotate(evaluated, "evaluation at the end");
    if (!IsFirst() || !trained_ || !job_.checkpoint().at_end() || stop_->stopped()) return failed;
    summary_.set_steps(cursor_.step);
    const absl::Status saved = SaveAtEnd();
    return absl::Status(
        failed.code(),
        saved.ok() ? absl::StrCat(failed.message(), "; the trained model is saved, in ", summary_.checkpoint())
                   : absl::StrCat(failed.message(), "; and the trained model could not be saved: ", saved.message()));
  }

  // Ends the job in order: after the barrier no worker needs a server, and rank 0 saves and closes alone.
  absl::Status Finish() {
    RETURN_IF_ERROR(Annotate(collective_->Barrier(), "waiting for the last step of all workers"));
    summary_.set_steps(cursor_.step);
    if (!IsFirst()) return absl::OkStatus();
    if (trained_ && job_.checkpoint().at_end()) {
      RETURN_IF_ERROR(SaveAtEnd());
    } else if (checkpoint_.has_value() && summary_.checkpoint().empty()) {
      summary_.set_checkpoint(AsUtf8(checkpoint_->directory));
    }
    // The servers drop the rows by themselves when the job is over; this only frees their memory at once.
    const absl::Status closed = client_->CloseJob();
    if (!closed.ok()) LOG(WARNING) << in_.task.job_id() << ": " << closed.message();
    return absl::OkStatus();
  }

  // Of the tables as they stand on the servers, and of the weights in the model.
  absl::Status Put(const std::string& relative, const std::string& directory, v1::Manifest* manifest) {
    ASSIGN_OR_RETURN(const std::vector<v1::SavedFile> files, client_->SaveTables(relative, cursor_.step));
    manifest->mutable_files()->Assign(files.begin(), files.end());
    ASSIGN_OR_RETURN(*manifest->mutable_dense(), SaveDense(directory, *model_, optimizer_.get(), Scaler()));
    return absl::OkStatus();
  }

  absl::Status SaveAtEnd() {
    const absl::Time start = absl::Now();
    RETURN_IF_ERROR(trainer_->CopyToModel());
    return checkpointer_.Save(cursor_, start, [this](auto&&... to) { return Put(to...); });
  }

  TrainTask in_;
  const v1::Job& job_;
  const WorkerMetrics& metrics_;
  TrainObserver* const observer_;
  StopSignal* const stop_;

  // In the order in which they come to be; each needs those above it.
  JobLayout layout_;
  std::vector<TableSpec> specs_;  // [tables]
  std::optional<PsClient> client_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<DenseOptimizer> optimizer_;
  std::optional<LossScaler> scaler_;  // None: the precision needs none.
  std::unique_ptr<BatchTrainer> trainer_;
  std::vector<HotRowShare> shares_;
  std::unique_ptr<HotRowStore> hot_rows_;    // Of a lone worker that holds rows.
  std::unique_ptr<HotReplica> hot_replica_;  // Of one of several.
  std::optional<Checkpoint> checkpoint_;     // That was resumed.
  std::unique_ptr<BatchReader> reader_;      // Of the training rows; null if none are left, or once training has it.
  std::unique_ptr<Evaluator> evaluator_;     // Null without a test set.
  std::unique_ptr<Collective> collective_;

  DataCursor cursor_;
  uint64_t steps_end_ = 0;
  bool trained_ = false;
  std::optional<uint64_t> evaluated_step_;
  TrainingRecord record_{observer_, job_.train().loss_every_steps()};
  v1::Summary& summary_ = record_.summary();
  Checkpointer checkpointer_{job_, in_.task.job_id(), &metrics_, &summary_, stop_};
};

}  // namespace

absl::StatusOr<v1::Summary> RunTraining(TrainTask task, const WorkerMetrics& metrics, TrainObserver* observer,
                                        StopSignal* stop,
                                        const std::function<void(const absl::Status&)>& about_to_fail) {
  std::unique_ptr<TrainingRun> run;
  if (task.task.job().model().has_gpt2()) {
    run = MakeLanguageTraining(std::move(task), metrics, observer, stop);
  } else {
    run = std::make_unique<Training>(std::move(task), metrics, observer, stop);
  }
  absl::Status status = run->Run();
  if (!status.ok()) {
    if (stop->stopped()) status = absl::CancelledError("stopped");
    about_to_fail(status);
    return status;
  }
  return run->TakeSummary();
}

}  // namespace sparrow
