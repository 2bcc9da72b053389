#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "dense/gradient_norm.h"
#include "dense/reduction_terms.h"
#include "worker/language_trainer.h"

namespace sparrow {
namespace {

class CpuLanguageTrainer final : public LanguageTrainer {
 public:
  explicit CpuLanguageTrainer(const LanguageTrainerParts& parts) : parts_(parts) {
    if (parts.clip_norm.has_value()) clip_.max_norm = *parts.clip_norm;
  }

  absl::Status Join(const Meeting& meeting) override {
    if (meeting.collective->size() == 1) return absl::OkStatus();
    return AgreeOnReduction({.able = false}, meeting.collective).status();
  }

  absl::StatusOr<Result> Train(const Sequences& batch, const Step& step, Collective* collective) override {
    Result result;
    const absl::Time start = absl::Now();
    const std::span<float> gradients = parts_.model->gradients();
    std::ranges::fill(gradients, 0.0f);
    double loss = 0;
    RETURN_IF_ERROR(ForEachMicroBatch(batch, [&](const Sequences& part, uint64_t first) {
      loss += parts_.model->ForwardBackward(part, {.step = step.step, .first_sequence = step.first_sequence + first});
    }));
    const absl::Time computed = absl::Now();
    result.forward_seconds = absl::ToDoubleSeconds(computed - start);

    std::array<double, 2> sums = {loss, static_cast<double>(batch.targets.size())};
    RETURN_IF_ERROR(Annotate(collective->AllReduceSum(gradients), "reducing the gradients"));
    RETURN_IF_ERROR(Annotate(collective->AllReduceSum(sums), "reducing the loss"));
    result.loss_sum = sums[0];
    result.targets = static_cast<uint64_t>(sums[1]);
    const absl::Time reduced = absl::Now();
    result.reduce_seconds = absl::ToDoubleSeconds(reduced - computed);
    if (result.targets == 0) return result;

    const double scale = 1 / sums[1];
    const GradientClip clip = GradientNormCpu(gradients, scale, clip_);
    result.gradient_norm = clip.norm;
    if (!std::isfinite(result.loss_sum) || !std::isfinite(clip.norm)) {
      return DivergedError(step.step, result.loss_sum * scale, clip.norm);
    }
    parts_.optimizer->Step(parts_.model->weights(), gradients,
                           {.gradient_scale = scale * clip.scale, .learning_rate_factor = step.learning_rate_factor});
    result.update_seconds = absl::ToDoubleSeconds(absl::Now() - reduced);
    return result;
  }

  void SetLossScale(float) override {}

  absl::StatusOr<double> Loss(const Sequences& batch) override {
    double loss = 0;
    RETURN_IF_ERROR(
        ForEachMicroBatch(batch, [&](const Sequences& part, uint64_t) { loss += parts_.model->Loss(part); }));
    return loss;
  }

  double PeakFlops() const override { return 0; }

  absl::Status CopyToModel() override { return absl::OkStatus(); }

 private:
  // Calls body(part, number of its first sequence) for each micro batch in turn. Cancelled: not for all.
  template <typename Body>
  absl::Status ForEachMicroBatch(const Sequences& batch, const Body& body) const {
    const uint64_t count = static_cast<uint64_t>(batch.count());
    const uint64_t length = static_cast<uint64_t>(batch.length);
    for (uint64_t first = 0; first < count; first += parts_.micro_batch_size) {
      if (parts_.stop && parts_.stop()) return absl::CancelledError("training was stopped");
      const uint64_t n = std::min(parts_.micro_batch_size, count - first);
      body(Sequences{.tokens = batch.tokens.subspan(first * length, n * length),
                     .targets = batch.targets.subspan(first * length, n * length),
                     .length = batch.length},
           first);
    }
    return absl::OkStatus();
  }

  const LanguageTrainerParts parts_;
  ClipOptions clip_;
};

}  // namespace

absl::Status DivergedError(uint64_t step, double loss, double gradient_norm) {
  return absl::InvalidArgumentError(absl::StrCat("step ", step, ": the loss is ", loss, " and the gradients' norm ",
                                                 gradient_norm, ": training has diverged; lower the learning rate"));
}

std::unique_ptr<LanguageTrainer> MakeCpuLanguageTrainer(const LanguageTrainerParts& parts) {
  return std::make_unique<CpuLanguageTrainer>(parts);
}

}  // namespace sparrow
