#ifndef SPARROW_DENSE_DLRM_H_
#define SPARROW_DENSE_DLRM_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "dense/interaction.h"
#include "dense/model.h"
#include "sparrow/v1/job.pb.h"

namespace sparrow {

// DLRM (Naumov et al., 2019):
//
//   dense -> bottom MLP -+-> dot interaction -> top MLP -> logit
//   pooled embeddings ---+
//
// Without dense inputs there is no bottom MLP, and the embeddings interact alone. InvalidArgument as MakeModel; all
// features' dimensions and the bottom's last size must be equal.
absl::StatusOr<std::unique_ptr<Model>> MakeDlrm(const v1::Dlrm& config, const ModelShape& shape, uint64_t seed);

// The shape of its interaction. InvalidArgument where MakeDlrm would say so.
absl::StatusOr<InteractionShape> ShapeOfInteraction(const v1::Dlrm& config, const ModelShape& shape);

}  // namespace sparrow

#endif  // SPARROW_DENSE_DLRM_H_
