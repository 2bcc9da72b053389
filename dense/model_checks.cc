#include "dense/model_checks.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace sparrow {
namespace {

constexpr size_t kLayersMax = 100;
constexpr uint32_t kLayerOutputsMax = 1 << 20;
constexpr uint64_t kParametersMax = uint64_t{1} << 32;

absl::Status CheckLayers(absl::string_view field, const std::vector<uint32_t>& layers) {
  if (layers.size() > kLayersMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " has ", layers.size(), " layers, expected at most ", kLayersMax));
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i] == 0 || layers[i] > kLayerOutputsMax) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, ": layer ", i, " has size ", layers[i], ", expected 1 to ", kLayerOutputsMax));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckBottom(absl::string_view field, const std::vector<uint32_t>& layers, const ModelShape& shape) {
  if (!layers.empty() && shape.dense_columns == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " has ", layers.size(), " layers, but the data has no dense columns; leave it empty"));
  }
  return CheckLayers(field, layers);
}

absl::Status CheckTop(absl::string_view field, const std::vector<uint32_t>& layers) {
  RETURN_IF_ERROR(CheckLayers(field, layers));
  if (layers.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(field, " is empty, expected layer sizes that end in 1"));
  }
  if (layers.back() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " ends in ", layers.back(), ", expected 1: the model has one logit"));
  }
  return absl::OkStatus();
}

absl::Status CheckParameterCount(absl::string_view field, const ParameterLayout& layout) {
  if (layout.size() <= kParametersMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " has ", layout.size(), " parameters, the limit is ",
                                                 kParametersMax, "; make its layers smaller"));
}

}  // namespace sparrow
