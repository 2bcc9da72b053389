#ifndef SPARROW_DENSE_DROPOUT_H_
#define SPARROW_DENSE_DROPOUT_H_

// Dropout (Srivastava et al., 2014) whose mask is a pure function of (stream, element): nothing is kept for backward,
// which asks again, both halves drop the same elements, and so do one worker with a whole batch and several with parts
// of it.

#include <cstdint>
#include <span>

#include "base/cuda/host_device.h"
#include "base/random.h"

namespace sparrow {

struct Dropout {
  uint64_t stream = 0;     // Of the step and the place in the model.
  uint32_t threshold = 0;  // Of 2^32: how many of an element's random numbers drop it. 0: no dropout.
  float scale = 1;         // Of elements that stay: 1 / (1 - share).

  // REQUIRES: 0 <= share < 1.
  static Dropout Of(double share, uint64_t stream) {
    return {.stream = stream,
            .threshold = static_cast<uint32_t>(share * 0x1p32),
            .scale = static_cast<float>(1 / (1 - share))};
  }
  SPARROW_HOST_DEVICE bool enabled() const { return threshold > 0; }
  // What element i is multiplied by.
  SPARROW_HOST_DEVICE float Factor(uint64_t i) const {
    return static_cast<uint32_t>(Mix64(stream + i) >> 32) < threshold ? 0.0f : scale;
  }
};

// values[i] *= factor of element first + i. Of values and of their gradients alike.
void DropoutCpu(const Dropout& dropout, uint64_t first, std::span<float> values);

}  // namespace sparrow

#endif  // SPARROW_DENSE_DROPOUT_H_
