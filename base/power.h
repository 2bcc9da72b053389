#ifndef SPARROW_BASE_POWER_H_
#define SPARROW_BASE_POWER_H_

#include <cstdint>

#include "base/cuda/host_device.h"

namespace sparrow {

// By squaring, which a CPU and a GPU do to the same bits; their pow differ by a last one. The error, at most about
// exponent * 1e-16 of the power, fades as the power itself does where the base is below 1.
SPARROW_HOST_DEVICE inline double PowerOf(double base, uint64_t exponent) {
  double power = 1;
  for (; exponent != 0; exponent >>= 1) {
    if (exponent & 1) power *= base;
    base *= base;
  }
  return power;
}

}  // namespace sparrow

#endif  // SPARROW_BASE_POWER_H_
