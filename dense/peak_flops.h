#ifndef SPARROW_DENSE_PEAK_FLOPS_H_
#define SPARROW_DENSE_PEAK_FLOPS_H_

#include <string_view>

#include "dense/device_matrix.h"

namespace sparrow {

// Operations a second of a GPU's products at its peak, without sparsity, as its maker states them: a multiplication and
// an addition are two. `gpu` begins with its name, as GpuName() does. 0: not known.
double PeakFlops(std::string_view gpu, Precision precision);

}  // namespace sparrow

#endif  // SPARROW_DENSE_PEAK_FLOPS_H_
