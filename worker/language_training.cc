// Training of a language model: no tables, no servers; workers hold the whole model and sum its gradients.

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "dense/gpt2_import.h"
#include "dense/loss_scaler.h"
#include "dense/schedule.h"
#include "dense/spike_guard.h"
#include "worker/checkpoint.h"
#include "worker/checkpointer.h"
#include "worker/job_check.h"
#include "worker/language_trainer.h"
#include "worker/optimizer_slices.h"
#include "worker/same_input.h"
#include "worker/token_batches.h"
#include "worker/training_record.h"
#include "worker/training_run.h"

namespace sparrow {
namespace {

constexpr double kMiB = 1 << 20;
// Each epoch has windows of its own number; those of a job without an end are not counted.
constexpr uint64_t kEpochsCountedMax = 100'000;

Sequences SequencesOf(const TokenBatch& batch, uint32_t context) {
  return {.tokens = batch.tokens, .targets = batch.targets, .length = context};
}

class LanguageTraining final : public TrainingRun {
 public:
  LanguageTraining(TrainTask task, const WorkerMetrics& metrics, TrainObserver* observer, StopSignal* stop)
      : in_(std::move(task)),
        job_(in_.task.job()),
        context_(job_.model().gpt2().context()),
        metrics_(metrics),
        observer_(observer),
        stop_(stop),
        record_(observer, job_.train().loss_every_steps()) {}

  absl::Status Run() override {
    RETURN_IF_ERROR(ValidateJob(job_));
    RETURN_IF_ERROR(MakeTrainer());
    RETURN_IF_ERROR(OpenTokens());
    v1::Summary& summary = record_.summary();
    summary.set_workers(in_.task.workers());
    summary.set_rows_are_tokens(true);
    if (IsFirst()) {
      observer_->OnOpened(summary);
      if (WillSave()) {
        RETURN_IF_ERROR(checkpointer_.Prepare(in_.checkpoint_root));
        checkpointer_.checkpoints()->RemoveProbe();
      }
    }
    ASSIGN_OR_RETURN(collective_, in_.meet());
    const StopSignal::Scope stop_collective(stop_, [this] { collective_->Abort(); });
    RETURN_IF_ERROR(CheckSameInput(record_.files(), collective_.get()));
    RETURN_IF_ERROR(CheckDevices());
    RETURN_IF_ERROR(CheckEqual("before the first step"));
    if (train_ != nullptr) {
      RETURN_IF_ERROR(trainer_->Join(
          {.collective = collective_.get(), .board = in_.board, .cancelled = [this] { return stop_->stopped(); }}));
      RETURN_IF_ERROR(Train());
    }
    if (test_.has_value() && evaluated_step_ != cursor_.step) {
      if (const absl::Status evaluated = Evaluate(); !evaluated.ok()) return SaveAfterAll(evaluated);
    }
    return Finish();
  }

  v1::Summary TakeSummary() override { return std::move(record_.summary()); }

 private:
  bool IsFirst() const { return in_.task.rank() == 0; }
  bool WillSave() const { return train_ != nullptr && checkpointer_.wanted(); }

  LossScaler* Scaler() { return scaler_.has_value() ? &*scaler_ : nullptr; }
  // Of windows of all workers, the most that one gets.
  uint64_t PartOfWorker(uint64_t windows) const { return (windows + in_.task.workers() - 1) / in_.task.workers(); }

  // Windows that this worker takes at once.
  uint64_t MicroBatch() const {
    const v1::TrainConfig& train = job_.train();
    const uint64_t part = PartOfWorker(train.batch_size());
    return train.has_micro_batch_size() ? std::min<uint64_t>(train.micro_batch_size(), part) : part;
  }

  // What cannot fit into this machine ends the job, and not the worker.
  absl::Status CheckMemory() const {
    const v1::TrainConfig& train = job_.train();
    const v1::Gpt2& gpt2 = job_.model().gpt2();
    LanguageMemory memory = LanguageMemoryCpu(job_, in_.task.workers(), MicroBatch());
    if (in_.device.gpu.has_value()) {
      v1::Job whole = job_;
      whole.mutable_train()->clear_zero();  // Which is for the GPU's memory.
      memory = LanguageMemoryCpu(whole, in_.task.workers(), MicroBatch());
      memory.activations = 0;  // Are in its memory, which the trainer looks at.
    }
    const uint64_t available = AvailableMemoryBytes();
    const std::string needs = absl::StrFormat(
        "model.gpt2 of %.0f parameters needs %.1f MiB for weights + %.1f MiB for gradients + %.1f MiB for the "
        "optimizer (train.zero %s, %d workers) + %.1f MiB for the activations of %d windows of %d tokens",
        memory.weights / sizeof(float), memory.weights / kMiB, memory.gradients / kMiB, memory.optimizer / kMiB,
        v1::TrainConfig::Zero_Name(in_.device.gpu.has_value() ? v1::TrainConfig::NONE : train.zero()),
        in_.task.workers(), memory.activations / kMiB, MicroBatch(), gpt2.context());
    LOG(INFO) << job_.name() << ": " << needs;
    Publish(memory);
    if (memory.total() <= static_cast<double>(available)) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrFormat(
        "%s, and this machine has %.1f MiB available; lower train.micro_batch_size, set train.recompute to BLOCKS, %s"
        "or take a smaller model",
        needs, static_cast<double>(available) / kMiB,
        in_.device.gpu.has_value() || in_.task.workers() == 1 ? "" : "train.zero to OPTIMIZER_STATE, "));
  }

  void Publish(const LanguageMemory& memory) const {
    for (const auto& [part, bytes] :
         {std::pair("weights", memory.weights), std::pair("gradients", memory.gradients),
          std::pair("optimizer", memory.optimizer), std::pair("activations", memory.activations)}) {
      metrics_.ModelBytes(part).Set(bytes);
    }
  }

  absl::Status MakeTrainer() {
    const v1::TrainConfig& train = job_.train();
    RETURN_IF_ERROR(CheckMemory());
    model_ = MakeGpt2(job_.model().gpt2(), train.recompute(), train.seed());
    ASSIGN_OR_RETURN(optimizer_, MakeDenseOptimizer(train.optimizer(), *model_, OptimizersSlice()));
    if (train.has_loss_spike()) guard_.emplace(train.loss_spike());
    if (train.has_init_from() && in_.task.restore_from().empty()) {
      ASSIGN_OR_RETURN(const std::string path, ResolveUnder(in_.data_root, train.init_from()));
      RETURN_IF_ERROR(Annotate(ImportGpt2(path, model_.get()), "train.init_from"));
    }
    if (train.precision() == v1::TrainConfig::FLOAT16) scaler_.emplace(train.loss_scale());
    if (!in_.task.restore_from().empty()) {
      ASSIGN_OR_RETURN(checkpoint_, OpenToResume(in_, *stop_));
      RETURN_IF_ERROR(LoadModel());
      cursor_ = CursorOf(checkpoint_->manifest);
      record_.summary().set_resumed_from(AsUtf8(checkpoint_->directory));
    }
    LanguageTrainerParts parts{.model = model_.get(), .optimizer = optimizer_.get(), .clip_norm = {}};
    if (train.has_clip_norm()) parts.clip_norm = train.clip_norm();
    parts.zero = train.zero();
    parts.micro_batch_size = MicroBatch();
    if (guard_.has_value()) {
      parts.accept = [this](double loss, double norm) { return Accept({.loss = loss, .norm = norm}); };
    }
    parts.stop = [this] { return stop_->stopped(); };
    if (!in_.device.gpu.has_value()) {
      trainer_ = MakeCpuLanguageTrainer(parts);
      return absl::OkStatus();
    }
    uint64_t windows_max = PartOfWorker(train.batch_size());
    if (job_.data().has_test()) windows_max = std::max(windows_max, PartOfWorker(job_.eval().batch_size()));
    ASSIGN_OR_RETURN(trainer_, MakeGpuLanguageTrainer(parts, job_,
                                                      {.gpu = *in_.device.gpu,
                                                       .rank = in_.task.rank(),
                                                       .workers = in_.task.workers(),
                                                       .windows_max = windows_max,
                                                       .plan_file = in_.plan_file}));
    if (const std::optional<LanguageMemory> memory = trainer_->GpuMemoryTaken(); memory.has_value()) {
      LOG(INFO) << absl::StrFormat(
          "%s: the GPU has %.1f MiB of weights + %.1f MiB of gradients + %.1f MiB of the optimizer (train.zero %s, %d "
          "workers) + %.1f MiB of activations",
          job_.name(), memory->weights / kMiB, memory->gradients / kMiB, memory->optimizer / kMiB,
          v1::TrainConfig::Zero_Name(train.zero()), in_.task.workers(), memory->activations / kMiB);
      Publish(*memory);
    }
    peak_tokens_per_second_ = trainer_->PeakFlops() * in_.task.workers() / Gpt2FlopsPerToken(job_.model().gpt2());
    return absl::OkStatus();
  }

  // Whether optimizer_ is that of a slice. What a GPU shares out, its trainer puts together, as checkpoints have it.
  bool HoldsSlice() const { return job_.train().zero() != v1::TrainConfig::NONE && !in_.device.gpu.has_value(); }

  // Elements of the model's vector whose optimizer state this worker holds in the host's memory.
  Slice OptimizersSlice() const {
    const uint64_t size = model_->weights().size();
    if (!HoldsSlice()) return {0, size};
    return SliceOf(EvenSlices(size, in_.task.workers()), in_.task.rank());
  }

  // A checkpoint holds all of the optimizer's state, of which a slice may be kept.
  absl::Status LoadModel() {
    const v1::TrainConfig& train = job_.train();
    if (train.epochs() == 0) return LoadDense(*checkpoint_, model_.get(), /*optimizer=*/nullptr, Scaler());
    return LoadDense(*checkpoint_, model_.get(), optimizer_.get(), Scaler(), Guard(), OptimizersSlice());
  }

  SpikeGuard* Guard() { return guard_.has_value() ? &*guard_ : nullptr; }

  // Whether the step of batch_ is applied (train.loss_spike). All workers have the same figures and decide alike.
  absl::StatusOr<bool> Accept(const SpikeGuard::Figures& figures) {
    if (guard_->Accept(figures)) return true;
    metrics_.loss_spikes.Increment();
    const std::string what = absl::StrCat(
        "step ", batch_.step, ", windows ", batch_.windows_in_epoch - batch_.global_windows, " to ",
        batch_.windows_in_epoch - 1, " in the order of epoch ", batch_.epoch, " of data.train: ", guard_->why());
    if (job_.train().loss_spike().action() == v1::LossSpike::STOP) {
      return absl::FailedPreconditionError(absl::StrCat(
          what, "; look at these windows, lower the learning rate, or set train.loss_spike.action to SKIP"));
    }
    if (guard_->exhausted()) {
      return absl::FailedPreconditionError(absl::StrCat(
          what, "; so many steps in a row stand out: ", guard_->state().skips, ", and train.loss_spike.skips_max is ",
          job_.train().loss_spike().skips_max(), ": training has diverged; lower the learning rate"));
    }
    if (IsFirst()) LOG(WARNING) << job_.name() << ": skipped " << what;
    return false;
  }

  TokenBatchesOptions OfThisWorker(TokenBatchesOptions options) const {
    options.data_root = in_.data_root;
    options.rank = in_.task.rank();
    options.workers = in_.task.workers();
    options.threads = in_.parse_threads;
    options.stop = [this] { return stop_->stopped(); };
    return options;
  }

  // Opens everything that is to be read, so that what is wrong with it is found before anything else happens.
  absl::Status OpenTokens() {
    const v1::TrainConfig& train = job_.train();
    steps_end_ = train.has_steps_max() ? train.steps_max() : std::numeric_limits<uint64_t>::max();
    if (cursor_.epoch < train.epochs() && cursor_.step < steps_end_) {
      TokenBatchesOptions options = OfThisWorker(TrainingTokens(job_));
      options.first_step = cursor_.step;
      options.first_epoch = cursor_.epoch;
      options.first_window_in_epoch = cursor_.rows_in_epoch;
      auto opened = TokenBatches::Open(options);
      if (!opened.ok()) return Annotate(opened.status(), "data.train");
      train_ = std::move(*opened);
      record_.AddSources(train_->files());
    }
    if (job_.data().has_test()) {
      test_ = OfThisWorker(EvaluationTokens(job_));
      const auto opened = TokenBatches::Open(*test_);
      if (!opened.ok()) return Annotate(opened.status(), "data.test");
      if (train_ != nullptr) {
        RETURN_IF_ERROR(CheckSameTokenizer(train_->shards().tokenizer(), (*opened)->shards().tokenizer()));
      }
      record_.AddSources((*opened)->files());
    }
    return absl::OkStatus();
  }

  // CPUs and GPUs round otherwise, so their weights would drift apart.
  absl::Status CheckDevices() {
    const auto name = [](bool gpu) { return gpu ? "a GPU" : "a CPU"; };
    ASSIGN_OR_RETURN(const std::vector<std::string> all, collective_->AllGather(name(in_.device.gpu.has_value())));
    for (size_t rank = 1; rank < all.size(); ++rank) {
      if (all[rank] == all[0]) continue;
      return absl::FailedPreconditionError(absl::StrCat("worker ", rank, " computes on ", all[rank],
                                                        ", and worker 0 on ", all[0],
                                                        "; start the workers of a language model with one --device"));
    }
    return absl::OkStatus();
  }

  // That all workers have one model: at the start, whatever they have loaded, after every so many steps if the job says
  // so, and at each evaluation and the end, because a cluster whose replicas drift apart trains something else than it
  // says.
  absl::Status CheckEqual(absl::string_view when) {
    RETURN_IF_ERROR(trainer_->CopyWeights());
    const std::span<const float> weights = model_->weights();
    const uint64_t hash = HashBytes({reinterpret_cast<const char*>(weights.data()), weights.size_bytes()});
    ASSIGN_OR_RETURN(const std::vector<std::string> all, collective_->AllGather(absl::StrCat(absl::Hex(hash))));
    for (size_t rank = 1; rank < all.size(); ++rank) {
      if (all[rank] == all[0]) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          when, " worker ", rank, " has other weights than worker 0 (hash ", all[rank], ", not ", all[0], ")"));
    }
    return absl::OkStatus();
  }

  absl::Status Train() {
    const v1::TrainConfig& config = job_.train();
    const uint64_t first_step = cursor_.step;
    const uint64_t steps_total = StepsTotal();
    absl::Duration trained_for = absl::ZeroDuration();
    absl::Time resumed = absl::Now();
    uint64_t bytes_counted = 0;
    TokenBatch& batch = batch_;
    while (cursor_.step < steps_end_) {
      if (stop_->stopped()) return absl::CancelledError("training was stopped");
      const absl::Time start = absl::Now();
      ASSIGN_OR_RETURN(const bool more, train_->Next(&batch));
      if (!more) break;
      std::array<double, kStepParts> seconds{};
      seconds[static_cast<size_t>(StepPart::kLoad)] = absl::ToDoubleSeconds(absl::Now() - start);
      const uint64_t part_begin = PartOf(batch.global_windows, in_.task.rank(), in_.task.workers()).begin;
      if (scaler_.has_value()) trainer_->SetLossScale(static_cast<float>(scaler_->state().scale));
      ASSIGN_OR_RETURN(const LanguageTrainer::Result result,
                       trainer_->Train(SequencesOf(batch, context_),
                                       {.step = batch.step,
                                        .first_sequence = part_begin,
                                        .sequences = batch.global_windows,
                                        .sequences_max = PartOfWorker(batch.global_windows),
                                        .learning_rate_factor = LearningRateFactor(config.schedule(), batch.step)},
                                       collective_.get()));
      if (scaler_.has_value()) RETURN_IF_ERROR(UpdateScale(batch.step, result));
      seconds[static_cast<size_t>(StepPart::kForward)] = result.forward_seconds;
      seconds[static_cast<size_t>(StepPart::kBackward)] = result.backward_seconds;
      seconds[static_cast<size_t>(StepPart::kAllReduce)] = result.reduce_seconds;
      seconds[static_cast<size_t>(StepPart::kOptimizer)] = result.update_seconds;
      for (size_t part = 0; part < kStepParts; ++part) {
        seconds_[part] += seconds[part];
        metrics_.step_seconds[part].Observe(seconds[part]);
      }
      if (peak_tokens_per_second_ > 0) {
        metrics_.model_flops_utilization.Set(static_cast<double>(result.targets) /
                                             absl::ToDoubleSeconds(absl::Now() - start) / peak_tokens_per_second_);
      }
      if (collective_->size() > 1) metrics_.exposed_allreduce_seconds.Observe(result.reduce_seconds);
      metrics_.slice_bytes.Add(static_cast<double>(
          collective_->slice_bytes_sent() - std::exchange(slice_bytes_counted_, collective_->slice_bytes_sent())));
      metrics_.slice_bytes.Add(result.bytes_sent);
      Book(batch, result, steps_total, seconds);
      metrics_.input_bytes.Add(
          static_cast<double>(train_->bytes_read() - std::exchange(bytes_counted, train_->bytes_read())));
      const uint64_t check = config.check_weights_every_steps();
      if (check > 0 && cursor_.step % check == 0) {
        RETURN_IF_ERROR(CheckEqual(absl::StrCat("after ", cursor_.step, " steps")));
      }
      const uint64_t every = job_.eval().every_steps();
      if (test_.has_value() && every > 0 && cursor_.step % every == 0) {
        trained_for += absl::Now() - resumed;
        RETURN_IF_ERROR(Evaluate());
        resumed = absl::Now();
      }
      ASSIGN_OR_RETURN(const bool save, checkpointer_.IsDue(cursor_.step, collective_.get()));
      if (save) {
        trained_for += absl::Now() - resumed;
        RETURN_IF_ERROR(SaveOnTheWay());
        resumed = absl::Now();
      }
    }
    RETURN_IF_ERROR(CheckWeights());
    trained_for += absl::Now() - resumed;
    record_.BookTime(absl::ToDoubleSeconds(trained_for));
    const double steps = static_cast<double>(cursor_.step - first_step);
    for (const StepPart part :
         {StepPart::kLoad, StepPart::kForward, StepPart::kBackward, StepPart::kAllReduce, StepPart::kOptimizer}) {
      const size_t i = static_cast<size_t>(part);
      if (part == StepPart::kBackward && seconds_[i] == 0) continue;  // One with forward.
      (*record_.summary().mutable_step_seconds())[kStepPartNames[i]] = steps > 0 ? seconds_[i] / steps : 0;
    }
    trained_ = cursor_.step > first_step;
    return absl::OkStatus();
  }

  absl::Status UpdateScale(uint64_t step, const LanguageTrainer::Result& result) {
    const uint32_t scale = scaler_->state().scale;
    if (result.refused) return absl::OkStatus();  // It says nothing of the scale.
    if (result.targets > 0 && !scaler_->Update(result.overflowed)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "step ", step, ": gradients are not finite, though the loss scale is ", scale,
          ", the smallest (train.loss_scale.min): training has diverged or float16 has not the range; lower the "
          "learning rate, or set train.precision to BFLOAT16"));
    }
    metrics_.loss_scale.Set(scaler_->state().scale);
    if (result.overflowed) metrics_.steps_skipped.Increment();
    return absl::OkStatus();
  }

  // The loss of a step is of the weights before it: what the last one did to them is seen here, and by an evaluation.
  absl::Status CheckWeights() {
    RETURN_IF_ERROR(trainer_->CopyWeights());
    return CheckFinite();
  }
  absl::Status CheckFinite() const {
    const std::span<const float> weights = model_->weights();
    const auto wrong = std::find_if(weights.begin(), weights.end(), [](float w) { return !std::isfinite(w); });
    if (wrong == weights.end()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("after ", cursor_.step, " steps weight ", wrong - weights.begin(),
                                                   " is ", *wrong, ": training has diverged; lower the learning rate"));
  }

  // 0: not known.
  uint64_t StepsTotal() const {
    const uint64_t batch = job_.train().batch_size();
    uint64_t total = cursor_.step;
    for (uint64_t epoch = cursor_.epoch; epoch < job_.train().epochs() && total < steps_end_; ++epoch) {
      if (epoch - cursor_.epoch == kEpochsCountedMax) return 0;
      const uint64_t windows = train_->EpochWindows(epoch);
      const uint64_t done = epoch == cursor_.epoch ? cursor_.rows_in_epoch : 0;
      total += (windows - std::min(windows, done) + batch - 1) / batch;
    }
    return std::min(total, steps_end_);
  }

  void Book(const TokenBatch& batch, const LanguageTrainer::Result& result, uint64_t steps_total,
            const std::array<double, kStepParts>& seconds) {
    cursor_.Pass(batch.step, batch.epoch, batch.windows_in_epoch, batch.last_in_epoch);
    // Of a step that was refused: a loss that is no number would make means of several steps none.
    const bool counts = std::isfinite(result.loss_sum);
    record_.Book({.step = batch.step,
                  .epoch = batch.epoch,
                  .steps_total = steps_total,
                  .rows_read = result.targets,
                  .samples = counts ? result.targets : 0,
                  .loss_sum = counts ? result.loss_sum : 0,
                  .skipped = result.refused || result.overflowed,
                  .gradient_norm = std::isfinite(result.gradient_norm) ? result.gradient_norm : 0,
                  .peak_samples_per_second = peak_tokens_per_second_,
                  .seconds = seconds});
    metrics_.steps.Increment();
    metrics_.samples.Add(static_cast<double>(batch.tokens.size()));
    metrics_.rows_read.Add(static_cast<double>(batch.tokens.size()));
    if (result.targets > 0) metrics_.loss.Set(result.loss_sum / static_cast<double>(result.targets));
    if (!result.overflowed) metrics_.gradient_norm.Set(result.gradient_norm);
  }

  // The mean cross-entropy over all windows of data.test.
  absl::Status Evaluate() {
    worth_saving_ = false;
    RETURN_IF_ERROR(CheckEqual(absl::StrCat("after ", cursor_.step, " steps")));
    worth_saving_ = true;
    const absl::Time start = absl::Now();
    ASSIGN_OR_RETURN(const std::unique_ptr<TokenBatches> tokens, TokenBatches::Open(*test_));
    std::array<double, 2> sums{};  // Of losses, and of targets.
    for (TokenBatch batch;;) {
      if (stop_->stopped()) return absl::CancelledError("training was stopped");
      ASSIGN_OR_RETURN(const bool more, tokens->Next(&batch));
      if (!more) break;
      ASSIGN_OR_RETURN(const double loss, trainer_->Loss(SequencesOf(batch, context_)));
      sums[0] += loss;
      sums[1] += static_cast<double>(batch.targets.size());
    }
    RETURN_IF_ERROR(Annotate(collective_->AllReduceSum(sums), "summing the losses of the evaluation"));
    if (!std::isfinite(sums[0])) {
      worth_saving_ = false;
      return absl::InvalidArgumentError(absl::StrCat("after ", cursor_.step, " steps the validation loss is ", sums[0],
                                                     ": training has diverged; lower the learning rate"));
    }
    evaluated_step_ = cursor_.step;
    metrics_.evaluations.Increment();
    metrics_.eval_seconds.Observe(absl::ToDoubleSeconds(absl::Now() - start));
    if (!IsFirst()) return absl::OkStatus();
    v1::EvalResult result;
    result.set_step(cursor_.step);
    result.set_rows(static_cast<uint64_t>(sums[1]));
    result.set_loss(sums[1] == 0 ? 0 : sums[0] / sums[1]);
    result.set_auc_reason("undefined: a language model");
    metrics_.eval_logloss.Set(result.loss());
    *record_.summary().mutable_eval() = result;
    if (job_.train().epochs() == 0) record_.summary().set_rows_read(result.rows());
    observer_->OnEval(result);
    return absl::OkStatus();
  }

  // A test set that cannot be read does not cost the training, unless others are needed for the optimizer's state.
  absl::Status SaveAfterAll(const absl::Status& evaluated) {
    const absl::Status failed = Annotate(evaluated, "evaluation at the end");
    const bool has_all = in_.task.workers() == 1 || job_.train().zero() == v1::TrainConfig::NONE;
    if (!worth_saving_ || !has_all || !IsFirst() || !trained_ || !job_.checkpoint().at_end() || stop_->stopped()) {
      return failed;
    }
    record_.summary().set_steps(cursor_.step);
    const absl::Status saved = Save();
    const std::string outcome = saved.ok()
                                    ? absl::StrCat("; the trained model is saved, in ", record_.summary().checkpoint())
                                    : absl::StrCat("; and the trained model could not be saved: ", saved.message());
    return absl::Status(failed.code(), absl::StrCat(failed.message(), outcome));
  }

  absl::Status Finish() {
    RETURN_IF_ERROR(CheckEqual("after the last step"));
    record_.summary().set_steps(cursor_.step);
    if (trained_ && job_.checkpoint().at_end()) return Save();
    if (!IsFirst()) return absl::OkStatus();
    if (checkpoint_.has_value() && record_.summary().checkpoint().empty()) {
      record_.summary().set_checkpoint(AsUtf8(checkpoint_->directory));
    }
    return absl::OkStatus();
  }

  // Between two steps. Every worker calls it; none goes on before rank 0 has saved.
  absl::Status SaveOnTheWay() {
    const absl::Time start = absl::Now();
    RETURN_IF_ERROR(CheckEqual(absl::StrCat("after ", cursor_.step, " steps")));
    RETURN_IF_ERROR(CheckFinite());
    RETURN_IF_ERROR(SaveBy([&](PutFiles put) { return checkpointer_.SaveOnTheWay(cursor_, start, put); }));
    return Annotate(collective_->Barrier(), "waiting until rank 0 has written a checkpoint");
  }

  // At the end.
  absl::Status Save() {
    const absl::Time start = absl::Now();
    return SaveBy([&](PutFiles put) { return checkpointer_.Save(cursor_, start, put); });
  }

  // The weights are as trained: CheckEqual has copied them. Every worker calls it, for what rank 0 does not hold; rank
  // 0 calls `write`.
  absl::Status SaveBy(absl::FunctionRef<absl::Status(PutFiles)> write) {
    const bool shared = job_.train().zero() != v1::TrainConfig::NONE;
    if (!IsFirst() && !shared) return absl::OkStatus();
    RETURN_IF_ERROR(trainer_->CopyOptimizer());
    std::unique_ptr<DenseOptimizer> whole;
    if (HoldsSlice()) {
      ASSIGN_OR_RETURN(whole, GatherOptimizer(job_.train().optimizer(), *model_, optimizer_.get(), collective_.get()));
    }
    if (!IsFirst()) return absl::OkStatus();
    return write([&](const std::string&, const std::string& directory, v1::Manifest* manifest) -> absl::Status {
      ASSIGN_OR_RETURN(*manifest->mutable_dense(),
                       SaveDense(directory, *model_, whole ? whole.get() : optimizer_.get(), Scaler(), Guard()));
      return absl::OkStatus();
    });
  }

  TrainTask in_;
  const v1::Job& job_;
  const uint32_t context_;
  const WorkerMetrics& metrics_;
  TrainObserver* const observer_;
  StopSignal* const stop_;

  // In the order in which they come to be.
  std::unique_ptr<LanguageModel> model_;
  std::unique_ptr<DenseOptimizer> optimizer_;
  std::optional<LossScaler> scaler_;      // Of FLOAT16.
  std::optional<SpikeGuard> guard_;       // Of train.loss_spike.
  std::optional<Checkpoint> checkpoint_;  // That was resumed.
  std::unique_ptr<LanguageTrainer> trainer_;
  std::unique_ptr<TokenBatches> train_;      // Null: nothing is left to train.
  std::optional<TokenBatchesOptions> test_;  // None: no test set.
  std::unique_ptr<Collective> collective_;

  TokenBatch batch_;   // In work, or the last one.
  DataCursor cursor_;  // Its rows are windows.
  uint64_t steps_end_ = 0;
  double peak_tokens_per_second_ = 0;  // Of all workers, if each is like this one; 0: not known.
  uint64_t slice_bytes_counted_ = 0;
  bool trained_ = false;
  bool worth_saving_ = false;  // All workers had equal weights at the last evaluation, and no loss that is not finite.
  std::optional<uint64_t> evaluated_step_;
  std::array<double, kStepParts> seconds_{};
  TrainingRecord record_;
  Checkpointer checkpointer_{job_, in_.task.job_id(), &metrics_, &record_.summary(), stop_};
};

}  // namespace

std::unique_ptr<TrainingRun> MakeLanguageTraining(TrainTask task, const WorkerMetrics& metrics, TrainObserver* observer,
                                                  StopSignal* stop) {
  return std::make_unique<LanguageTraining>(std::move(task), metrics, observer, stop);
}

}  // namespace sparrow
