#ifndef SPARROW_DENSE_DCNV2_GPU_H_
#define SPARROW_DENSE_DCNV2_GPU_H_

#include <memory>

#include "absl/status/statusor.h"
#include "dense/model_gpu.h"
#include "sparrow/v1/job.pb.h"

namespace sparrow {

// dense/dcnv2.h on a GPU. REQUIRES: MakeDcnv2 accepts the config and shape. ResourceExhausted.
absl::StatusOr<std::unique_ptr<ModelGpu>> MakeDcnv2Gpu(const v1::Dcnv2& config, const ModelShape& shape,
                                                       std::unique_ptr<DeviceParameters> parameters,
                                                       const ModelGpu::Options& options, const Stream& stream);

}  // namespace sparrow

#endif  // SPARROW_DENSE_DCNV2_GPU_H_
