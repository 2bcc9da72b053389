#ifndef SPARROW_DENSE_STEP_GATE_H_
#define SPARROW_DENSE_STEP_GATE_H_

// Whether a step may change anything, decided where its loss and its gradients are, so that a GPU goes on from backward
// to the updates without asking the host.

#include <cstdint>

namespace sparrow {

// *gradient_scale, which gradients are multiplied by, becomes NaN if the loss is not finite or something else is not:
// rows are then left as they are, one by one (embedding/sparse_update.h), and so are dense parameters
// (DenseOptimizerGpu::StepArguments::skip_unless_finite). Otherwise it stays.
void GateStepCpu(const double* loss_sum /*[1]*/, const uint64_t* not_finite /*[1], or nullptr: 0*/,
                 double* gradient_scale /*[1]*/);

}  // namespace sparrow

#endif  // SPARROW_DENSE_STEP_GATE_H_
