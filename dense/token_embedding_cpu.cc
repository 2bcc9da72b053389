#include "base/parallel.h"
#include "dense/token_embedding.h"

namespace sparrow {

void TokenEmbeddingForwardCpu(std::span<const uint16_t> tokens, int64_t length, ConstMatrix token_vectors,
                              ConstMatrix position_vectors, Matrix x) {
  ParallelFor(x.rows, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float* const token = token_vectors.row(tokens[static_cast<size_t>(i)]);
      const float* const position = position_vectors.row(i % length);
      for (int64_t j = 0; j < x.cols; ++j) x.row(i)[j] = token[j] + position[j];
    }
  });
}

void TokenEmbeddingBackwardCpu(std::span<const uint16_t> tokens, int64_t length, ConstMatrix x_gradients,
                               Matrix token_gradients, Matrix position_gradients) {
  // A core takes some columns of all rows: a token may come anywhere.
  ParallelFor(x_gradients.cols, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = 0; i < x_gradients.rows; ++i) {
      const float* const from = x_gradients.row(i);
      float* const token = token_gradients.row(tokens[static_cast<size_t>(i)]);
      float* const position = position_gradients.row(i % length);
      for (int64_t j = begin; j < end; ++j) {
        token[j] += from[j];
        position[j] += from[j];
      }
    }
  });
}

}  // namespace sparrow
