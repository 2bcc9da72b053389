#ifndef SPARROW_DENSE_STEP_GATE_GPU_H_
#define SPARROW_DENSE_STEP_GATE_GPU_H_

// The CUDA half of dense/step_gate.h. Needs CUDA and base/cuda only.

#include <cstdint>

#include "base/cuda/stream.h"
#include "dense/step_gate.h"

namespace sparrow {

// As GateStepCpu; all pointers are GPU memory. Queued on `stream`; a graph can record it.
void GateStepGpu(const double* loss_sum /*[1]*/, const uint64_t* not_finite /*[1], or nullptr: 0*/,
                 double* gradient_scale /*[1]*/, const Stream& stream);

}  // namespace sparrow

#endif  // SPARROW_DENSE_STEP_GATE_GPU_H_
