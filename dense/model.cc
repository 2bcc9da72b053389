#include "dense/model.h"

#include <cmath>

#include "absl/strings/match.h"
#include "base/hash.h"
#include "base/random.h"
#include "dense/dcnv2.h"
#include "dense/dlrm.h"
#include "dense/parameters.h"

namespace sparrow {
namespace {

// UNIFORM_FAN_IN: element i of a layer's weight or bias becomes float(bound * (2 RandomUniform(parameter seed, i) - 1))
// with bound 1/sqrt(in), the parameter's seed as in ParameterLayout::Initialize. Fixed for ever.
void InitializeUniformFanIn(uint64_t seed, Model* model) {
  double bound = 0;
  for (const Parameter& parameter : model->parameters()) {
    const bool weight = absl::EndsWith(parameter.name, ".weight");
    if (!weight && !absl::EndsWith(parameter.name, ".bias")) continue;
    if (weight) bound = 1 / std::sqrt(static_cast<double>(parameter.shape.at(1)));  // Its bias comes next.
    const uint64_t parameter_seed = RandomBits(seed, HashBytes(parameter.name));
    const std::span<float> elements = ElementsOf(parameter, model->weights());
    for (size_t i = 0; i < elements.size(); ++i) {
      elements[i] = static_cast<float>(bound * (2 * RandomUniform(parameter_seed, i) - 1));
    }
  }
}

absl::StatusOr<std::unique_ptr<Model>> MakeKind(const v1::ModelConfig& config, const ModelShape& shape, uint64_t seed) {
  switch (config.kind_case()) {
    case v1::ModelConfig::kDlrm:
      return MakeDlrm(config.dlrm(), shape, seed);
    case v1::ModelConfig::kDcnv2:
      return MakeDcnv2(config.dcnv2(), shape, seed);
    case v1::ModelConfig::kGpt2:
      return absl::InvalidArgumentError("model.gpt2 is no model of clicks: it takes tokens (dense/language_model.h)");
    case v1::ModelConfig::KIND_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("model has no kind; set model { dlrm { ... } } or model { dcnv2 { ... } }");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> MakeModel(const v1::ModelConfig& config, const ModelShape& shape,
                                                 uint64_t seed) {
  absl::StatusOr<std::unique_ptr<Model>> model = MakeKind(config, shape, seed);
  if (model.ok() && config.layer_initializer() == v1::ModelConfig::UNIFORM_FAN_IN) {
    InitializeUniformFanIn(seed, model->get());
  }
  return model;
}

}  // namespace sparrow
