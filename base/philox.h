#ifndef SPARROW_BASE_PHILOX_H_
#define SPARROW_BASE_PHILOX_H_

// Counter-based random bits for kernels: Philox-2x32 of seven rounds (Salmon, Moraes, Dror and Shaw, "Parallel Random
// Numbers: As Easy as 1, 2, 3", 2011), the fewest that pass BigCrush. A round is one product of 32-bit numbers, for
// which GPUs have an instruction, where base/random.h needs products of 64-bit numbers.

#include <cstdint>

#include "base/cuda/host_device.h"

namespace sparrow {

struct RandomWords {
  uint32_t words[2];
};

// The bits of a counter and a key.
SPARROW_HOST_DEVICE inline RandomWords Philox(uint32_t counter0, uint32_t counter1, uint32_t key) {
  constexpr int kRounds = 7;
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t product = uint64_t{0xd256d193u} * counter0;
    counter0 = static_cast<uint32_t>(product >> 32) ^ key ^ counter1;
    counter1 = static_cast<uint32_t>(product);
    key += 0x9e3779b9u;
  }
  return {{counter0, counter1}};
}

}  // namespace sparrow

#endif  // SPARROW_BASE_PHILOX_H_
