#ifndef SPARROW_DENSE_ROW_BLOCKS_H_
#define SPARROW_DENSE_ROW_BLOCKS_H_

// How a model cuts a batch over the cores. A core takes a block of rows through all layers, so that activations stay in
// its cache and there is one barrier a pass instead of one a layer. Only the gradients of weights, which are sums over
// all rows, are computed on the whole batch.

#include <algorithm>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "base/parallel.h"

namespace sparrow {

struct RowBlocks {
  int64_t rows = 0;
  int64_t block_rows = 1;
  int64_t count = 0;

  // As many blocks of equal size for each core as keep a block at 256 rows or fewer: there a product runs at full speed
  // and a layer's activations fit a second-level cache.
  static RowBlocks Of(int64_t rows) {
    constexpr int64_t kRowsMax = 256;
    constexpr int64_t kRowsMin = 32;
    const int64_t threads = ParallelThreads();
    const int64_t blocks = threads * ((rows + threads * kRowsMax - 1) / (threads * kRowsMax));
    const int64_t even = rows == 0 ? 1 : (rows + blocks - 1) / blocks;
    const int64_t block_rows = std::max(kRowsMin, (even + 7) / 8 * 8);
    return {.rows = rows, .block_rows = block_rows, .count = (rows + block_rows - 1) / block_rows};
  }

  // Calls body(block, begin, end) for each block of rows [begin, end), on all cores.
  void ForEach(absl::FunctionRef<void(int64_t block, int64_t begin, int64_t end)> body) const {
    ParallelFor(count, 1, [&](int64_t first, int64_t last) {
      for (int64_t block = first; block < last; ++block) {
        body(block, block * block_rows, std::min(rows, (block + 1) * block_rows));
      }
    });
  }
};

}  // namespace sparrow

#endif  // SPARROW_DENSE_ROW_BLOCKS_H_
