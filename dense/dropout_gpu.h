#ifndef SPARROW_DENSE_DROPOUT_GPU_H_
#define SPARROW_DENSE_DROPOUT_GPU_H_

// dense/dropout.h for kernels: the same mask as on the CPU. What changes from step to step lies in GPU memory, so that
// a step can be replayed as a CUDA graph. Needs base/cuda only.

#include <cstdint>

#include "base/cuda/host_device.h"
#include "base/random.h"
#include "dense/dropout.h"

namespace sparrow {

// Of a batch, or of a part of one.
struct DropoutStep {
  uint64_t seed = 0;            // Of the step's streams: that of a place is RandomBits(seed, place).
  uint64_t first_sequence = 0;  // Elements are numbered over the sequences of all workers.
};

// Dropout of the elements of a matrix at one place in a model. Element (i, j) is number first_sequence *
// sequence_elements + i * cols + j of the place's stream.
struct DropoutGpu {
  const DropoutStep* step = nullptr;  // [1] in GPU memory. nullptr: no dropout.
  uint64_t place = 0;
  uint64_t sequence_elements = 0;  // Of one sequence: its length times cols.
  uint32_t threshold = 0;          // As in Dropout.
  float scale = 1;

  // REQUIRES: 0 <= share < 1.
  static DropoutGpu Of(double share, const DropoutStep* step, uint64_t place, uint64_t sequence_elements) {
    const Dropout dropout = Dropout::Of(share, /*stream=*/0);
    return {step, place, sequence_elements, dropout.threshold, dropout.scale};
  }
  SPARROW_HOST_DEVICE bool enabled() const { return step != nullptr && threshold > 0; }
  // The mask, whose element 0 is element (0, 0) of the matrix. Reads *step. REQUIRES: enabled().
  SPARROW_HOST_DEVICE Dropout Mask() const {
    return {.stream = RandomBits(step->seed, place) + step->first_sequence * sequence_elements,
            .threshold = threshold,
            .scale = scale};
  }
};

}  // namespace sparrow

#endif  // SPARROW_DENSE_DROPOUT_GPU_H_
