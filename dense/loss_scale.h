#ifndef SPARROW_DENSE_LOSS_SCALE_H_
#define SPARROW_DENSE_LOSS_SCALE_H_

// What loss scaling (dense/loss_scaler.h) does to gradients: looks for those that have left the range of their type,
// and takes the scale off the others.

#include <cstdint>
#include <span>

#include "dense/matrix.h"

namespace sparrow {

// How many elements are infinite or NaN.
uint64_t CountNotFiniteCpu(ConstMatrix values);

// Divides each value by *scale, a power of two.
void UnscaleCpu(std::span<float> values, const float* scale /*[1]*/);

}  // namespace sparrow

#endif  // SPARROW_DENSE_LOSS_SCALE_H_
