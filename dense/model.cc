#include "dense/model.h"

#include "dense/dcnv2.h"
#include "dense/dlrm.h"

namespace sparrow {

absl::StatusOr<std::unique_ptr<Model>> MakeModel(const v1::ModelConfig& config, const ModelShape& shape,
                                                 uint64_t seed) {
  switch (config.kind_case()) {
    case v1::ModelConfig::kDlrm:
      return MakeDlrm(config.dlrm(), shape, seed);
    case v1::ModelConfig::kDcnv2:
      return MakeDcnv2(config.dcnv2(), shape, seed);
    case v1::ModelConfig::KIND_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("model has no kind; set model { dlrm { ... } } or model { dcnv2 { ... } }");
}

}  // namespace sparrow
