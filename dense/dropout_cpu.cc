#include "base/parallel.h"
#include "dense/dropout.h"

namespace sparrow {

void DropoutCpu(const Dropout& dropout, uint64_t first, std::span<float> values) {
  if (!dropout.enabled()) return;
  ParallelFor(static_cast<int64_t>(values.size()), 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) values[i] *= dropout.Factor(first + static_cast<uint64_t>(i));
  });
}

}  // namespace sparrow
