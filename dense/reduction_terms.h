#ifndef SPARROW_DENSE_REDUCTION_TERMS_H_
#define SPARROW_DENSE_REDUCTION_TERMS_H_

// What the workers of a job tell each other before their GPUs sum gradients together: a sum of different things is not
// an error that anybody would see, so it is found here.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "dense/collective.h"

namespace sparrow {

struct ReductionTerms {
  bool able = false;     // Computes on a GPU, in a build that sums between GPUs.
  uint64_t library = 0;  // Version of what sums.
  uint64_t gpu = 0;      // A number that no other GPU has.
  uint64_t floats = 0;   // Summed in a step.
  uint64_t layout = 0;   // Fingerprint of the parts in which they are.
};

struct ReductionPlan {
  bool on_gpus = false;  // The same for all members.
  std::string why_not;   // Which member stands in the way, and why; "" where on_gpus.
};

// Every member calls it, able or not. FailedPrecondition, on all members: they are able, but would sum different
// things; the message names the first member that differs from rank 0, what differs, and both values. Errors of the
// group.
absl::StatusOr<ReductionPlan> AgreeOnReduction(const ReductionTerms& mine, Collective* group);

}  // namespace sparrow

#endif  // SPARROW_DENSE_REDUCTION_TERMS_H_
