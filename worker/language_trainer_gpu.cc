// A language model's steps on a GPU: micro batches one behind the other, each a recorded forward and a recorded
// backward pass, and, for a lone worker, the update behind them. Nobody waits but for the end of a step. Gradients of
// several workers are summed between their GPUs, beside the last micro batch's backward, or through the host.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/cuda/allocate.h"
#include "base/cuda/graph.h"
#include "base/cuda/mirror.h"
#include "base/cuda/operation.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "dense/cublas_lt.h"
#include "dense/dense_optimizer_gpu.h"
#include "dense/gpt2_gpu.h"
#include "dense/gpu_meeting.h"
#include "dense/gradient_norm_gpu.h"
#include "dense/gradient_reducer.h"
#include "dense/grid_sum.h"
#include "dense/model_gpu.h"
#include "dense/peak_flops.h"
#include "dense/shard_reducer.h"
#include "dense/sharded_optimizer_gpu.h"
#include "dense/step_gate_gpu.h"
#include "worker/gpu_optimizer_state.h"
#include "worker/gpu_reserve.h"
#include "worker/language_trainer.h"

namespace sparrow {
namespace {

// A sum takes multiprocessors from the backward pass beside it, and waits for the other GPUs meanwhile: a few large
// ones.
constexpr int64_t kBucketBytes = 100 << 20;
constexpr double kMiB = 1 << 20;
// Where gradients have room for two buckets.
constexpr int64_t kRingBucketBytes = 25 << 20;
constexpr absl::Duration kCollectiveTimeout = absl::Minutes(10);  // How far apart workers may be.
constexpr size_t kPartAlignment = 256;                            // Bytes, of what lies in a micro batch's input.

size_t Aligned(size_t bytes) { return (bytes + kPartAlignment - 1) / kPartAlignment * kPartAlignment; }

class GpuLanguageTrainer final : public LanguageTrainer {
 public:
  GpuLanguageTrainer(const LanguageTrainerParts& parts, const v1::Job& job, bool shards)
      : parts_(parts),
        shards_(shards),
        ring_(shards && parts.zero == v1::TrainConfig::GRADIENTS),
        precision_(PrecisionOf(job.train().precision())),
        micro_(static_cast<int64_t>(parts.micro_batch_size)),
        context_(job.model().gpt2().context()) {
    if (parts.clip_norm.has_value()) clip_.max_norm = *parts.clip_norm;
  }

  ~GpuLanguageTrainer() override {
    shard_reducer_.reset();
    reducer_.reset();       // Gives up what is under way, so that the stream does not wait for ever.
    stream_.Synchronize();  // What is queued still reads the pinned memory.
  }

  absl::Status Prepare(const v1::Job& job, const GpuLanguageTrainerOptions& options) {
    ASSIGN_OR_RETURN(const DenseRule rule, DenseRuleOf(job.train().optimizer()));
    bucket_bytes_ = options.bucket_bytes > 0 ? options.bucket_bytes : ring_ ? kRingBucketBytes : kBucketBytes;
    const size_t states = (DenseStates(rule.kind) + (ring_ ? 1 : 0)) * parts_.model->weights().size() * sizeof(float) /
                          (shards_ ? options.workers : 1);
    const LanguageModelGpu::Options model_options{
        .precision = precision_,
        .recompute = job.train().recompute(),
        .sequences_max = micro_,
        .seed = job.train().seed(),
        .deterministic = job.train().deterministic(),
        .plan_file = options.plan_file,
        .ring_floats = ring_ ? bucket_bytes_ / static_cast<int64_t>(sizeof(float)) : 0,
        .spare_bytes = states + kGpuReserveBytes};
    const size_t free_before = GpuMemoryNow().free;
    const Gpt2Bytes bytes = Gpt2BytesGpu(job.model().gpt2(), model_options, free_before);
    const double needed = bytes.total() + static_cast<double>(states);
    const std::string needs = absl::StrFormat(
        "model.gpt2 needs %.1f MiB of GPU memory: %.1f for weights + %.1f for gradients + %.1f for the optimizer + "
        "%.1f for the activations of %d windows of %d tokens + %.1f for workspaces",
        needed / kMiB, bytes.weights / kMiB, bytes.gradients / kMiB, static_cast<double>(states) / kMiB,
        bytes.activations / kMiB, micro_, context_, bytes.workspaces / kMiB);
    if (needed > static_cast<double>(free_before)) {
      return GpuIsOutOfMemory(absl::StrCat(needs, " (train.micro_batch_size and train.recompute make it less)"));
    }
    ASSIGN_OR_RETURN(model_, MakeGpt2Gpu(job.model().gpt2(), *parts_.model, model_options, stream_));
    const DeviceLayout& layout = model_->parameters()->layout();
    if (shards_) {
      ASSIGN_OR_RETURN(sharded_,
                       ShardedOptimizerGpu::Make(
                           rule, model_->parameters(), GradientReducer::Buckets(model_.get(), ReducerOptions()),
                           {.rank = options.rank, .members = options.workers, .keeps_sums = ring_}, stream_));
      sharded_->SetState(parts_.optimizer);
    } else {
      optimizer_ = DenseOptimizerGpu::Make(rule, layout.size(), stream_, layout.Matrices());
      if (!optimizer_.has_value()) {
        return GpuIsOutOfMemory(absl::StrCat("the optimizer's state needs ", states, " bytes"));
      }
      OptimizerStateToGpu(parts_.optimizer, layout, &*optimizer_, stream_);
    }

    tokens_bytes_ = Aligned(static_cast<size_t>(micro_ * context_) * sizeof(uint16_t));
    input_bytes_ = 2 * tokens_bytes_ + Aligned(model_->places_bytes());
    const size_t micros = (options.windows_max + parts_.micro_batch_size - 1) / parts_.micro_batch_size;
    ASSIGN_OR_RETURN(staged_, AllocatePinned<char>(micros * input_bytes_, "the tokens of a step"));
    ASSIGN_OR_RETURN(input_, AllocateOnDevice<char>(input_bytes_, "the tokens of a micro batch"));
    ASSIGN_OR_RETURN(control_, Mirror<Control>::Make(1, "what a step needs to know"));
    ASSIGN_OR_RETURN(outcome_, Mirror<Outcome>::Make(1, "what becomes of a step"));
    ASSIGN_OR_RETURN(norm_sums_, Mirror<GridSums>::Make(1, "the sums of a norm"));
    norm_sums_.device.Fill(0, stream_);
    for (size_t m = 0; m < micros; ++m) marks_.push_back(std::make_unique<Marks>());
    stream_.Synchronize();
    LOG(INFO) << job.name() << ": " << needs << "; "
              << absl::StrFormat("%.1f MiB are taken; ",
                                 (static_cast<double>(free_before) - static_cast<double>(GpuMemoryNow().free)) / kMiB)
              << model_->Describe();
    return CheckGpuReserve("model and activations leave too little");
  }

  absl::Status Join(const Meeting& meeting) override {
    if (meeting.collective->size() == 1) return absl::OkStatus();
    const GradientReducer::Options options = ReducerOptions();
    ASSIGN_OR_RETURN(device_collective_, MeetGpus(GradientReducer::Buckets(model_.get(), options), meeting));
    if (device_collective_ == nullptr) {
      if (!shards_) return absl::OkStatus();
      return absl::FailedPreconditionError(
          absl::StrCat("train.zero is ", v1::TrainConfig::Zero_Name(parts_.zero),
                       ", which GPUs do through NCCL alone, each worker with a GPU of its own, and here sums would go "
                       "through the host; leave it out, or start the workers with --device cpu"));
    }
    if (shards_) sharded_->Join(device_collective_.get());
    if (ring_) {
      ASSIGN_OR_RETURN(shard_reducer_, ShardReducer::Make(model_.get(), device_collective_.get(),
                                                          GradientReducer::Buckets(model_.get(), options),
                                                          sharded_->sums(), kCollectiveTimeout, stream_));
    } else {
      ASSIGN_OR_RETURN(reducer_, GradientReducer::Make(model_.get(), device_collective_.get(), options, stream_));
    }
    return absl::OkStatus();
  }

  void SetLossScale(float scale) override {
    if (precision_ == Precision::kFloat16) loss_scale_ = scale;
  }

  absl::StatusOr<Result> Train(const Sequences& batch, const Step& step, Collective* collective) override {
    if (OperationListener* const listener = OperationListenerNow(); listener != nullptr) listener->StepBegins();
    Result result;
    const bool alone = collective->size() == 1;
    SetControl(batch.targets.size(), step);
    begin_.Record(stream_);
    internal::FillDevice(&outcome_.device.data()->loss_sum, 0, sizeof(double), stream_);
    if (batch.count() == 0 && !ring_) {
      internal::FillDevice(model_->parameters()->gradients(), 0,
                           static_cast<size_t>(model_->parameters()->layout().size()) * sizeof(float), stream_);
    }
    const uint64_t last =
        (static_cast<uint64_t>(batch.count()) + parts_.micro_batch_size - 1) / parts_.micro_batch_size;
    const absl::StatusOr<size_t> micros = QueueMicroBatches(batch, [&](size_t m, LanguageModelGpu::Batch micro) {
      PutPlaces(m, {.step = step.step, .first_sequence = step.first_sequence + m * parts_.micro_batch_size});
      Upload(m);
      micro.first = m == 0 || ring_;
      RETURN_IF_ERROR(Run(Pass::kForward, micro));
      marks_[m]->forward.Record(stream_);
      if (ring_) {
        RETURN_IF_ERROR(Annotate(BackwardAndSumShares(m == 0, micro), "summing the gradients"));
      } else {
        RETURN_IF_ERROR(Run(m + 1 == last && reducer_ != nullptr ? Pass::kBackwardAndSums : Pass::kBackward, micro));
      }
      marks_[m]->backward.Record(stream_);
      return absl::OkStatus();
    });
    if (!micros.ok()) {
      if (ring_) device_collective_->GiveUp();  // What is queued waits for the others' sums.
      stream_.Synchronize();
      return micros.status();
    }
    if (ring_) RETURN_IF_ERROR(Annotate(SumSharesOfNothing(*micros, step), "summing the gradients"));
    result.targets = batch.targets.size();
    if (!alone) {
      if (device_collective_ == nullptr) {
        RETURN_IF_ERROR(ReduceThroughHost(collective, &result));
      } else {
        if (batch.count() == 0 && !ring_) ReduceBackward([] {});
        RETURN_IF_ERROR(Annotate(ReduceOnGpus(&result), "summing the gradients"));
        result.targets = step.sequences * static_cast<uint64_t>(context_);
      }
      SetControl(result.targets, step);
    }
    reduced_.Record(stream_);
    if (result.targets > 0) {
      RETURN_IF_ERROR(QueueNorm());
      ASSIGN_OR_RETURN(result.refused, IsRefused(result.targets));
      if (!result.refused) RETURN_IF_ERROR(QueueUpdate(&result));
    }
    outcome_.Fetch(1, stream_);
    ended_.Record(stream_);
    RETURN_IF_ERROR(WaitForStream());
    if (OperationListener* const listener = OperationListenerNow(); listener != nullptr) listener->StepEnds();

    const Event* before = &begin_;
    for (size_t m = 0; m < *micros; ++m) {
      result.forward_seconds += marks_[m]->forward.MillisecondsSince(*before) * 1e-3;
      result.backward_seconds += marks_[m]->backward.MillisecondsSince(marks_[m]->forward) * 1e-3;
      before = &marks_[m]->backward;
    }
    result.update_seconds = ended_.MillisecondsSince(reduced_) * 1e-3;
    result.loss_sum = outcome_.host.data()->loss_sum;
    if (result.targets == 0) return result;
    result.gradient_norm = outcome_.host.data()->clip.norm;
    result.overflowed = Overflowed();
    const bool finite = std::isfinite(result.loss_sum) && std::isfinite(result.gradient_norm);
    if (result.refused || result.overflowed || finite) return result;
    return DivergedError(step.step, result.loss_sum / static_cast<double>(result.targets), result.gradient_norm);
  }

  absl::StatusOr<double> Loss(const Sequences& batch) override {
    internal::FillDevice(&outcome_.device.data()->loss_sum, 0, sizeof(double), stream_);
    const absl::StatusOr<size_t> micros = QueueMicroBatches(batch, [&](size_t m, const LanguageModelGpu::Batch& micro) {
      Upload(m);
      return Run(Pass::kLoss, micro);
    });
    outcome_.Fetch(1, stream_);
    stream_.Synchronize();
    RETURN_IF_ERROR(micros.status());
    return outcome_.host.data()->loss_sum;
  }

  std::optional<LanguageMemory> GpuMemoryTaken() const override {
    DeviceParameters* const parameters = model_->parameters();
    const double size = static_cast<double>(parameters->layout().size());
    const double states = static_cast<double>(parts_.optimizer->states().size());
    return LanguageMemory{
        .weights = size * (sizeof(float) + (parameters->copy() != nullptr ? sizeof(uint16_t) : 0)),
        .gradients = static_cast<double>(parameters->gradient_memory()->size() * sizeof(float) +
                                         (shards_ ? sharded_->sums_bytes() : 0)),
        .optimizer = shards_ ? static_cast<double>(sharded_->state_bytes()) : states * size * sizeof(float),
        .activations = static_cast<double>(model_->activation_bytes())};
  }

  double PeakFlops() const override { return sparrow::PeakFlops(GpuName(), precision_); }

  absl::Status CopyWeights() override {
    if (shards_ && device_collective_ != nullptr) {
      RETURN_IF_ERROR(Annotate(sharded_->GatherWeights(), "gathering the weights"));
      RETURN_IF_ERROR(Annotate(WaitForStream(), "gathering the weights"));
    }
    model_->parameters()->Get(parts_.model->weights(), stream_);
    return absl::OkStatus();
  }

  absl::Status CopyOptimizer() override {
    if (shards_) {
      return Annotate(sharded_->CopyState(parts_.optimizer, kCollectiveTimeout), "gathering the optimizer's state");
    }
    OptimizerStateFromGpu(&*optimizer_, model_->parameters()->layout(), parts_.optimizer, stream_);
    return absl::OkStatus();
  }

 private:
  enum class Pass { kLoss, kForward, kBackward, kBackwardAndSums };
  struct Control {  // What a step needs to know that its graphs were not recorded with.
    DenseStepOptions options;
    float loss_scale;
    uint32_t targets;
  };
  struct Outcome {  // What becomes of a step.
    double loss_sum;
    GradientClip clip;
  };
  struct Marks {  // The ends of a micro batch's passes.
    Event forward;
    Event backward;
  };

  // Norms and biases are complete last, and lie behind all other parameters, so in the first bucket: so that one is
  // summed last.
  GradientReducer::Options ReducerOptions() const {
    return {.bucket_bytes = bucket_bytes_, .timeout = kCollectiveTimeout, .totals_last = true, .shares = shards_};
  }

  // For all that is queued. With other workers' shares on their way one that has gone is noticed.
  absl::Status WaitForStream() {
    if (shards_ && device_collective_ != nullptr) return device_collective_->Wait(stream_, kCollectiveTimeout);
    stream_.Synchronize();
    return absl::OkStatus();
  }

  // The step before is over, so that the pinned memory is free.
  void SetControl(uint64_t targets, const Step& step) {
    // Without a target the gate is shut.
    const double scale =
        targets > 0 ? 1 / (static_cast<double>(targets) * loss_scale_) : std::numeric_limits<double>::quiet_NaN();
    *control_.host.data() = {.options = {.gradient_scale = scale, .learning_rate_factor = step.learning_rate_factor},
                             .loss_scale = loss_scale_,
                             .targets = static_cast<uint32_t>(targets)};
    control_.Upload(1, stream_);
  }

  // Stages the tokens of each micro batch, the last one filled up with token 0, and calls queue(number, batch) for
  // each. Returns how many there are. Cancelled: stopped between two.
  template <typename Queue>
  absl::StatusOr<size_t> QueueMicroBatches(const Sequences& batch, const Queue& queue) {
    CHECK_EQ(batch.length, context_);
    const int64_t count = batch.count();
    size_t m = 0;
    for (int64_t first = 0; first < count; first += micro_, ++m) {
      if (parts_.stop && parts_.stop()) return absl::CancelledError("training was stopped");
      const int64_t counted = std::min(micro_, count - first);
      char* const to = staged_.data() + m * input_bytes_;
      CHECK_LE((m + 1) * input_bytes_, staged_.size());
      Stage(batch.tokens, first, counted, to);
      Stage(batch.targets, first, counted, to + tokens_bytes_);
      RETURN_IF_ERROR(queue(m, LanguageModelGpu::Batch{.sequences = micro_, .counted = counted, .length = context_}));
    }
    return m;
  }
  void Stage(std::span<const uint16_t> tokens, int64_t first, int64_t counted, char* to) const {
    const size_t bytes = static_cast<size_t>(counted * context_) * sizeof(uint16_t);
    std::memcpy(to, tokens.data() + first * context_, bytes);
    std::memset(to + bytes, 0, tokens_bytes_ - bytes);
  }
  void PutPlaces(size_t m, const DropoutPlace& place) {
    model_->PutPlaces(place, staged_.data() + m * input_bytes_ + 2 * tokens_bytes_);
  }
  void Upload(size_t m) {
    internal::CopyToDevice(input_.data(), staged_.data() + m * input_bytes_, input_bytes_, stream_);
  }

  void PointToUpload(LanguageModelGpu::Batch* batch) {
    batch->tokens = reinterpret_cast<const uint16_t*>(input_.data());
    batch->targets = reinterpret_cast<const uint16_t*>(input_.data() + tokens_bytes_);
    batch->places = input_.data() + 2 * tokens_bytes_;
    batch->loss_scale = &control_.device.data()->loss_scale;
    batch->loss_sum = &outcome_.device.data()->loss_sum;
  }

  // A pass of the micro batch that was uploaded last. The first of a kind is not recorded, as products choose then how
  // to compute, and a kind that never comes again costs no graph.
  absl::Status Run(Pass pass, LanguageModelGpu::Batch batch) {
    PointToUpload(&batch);
    const auto queue = [&] {
      switch (pass) {
        case Pass::kLoss:
          return model_->Loss(batch, stream_);
        case Pass::kForward:
          return model_->ForwardLoss(batch, stream_);
        case Pass::kBackward:
          return model_->Backward(batch, stream_);
        case Pass::kBackwardAndSums:
          return ReduceBackward([&] { model_->Backward(batch, stream_); });
      }
    };
    const auto [graph, first] = graphs_.try_emplace({pass, batch.first, batch.counted});
    if (first || OperationListenerNow() != nullptr) {  // What a graph does has no operations.
      RETURN_IF_ERROR(CheckGpuRoom(absl::StrCat("a pass of ", micro_, " windows")));
      queue();
      return absl::OkStatus();
    }
    if (!graph->second.has_value()) {
      const std::string what = absl::StrCat("a pass of ", micro_, " windows");
      RETURN_IF_ERROR(CheckGpuRoom(absl::StrCat("recording ", what)));
      graph->second = Graph::Record(stream_, [&] {
        queue();
        return true;
      });
      if (!graph->second.has_value()) return GpuIsOutOfMemory(absl::StrCat(what, " cannot be recorded"));
    }
    graph->second->Replay(stream_);
    return absl::OkStatus();
  }

  GradientReducer::Totals Totals() {
    return {.loss_sum = &outcome_.device.data()->loss_sum, .samples = &control_.device.data()->targets};
  }

  // The last backward pass of a step.
  void ReduceBackward(absl::FunctionRef<void()> backward) {
    reducer_->Backward(Totals(), backward);
    reducer_->PutTotals(Totals());
  }

  // Backward of the micro batch that was uploaded last, of those that are summed each by itself.
  absl::Status BackwardAndSumShares(bool first, LanguageModelGpu::Batch batch) {
    PointToUpload(&batch);
    return shard_reducer_->Backward(first, [&] { model_->Backward(batch, stream_); });
  }
  // For the micro batches that other workers have and this one has not, from number `m` on.
  absl::Status SumSharesOfNothing(size_t m, const Step& step) {
    const uint64_t all = (step.sequences_max + parts_.micro_batch_size - 1) / parts_.micro_batch_size;
    for (; m < all; ++m) RETURN_IF_ERROR(shard_reducer_->BackwardOfNothing(m == 0));
    return absl::OkStatus();
  }

  absl::Status ReduceOnGpus(Result* result) {
    if (!ring_) RETURN_IF_ERROR(reducer_->Start());
    ASSIGN_OR_RETURN(const GradientReducer::Result sums, ring_ ? shard_reducer_->Finish(Totals()) : reducer_->Finish());
    outcome_.host.data()->loss_sum = sums.totals.loss;
    outcome_.Upload(1, stream_);
    result->reduce_seconds = sums.exposed_seconds;
    result->bytes_sent = ring_ ? shard_reducer_->bytes_sent() : reducer_->bytes_sent();
    return absl::OkStatus();
  }

  // Gradients, loss and number of targets. All workers have one layout, and one scale of the loss.
  absl::Status ReduceThroughHost(Collective* collective, Result* result) {
    DeviceParameters* const parameters = model_->parameters();
    gradients_.resize(static_cast<size_t>(parameters->layout().size()));
    outcome_.Fetch(1, stream_);
    internal::CopyToHost(gradients_.data(), parameters->gradients(), gradients_.size() * sizeof(float), stream_);
    stream_.Synchronize();
    const absl::Time start = absl::Now();
    std::array<double, 2> sums = {outcome_.host.data()->loss_sum, static_cast<double>(result->targets)};
    RETURN_IF_ERROR(Annotate(collective->AllReduceSum(gradients_), "reducing the gradients"));
    RETURN_IF_ERROR(Annotate(collective->AllReduceSum(sums), "reducing the loss"));
    outcome_.host.data()->loss_sum = sums[0];
    outcome_.Upload(1, stream_);
    result->targets = static_cast<uint64_t>(sums[1]);
    internal::CopyToDevice(parameters->gradients(), gradients_.data(), gradients_.size() * sizeof(float), stream_);
    stream_.Synchronize();
    result->reduce_seconds = absl::ToDoubleSeconds(absl::Now() - start);
    return absl::OkStatus();
  }

  absl::Status QueueNorm() {
    DeviceParameters* const parameters = model_->parameters();
    const DenseStepOptions* const options = &control_.device.data()->options;
    GradientClip* const clip = &outcome_.device.data()->clip;
    if (shards_) return Annotate(sharded_->Norm(options, clip_, clip), "summing the norm of gradients");
    GradientNormGpu(parameters->gradients(), parameters->layout().size(), options, clip_, norm_sums_.device.data(),
                    clip, stream_);
    return absl::OkStatus();
  }

  // By what has been fetched last.
  bool Overflowed() const {
    const Outcome& outcome = *outcome_.host.data();
    return precision_ == Precision::kFloat16 && std::isfinite(outcome.loss_sum) && !std::isfinite(outcome.clip.norm);
  }

  // Whether the update must not follow. Where somebody is to be asked, waits for loss and norm.
  absl::StatusOr<bool> IsRefused(uint64_t targets) {
    if (!parts_.accept) return false;
    outcome_.Fetch(1, stream_);
    RETURN_IF_ERROR(WaitForStream());
    if (Overflowed()) return false;
    const Outcome& outcome = *outcome_.host.data();
    ASSIGN_OR_RETURN(const bool accepted,
                     parts_.accept(outcome.loss_sum / static_cast<double>(targets), outcome.clip.norm));
    return !accepted;
  }

  // Clips and updates, unless the loss or the norm is not finite.
  absl::Status QueueUpdate(Result* result) {
    DeviceParameters* const parameters = model_->parameters();
    DenseStepOptions* const options = &control_.device.data()->options;
    GradientClip* const clip = &outcome_.device.data()->clip;
    GateStepGpu(&outcome_.device.data()->loss_sum, /*not_finite=*/nullptr, &options->gradient_scale, stream_);
    const DenseOptimizerGpu::StepArguments step{.weights = parameters->weights(),
                                                .gradients = shards_ ? nullptr : parameters->gradients(),
                                                .copy_type = WeightCopyOf(precision_),
                                                .copy = parameters->copy(),
                                                .options = options,
                                                .clip = clip,
                                                .decayed = model_->decayed(),
                                                .skip_unless_finite = true,
                                                .weights_ready = true};
    if (shards_) {
      result->bytes_sent += sharded_->bytes_sent();
      return Annotate(sharded_->Update(step), "gathering the weights");
    }
    optimizer_->Step(step, stream_);
    return absl::OkStatus();
  }

  const LanguageTrainerParts parts_;
  const bool shards_;  // Over workers: parts_.zero, where there are several.
  const bool ring_;    // With shards_, of gradients too: of others than this worker's there are those at hand alone.
  int64_t bucket_bytes_ = 0;
  const Precision precision_;
  const int64_t micro_;  // Windows.
  const int64_t context_;
  ClipOptions clip_;
  Stream stream_;
  std::unique_ptr<LanguageModelGpu> model_;
  std::optional<DenseOptimizerGpu> optimizer_;  // None with shards_.
  float loss_scale_ = 1;

  // A micro batch's input: tokens, targets, places of dropout.
  size_t tokens_bytes_ = 0;
  size_t input_bytes_ = 0;
  PinnedBuffer<char> staged_ = *PinnedBuffer<char>::Allocate(0);  // Those of a step.
  DeviceBuffer<char> input_ = *DeviceBuffer<char>::Allocate(0);   // That of the present one.

  Mirror<Control> control_ = Mirror<Control>::Empty();  // [1], as the two below
  Mirror<Outcome> outcome_ = Mirror<Outcome>::Empty();
  Mirror<GridSums> norm_sums_ = Mirror<GridSums>::Empty();
  std::map<std::tuple<Pass, bool, int64_t>, std::optional<Graph>> graphs_;  // By pass, Batch::first and counted.

  Event begin_, reduced_, ended_;
  std::vector<std::unique_ptr<Marks>> marks_;            // [micro batches]
  std::unique_ptr<DeviceCollective> device_collective_;  // Null: gradients are summed through the host.
  std::unique_ptr<GradientReducer> reducer_;             // Over device_collective_.
  std::unique_ptr<ShardedOptimizerGpu> sharded_;         // Of shards_, over device_collective_.
  std::unique_ptr<ShardReducer> shard_reducer_;          // Instead of reducer_ with ring_.
  std::vector<float> gradients_;  // [parameters], in the GPU's layout, to be summed over workers.
};

}  // namespace

absl::StatusOr<std::unique_ptr<LanguageTrainer>> MakeGpuLanguageTrainer(const LanguageTrainerParts& parts,
                                                                        const v1::Job& job,
                                                                        const GpuLanguageTrainerOptions& options) {
  const auto on = [&] { return absl::StrCat("cuda:", options.gpu); };
  const bool shards = parts.zero != v1::TrainConfig::NONE && options.workers > 1;
  if (shards && job.train().optimizer().kind_case() == v1::OptimizerConfig::kLamb) {
    return absl::UnimplementedError(
        absl::StrCat("train.zero is ", v1::TrainConfig::Zero_Name(parts.zero),
                     ", which GPUs do not do with train.optimizer.lamb; leave it out, take adamw, or start the workers "
                     "with --device cpu"));
  }
  if (const std::string absence = CublasLtAbsence(); !absence.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(on(), ": cuBLASLt cannot be loaded: ", absence));
  }
  if (const std::string reason = TryGpu(options.gpu); !reason.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(on(), " cannot be used: ", reason));
  }
  LOG(INFO) << job.name() << ": trains on GPU " << options.gpu << ", " << GpuName() << ", in "
            << v1::TrainConfig::Precision_Name(job.train().precision());
  RETURN_IF_ERROR(Annotate(CheckGpuReserve("others leave too little"), on()));
  auto trainer = std::make_unique<GpuLanguageTrainer>(parts, job, shards);
  RETURN_IF_ERROR(Annotate(trainer->Prepare(job, options), on()));
  return trainer;
}

}  // namespace sparrow
