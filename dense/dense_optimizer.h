#ifndef SPARROW_DENSE_DENSE_OPTIMIZER_H_
#define SPARROW_DENSE_DENSE_OPTIMIZER_H_

// Optimizers of a flat parameter vector: SGD, momentum, Adagrad, Adam, AdamW, LAMB. Formulas and sources:
// proto/sparrow/v1/table.proto.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "dense/dense_parameters.h"
#include "dense/dense_update.h"
#include "sparrow/v1/table.pb.h"

namespace sparrow {

// Not thread-safe; one pass over memory a step, on all cores.
class DenseOptimizer {
 public:
  virtual ~DenseOptimizer() = default;

  using StepOptions = DenseStepOptions;
  // REQUIRES: both spans have the size the optimizer was made with.
  void Step(std::span<float> weights, std::span<const float> gradients, const StepOptions& options) {
    Begin(weights, gradients, options);
    End(weights, gradients, options);
  }

  // A step's two halves, with the same arguments, for optimizers that hold slices of one vector: between the halves
  // what Begin returns becomes its sum over all of them, element by element. LAMB: of each tensor the squares of
  // weights and of directions; of other kinds there is nothing to sum.
  virtual std::span<double> Begin(std::span<float> weights, std::span<const float> gradients,
                                  const StepOptions& options) = 0;
  virtual void End(std::span<float> weights, std::span<const float> gradients, const StepOptions& options) = 0;

  // State for checkpoints, each of the slice's size: {"momentum"}, {"accumulator"}, {"m", "v"}, or none.
  struct State {
    std::string name;
    std::span<float> values;
  };
  virtual std::vector<State> states() = 0;

  // Updates done, from which Adam's bias correction follows; stored with a checkpoint.
  uint64_t updates() const { return updates_; }
  void set_updates(uint64_t updates) { updates_ = updates; }

 protected:
  uint64_t updates_ = 0;
};

// The configuration as plain numbers, which the CUDA half takes. InvalidArgument names the field; a kind that is for
// tables only is refused by name.
absl::StatusOr<DenseRule> DenseRuleOf(const v1::OptimizerConfig& config);

// Of elements [slice.begin, slice.end) of the model's vector. Errors as DenseRuleOf.
absl::StatusOr<std::unique_ptr<DenseOptimizer>> MakeDenseOptimizer(const v1::OptimizerConfig& config,
                                                                   const DenseParameters& model, const Slice& slice);
// The same of the whole vector.
absl::StatusOr<std::unique_ptr<DenseOptimizer>> MakeDenseOptimizer(const v1::OptimizerConfig& config,
                                                                   const DenseParameters& model);

// Of a vector that is one tensor. A weight decay is for elements [0, decayed) alone, and so is LAMB's ratio. Errors as
// DenseRuleOf.
absl::StatusOr<std::unique_ptr<DenseOptimizer>> MakeDenseOptimizer(const v1::OptimizerConfig& config, uint64_t size,
                                                                   uint64_t decayed = UINT64_MAX);

}  // namespace sparrow

#endif  // SPARROW_DENSE_DENSE_OPTIMIZER_H_
