#include "dense/model_gpu.h"

#include <utility>

#include "base/status_macros.h"
#include "dense/dcnv2_gpu.h"
#include "dense/dlrm_gpu.h"

namespace sparrow {

Precision PrecisionOf(v1::TrainConfig::Precision precision) {
  switch (precision) {
    case v1::TrainConfig::FULL:
      return Precision::kFloat32;
    case v1::TrainConfig::TF32:
      return Precision::kTf32;
    case v1::TrainConfig::BFLOAT16:
      return Precision::kBfloat16;
    case v1::TrainConfig::FLOAT16:
      return Precision::kFloat16;
  }
  return Precision::kBfloat16;
}

absl::StatusOr<std::unique_ptr<ModelGpu>> MakeModelGpu(const v1::ModelConfig& config, const ModelShape& shape,
                                                       const Model& model, const ModelGpu::Options& options,
                                                       const Stream& stream) {
  ASSIGN_OR_RETURN(DeviceParameters made, DeviceParameters::Make(DeviceLayout(model.parameters()), options.precision, stream));
  auto parameters = std::make_unique<DeviceParameters>(std::move(made));
  parameters->Set(model.weights(), stream);
  return config.kind_case() == v1::ModelConfig::kDcnv2
             ? MakeDcnv2Gpu(config.dcnv2(), shape, std::move(parameters), options, stream)
             : MakeDlrmGpu(config.dlrm(), shape, std::move(parameters), options, stream);
}

}  // namespace sparrow
