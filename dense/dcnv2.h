#ifndef SPARROW_DENSE_DCNV2_H_
#define SPARROW_DENSE_DCNV2_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "dense/model.h"
#include "sparrow/v1/job.pb.h"

namespace sparrow {

// DCN V2 (Wang et al., 2021), stacked, as in MLPerf's DLRM-DCNv2:
//
//   dense -> bottom MLP -+-> concatenation x0 -> cross layers -> top MLP -> logit
//   pooled embeddings ---+
//
// Features may have different dimensions. Without bottom layers the dense inputs themselves, if any, join x0.
// InvalidArgument as MakeModel.
absl::StatusOr<std::unique_ptr<Model>> MakeDcnv2(const v1::Dcnv2& config, const ModelShape& shape, uint64_t seed);

}  // namespace sparrow

#endif  // SPARROW_DENSE_DCNV2_H_
