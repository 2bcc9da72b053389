#include "base/parallel.h"
#include "dense/gelu.h"

namespace sparrow {

void GeluForwardCpu(ConstMatrix x, Matrix y) {
  ParallelFor(x.rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t j = 0; j < x.cols; ++j) y.row(i)[j] = GeluOf(x.row(i)[j]);
    }
  });
}

void GeluBackwardCpu(ConstMatrix x, Matrix gradients) {
  ParallelFor(x.rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t j = 0; j < x.cols; ++j) gradients.row(i)[j] *= GeluDerivativeOf(x.row(i)[j]);
    }
  });
}

}  // namespace sparrow
