#ifndef SPARROW_DENSE_SPIKE_GUARD_H_
#define SPARROW_DENSE_SPIKE_GUARD_H_

// Which steps of a training stand out, by their losses and their gradients' norms. Every worker of a job hears of the
// same figures and so decides alike. The rule is at LossSpike in proto/sparrow/v1/job.proto.

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "sparrow/v1/job.pb.h"

namespace sparrow {

// InvalidArgument names the field and its value.
absl::Status CheckLossSpike(const v1::LossSpike& config);

class SpikeGuard {
 public:
  struct Figures {
    double loss = 0;
    double norm = 0;

    bool operator==(const Figures&) const = default;
  };
  // What a checkpoint holds of it.
  struct State {
    std::deque<Figures> applied;  // Of the last steps that were, the latest last; window at most.
    uint32_t skips = 0;           // In a row.

    bool operator==(const State&) const = default;
    // On one line, to the bit; nullopt: the text is none of Text().
    std::string Text() const;
    static std::optional<State> Parse(absl::string_view text);
  };

  // REQUIRES: CheckLossSpike has passed.
  explicit SpikeGuard(const v1::LossSpike& config) : config_(config) {}

  const State& state() const { return state_; }
  // Goes on from there; with the latest figures that its window has room for.
  void Resume(State state);

  // Whether the step with these figures may be applied; then they are taken into the window. A figure that is not
  // finite stands out, once the window is full. Of an even number of figures the median is the upper one in the middle.
  bool Accept(const Figures& figures);
  // What Accept has refused last, beside the medians: "the loss is 7.1, more than 1.5 times 2.9, the median of the last
  // 100 steps (train.loss_spike.loss_factor)".
  const std::string& why() const { return why_; }
  // Whether it has refused more steps in a row than it may.
  bool exhausted() const { return state_.skips > config_.skips_max(); }

 private:
  const v1::LossSpike config_;
  State state_;
  std::string why_;
};

}  // namespace sparrow

#endif  // SPARROW_DENSE_SPIKE_GUARD_H_
