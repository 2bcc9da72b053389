#ifndef SPARROW_DENSE_GPU_MEETING_H_
#define SPARROW_DENSE_GPU_MEETING_H_

#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "dense/collective.h"
#include "dense/device_collective.h"
#include "dense/gradient_buckets.h"

namespace sparrow {

// Every worker of a job that computes on a GPU calls it once, with the buckets in which it would sum gradients; the
// others call AgreeOnReduction (dense/reduction_terms.h). Where each has a GPU of its own, and there is NCCL, their
// GPUs have met then; else null, on all of them, and a line in the log says why. FailedPrecondition, on all: they would
// sum different things. Cancelled: meeting.cancelled said so. Errors of the group. meeting.board outlives what is
// returned. REQUIRES: a bucket.
absl::StatusOr<std::unique_ptr<DeviceCollective>> MeetGpus(std::span<const GradientBucket> buckets,
                                                           const Meeting& meeting);

}  // namespace sparrow

#endif  // SPARROW_DENSE_GPU_MEETING_H_
