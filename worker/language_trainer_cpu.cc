#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "dense/gradient_norm.h"
#include "worker/language_trainer.h"
#include "worker/side_thread.h"

namespace sparrow {
namespace {

// All become 0, and what whole pages hold of them goes back to the system until it is written to again.
void ZeroAndRelease(std::span<float> values) {
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = reinterpret_cast<uintptr_t>(values.data()), end = begin + values.size_bytes();
  const uintptr_t first = (begin + page - 1) / page * page, last = end / page * page;
  if (first >= last || madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED) != 0) {
    std::ranges::fill(values, 0.0f);
    return;
  }
  std::ranges::fill(values.first((first - begin) / sizeof(float)), 0.0f);
  std::ranges::fill(values.last((end - last) / sizeof(float)), 0.0f);
}

class CpuLanguageTrainer final : public LanguageTrainer {
 public:
  explicit CpuLanguageTrainer(const LanguageTrainerParts& parts) : parts_(parts) {
    if (parts.clip_norm.has_value()) clip_.max_norm = *parts.clip_norm;
    if (ShardsGradients()) ZeroAndRelease(parts.model->gradients());
  }

  absl::Status Join(const Meeting& meeting) override {
    if (meeting.collective->size() > 1 && !ShardsGradients()) side_ = std::make_unique<SideThread>(1);
    return absl::OkStatus();
  }

  absl::StatusOr<Result> Train(const Sequences& batch, const Step& step, Collective* collective) override {
    Result result;
    const absl::Time start = absl::Now();
    const std::span<float> gradients = parts_.model->gradients();
    const SliceEnds ends = EvenSlices(gradients.size(), collective->size());
    const Slice own = SliceOf(ends, collective->rank());
    const auto own_part = [&own](std::span<float> values) { return values.subspan(own.begin, own.size()); };
    // With ShardsGradients the others' are 0 whenever they are not at hand.
    std::ranges::fill(ShardsGradients() ? own_part(gradients) : gradients, 0.0f);
    absl::Status reduced;  // The side thread's, while it is at work, as is the collective.
    const auto reduce = [&](const Slice& part) {
      if (!reduced.ok()) return;  // Nothing after it can be.
      reduced =
          Annotate(collective->ReduceScatterSum(gradients.subspan(part.begin, part.size()), SlicesWithin(ends, part)),
                   "reducing the gradients");
      if (!ShardsGradients()) return;
      const Slice before{part.begin, std::clamp(own.begin, part.begin, part.end)};
      const Slice after{std::clamp(own.end, part.begin, part.end), part.end};
      for (const Slice& others : {before, after}) ZeroAndRelease(gradients.subspan(others.begin, others.size()));
    };
    absl::Duration reducing;  // That this thread waits for.
    const auto start_reducing = [&](const Slice& part) {
      const absl::Time begun = absl::Now();
      side_->Wait();
      side_->Start([&reduce, part] { reduce(part); });
      reducing += absl::Now() - begun;
    };
    const auto finish_reducing = [&] {
      const absl::Time begun = absl::Now();
      side_->Wait();
      reducing += absl::Now() - begun;
    };
    double loss = 0;
    // All workers reduce as often as the one with the most micro batches, or all in their last one, of none if need be.
    const uint64_t sequences = std::max<uint64_t>(batch.count(), ShardsGradients() ? step.sequences_max : uint64_t{1});
    RETURN_IF_ERROR(ForEachMicroBatch(batch, sequences, [&](const Sequences& part, uint64_t first) {
      const DropoutPlace place{.step = step.step, .first_sequence = step.first_sequence + first};
      const bool reduces = ShardsGradients() || first + parts_.micro_batch_size >= sequences;
      loss += parts_.model->ForwardBackward(part, place, [&](const Slice& ready) {
        if (reduces) start_reducing(ready);
      });
      finish_reducing();
      result.forward_seconds += parts_.model->forward_seconds();
      return reduced;
    }));
    result.backward_seconds = absl::ToDoubleSeconds(absl::Now() - start - reducing) - result.forward_seconds;

    const absl::Time summing = absl::Now();
    std::array<double, 3> sums = {loss, static_cast<double>(batch.targets.size()),
                                  SumOfSquaresCpu(own_part(gradients))};
    RETURN_IF_ERROR(Annotate(collective->AllReduceSum(sums), "reducing the loss"));
    reducing += absl::Now() - summing;
    result.loss_sum = sums[0];
    result.targets = static_cast<uint64_t>(sums[1]);
    result.reduce_seconds = absl::ToDoubleSeconds(reducing);
    if (result.targets == 0) return result;

    const double scale = 1 / sums[1];
    const GradientClip clip = ClipOf(sums[2], scale, clip_);
    result.gradient_norm = clip.norm;
    if (parts_.accept) {
      ASSIGN_OR_RETURN(const bool accepted, parts_.accept(result.loss_sum * scale, clip.norm));
      result.refused = !accepted;
      if (result.refused) return result;
    }
    if (!std::isfinite(result.loss_sum) || !std::isfinite(clip.norm)) {
      return DivergedError(step.step, result.loss_sum * scale, clip.norm);
    }
    RETURN_IF_ERROR(Update(ends, own,
                           {.gradient_scale = scale * clip.scale, .learning_rate_factor = step.learning_rate_factor},
                           collective, &result));
    return result;
  }

  void SetLossScale(float) override {}

  absl::StatusOr<double> Loss(const Sequences& batch) override {
    double loss = 0;
    RETURN_IF_ERROR(ForEachMicroBatch(batch, batch.count(), [&](const Sequences& part, uint64_t) {
      loss += parts_.model->Loss(part);
      return absl::OkStatus();
    }));
    return loss;
  }

  double PeakFlops() const override { return 0; }

  absl::Status CopyWeights() override { return absl::OkStatus(); }
  absl::Status CopyOptimizer() override { return absl::OkStatus(); }

 private:
  bool ShardsGradients() const { return parts_.zero == v1::TrainConfig::GRADIENTS; }

  absl::Status Update(const SliceEnds& ends, const Slice& own, const DenseStepOptions& options, Collective* collective,
                      Result* result) {
    const std::span<float> weights = parts_.model->weights(), gradients = parts_.model->gradients();
    const bool all = parts_.zero == v1::TrainConfig::NONE;
    const absl::Time start = absl::Now();
    absl::Duration reducing;
    const auto gather = [&](std::span<float> values, absl::string_view what) {
      const absl::Time begun = absl::Now();
      const absl::Status status = Annotate(collective->AllGatherSlices(values, ends), what);
      reducing += absl::Now() - begun;
      return status;
    };
    if (all) {
      RETURN_IF_ERROR(gather(gradients, "gathering the gradients"));
      parts_.optimizer->Step(weights, gradients, options);
    } else {
      const std::span<float> own_weights = weights.subspan(own.begin, own.size());
      const std::span<const float> own_gradients = gradients.subspan(own.begin, own.size());
      const std::span<double> norms = parts_.optimizer->Begin(own_weights, own_gradients, options);
      if (!norms.empty()) RETURN_IF_ERROR(Annotate(collective->AllReduceSum(norms), "summing the norms of tensors"));
      parts_.optimizer->End(own_weights, own_gradients, options);
      RETURN_IF_ERROR(gather(weights, "gathering the weights"));
    }
    result->reduce_seconds += absl::ToDoubleSeconds(reducing);
    result->update_seconds = absl::ToDoubleSeconds(absl::Now() - start - reducing);
    return absl::OkStatus();
  }

  // Calls body(part, number of its first sequence), which returns a Status, for the micro batches of so many sequences
  // in turn, with empty ones for those that the batch has not. Cancelled: stopped before all were done.
  template <typename Body>
  absl::Status ForEachMicroBatch(const Sequences& batch, uint64_t sequences, const Body& body) const {
    const uint64_t count = static_cast<uint64_t>(batch.count());
    const uint64_t length = static_cast<uint64_t>(batch.length);
    for (uint64_t first = 0; first < sequences; first += parts_.micro_batch_size) {
      if (parts_.stop && parts_.stop()) return absl::CancelledError("training was stopped");
      const uint64_t begin = std::min(first, count), n = std::min(parts_.micro_batch_size, count - begin);
      RETURN_IF_ERROR(body(Sequences{.tokens = batch.tokens.subspan(begin * length, n * length),
                                     .targets = batch.targets.subspan(begin * length, n * length),
                                     .length = batch.length},
                           first));
    }
    return absl::OkStatus();
  }

  const LanguageTrainerParts parts_;
  ClipOptions clip_;
  // Sums over workers what backward is done with, while backward goes on with the rest. Without a thread where there is
  // nothing to sum, and with slices of gradients, of which no more are to be there than must.
  std::unique_ptr<SideThread> side_ = std::make_unique<SideThread>(0);
};

}  // namespace

absl::Status DivergedError(uint64_t step, double loss, double gradient_norm) {
  return absl::InvalidArgumentError(absl::StrCat("step ", step, ": the loss is ", loss, " and the gradients' norm ",
                                                 gradient_norm, ": training has diverged; lower the learning rate"));
}

LanguageMemory LanguageMemoryCpu(const v1::Job& job, uint32_t workers, uint64_t micro_batch_size) {
  const v1::TrainConfig& train = job.train();
  const Gpt2Floats floats = Gpt2FloatsCpu(job.model().gpt2(), train.recompute(), micro_batch_size);
  const double all = floats.parameters * sizeof(float), slice = all / workers;
  const int states = DenseStates(DenseRuleOf(train.optimizer()).value().kind);
  const bool shards_gradients = train.zero() == v1::TrainConfig::GRADIENTS;
  return {.weights = all,
          .gradients = shards_gradients ? std::min(all, slice + floats.gradients_at_hand * sizeof(float)) : all,
          .optimizer = states * (train.zero() == v1::TrainConfig::NONE ? all : slice),
          .activations = floats.activations * sizeof(float)};
}

std::unique_ptr<LanguageTrainer> MakeCpuLanguageTrainer(const LanguageTrainerParts& parts) {
  return std::make_unique<CpuLanguageTrainer>(parts);
}

}  // namespace sparrow
