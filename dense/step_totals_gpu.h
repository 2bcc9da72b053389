#ifndef SPARROW_DENSE_STEP_TOTALS_GPU_H_
#define SPARROW_DENSE_STEP_TOTALS_GPU_H_

// The CUDA half of dense/step_totals.h. Needs CUDA and base/cuda only.

#include <cstdint>

#include "base/cuda/stream.h"
#include "dense/step_totals.h"

namespace sparrow {

// As StepTotalsCpu; all pointers are GPU memory. Queued on `stream`; a graph can record it.
void StepTotalsGpu(const double* loss_sum /*[1]*/, const uint32_t* samples /*[1]*/, const uint64_t* not_finite /*[1]*/,
                   float* totals /*[kStepTotals]*/, const Stream& stream);

}  // namespace sparrow

#endif  // SPARROW_DENSE_STEP_TOTALS_GPU_H_
