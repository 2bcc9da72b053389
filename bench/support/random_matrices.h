#ifndef SPARROW_BENCH_SUPPORT_RANDOM_MATRICES_H_
#define SPARROW_BENCH_SUPPORT_RANDOM_MATRICES_H_

// Matrices in GPU memory for benchmarks of the dense kernels.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

#include "base/random.h"
#include "bench/support/gpu_timing.h"
#include "dense/device_matrix.h"

namespace sparrow {

// A matrix that owns its memory.
struct OwnedMatrix {
  DeviceBuffer<char> memory;
  DeviceMatrix view;

  float* floats() const { return static_cast<float*>(view.data); }
};

// Makes matrices of random numbers in (-1.05, 1.05) without the neighbourhood of 0, of which a million repeats.
class RandomMatrices {
 public:
  explicit RandomMatrices(const Stream& stream) : stream_(stream) {}

  // With rows padded as models have them.
  OwnedMatrix Make(Precision precision, int64_t rows, int64_t cols) {
    const int64_t stride = cols == 1 ? 1 : PaddedColumns(cols);
    OwnedMatrix owned{Allocate<char>(static_cast<size_t>(rows * stride) * ElementBytes(precision)), {}};
    Fill(precision, &owned.memory);
    owned.view = {.data = owned.memory.data(), .rows = rows, .cols = cols, .stride = stride};
    return owned;
  }

  void Fill(Precision precision, DeviceBuffer<char>* memory) {
    std::vector<char>& block = blocks_[precision];
    if (block.empty()) block = Block(precision);
    const size_t first = std::min(block.size(), memory->size());
    internal::CopyToDevice(memory->data(), block.data(), first, stream_);
    for (size_t filled = first; filled < memory->size();) {
      const size_t more = std::min(filled, memory->size() - filled);
      internal::CopyOnDevice(memory->data() + filled, memory->data(), more, stream_);
      filled += more;
    }
    stream_.Synchronize();
  }

 private:
  // A 16-bit number is a float cut after its upper bits (bfloat16), or with five bits of exponent (float16).
  static std::vector<char> Block(Precision precision) {
    constexpr size_t kElements = 1 << 20;
    const size_t size = ElementBytes(precision);
    std::vector<char> block(kElements * size);
    for (size_t i = 0; i < kElements; ++i) {
      const double u = 2 * RandomUniform(1, i) - 1;
      const auto value = static_cast<float>(u + (u < 0 ? -0.05 : 0.05));
      uint32_t bits;
      std::memcpy(&bits, &value, sizeof(bits));
      if (size == 4) {
        std::memcpy(&block[i * size], &bits, size);
      } else {
        const uint32_t half = precision == Precision::kBfloat16
                                  ? bits >> 16
                                  : bits >> 31 << 15 | ((bits >> 13 & 0x3ffff) - ((127 - 15) << 10));
        const auto narrow = static_cast<uint16_t>(half);
        std::memcpy(&block[i * size], &narrow, size);
      }
    }
    return block;
  }

  const Stream& stream_;
  std::map<Precision, std::vector<char>> blocks_;
};

}  // namespace sparrow

#endif  // SPARROW_BENCH_SUPPORT_RANDOM_MATRICES_H_
