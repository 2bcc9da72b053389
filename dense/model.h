#ifndef SPARROW_DENSE_MODEL_H_
#define SPARROW_DENSE_MODEL_H_

// A recommendation model's dense part: dense inputs and pooled embeddings in, one logit a sample out, with its own
// backward. It knows no table. Its parameters are a vector (dense/dense_parameters.h): bottom.I.weight [out, in],
// bottom.I.bias [out], cross.I.v [rank, in], cross.I.w [in, rank], cross.I.b [in], top.I.weight, top.I.bias.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "dense/dense_parameters.h"
#include "sparrow/v1/job.pb.h"

namespace sparrow {

struct ModelShape {
  uint32_t dense_columns = 0;
  std::vector<uint32_t> feature_dims;  // In the job's order of features.
};

// Not thread-safe: one thread trains a model; the operations inside use all cores.
class Model : public DenseParameters {
 public:
  // Logits of a batch. Activations are kept for Backward; `dense` and `sparse` are not copied, so they must stay as
  // they are until Backward has returned (if it is called). rows = 0 is legal. sparse: the pooled vectors of all
  // features side by side, in the order of the shape's feature_dims; S is their sum.
  virtual void Forward(std::span<const float> dense /*[rows, dense_columns]*/,
                       std::span<const float> sparse /*[rows, S]*/, std::span<float> logits /*[rows]*/) = 0;

  // Backward of the last Forward: overwrites gradients() and sparse_gradients with the derivatives of sum_i
  // logit_gradients[i] * logit[i]. REQUIRES: as many rows as that Forward; sparse_gradients does not overlap its
  // inputs.
  virtual void Backward(std::span<const float> logit_gradients /*[rows]*/,
                        std::span<float> sparse_gradients /*[rows, S]*/) = 0;
};

// Builds the model with initial weights that are a pure function of (seed, parameter name, element): weights normal
// with variance 2/(in+out), biases normal with variance 1/out, as facebookresearch/dlrm has them, or as
// config.layer_initializer says; the cross layers' v and w with variance 2/(in+rank), their b 0. InvalidArgument names
// the field, what was expected and what was found.
absl::StatusOr<std::unique_ptr<Model>> MakeModel(const v1::ModelConfig& config, const ModelShape& shape, uint64_t seed);

}  // namespace sparrow

#endif  // SPARROW_DENSE_MODEL_H_
