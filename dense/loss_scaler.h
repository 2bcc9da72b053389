#ifndef SPARROW_DENSE_LOSS_SCALER_H_
#define SPARROW_DENSE_LOSS_SCALER_H_

// Dynamic loss scaling for float16: which scale a step has, from which steps before it overflowed. Every worker of a
// job hears of the same overflows and so has the same scale. The rule, with its constants, is at LossScale in
// proto/sparrow/v1/job.proto.

#include <cstdint>

#include "absl/status/status.h"
#include "sparrow/v1/job.pb.h"

namespace sparrow {

// InvalidArgument names the field and its value.
absl::Status CheckLossScale(const v1::LossScale& config);

class LossScaler {
 public:
  // What a checkpoint holds of it.
  struct State {
    uint32_t scale = 0;
    uint32_t good_steps = 0;  // In a row, since the scale changed last or a step was skipped.

    bool operator==(const State&) const = default;
  };

  // REQUIRES: CheckLossScale has passed.
  explicit LossScaler(const v1::LossScale& config);

  const State& state() const { return state_; }
  // Goes on from there; with the nearest scale that this one's bounds allow.
  void Resume(const State& state);

  // After each step that had samples: whether a gradient overflowed, so that the step is to be skipped. False: it did
  // with the smallest scale, and no other can be tried.
  bool Update(bool overflowed);

 private:
  const uint32_t growth_steps_;
  const uint32_t min_;
  const uint32_t max_;
  State state_;
};

}  // namespace sparrow

#endif  // SPARROW_DENSE_LOSS_SCALER_H_
