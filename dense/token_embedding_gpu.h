#ifndef SPARROW_DENSE_TOKEN_EMBEDDING_GPU_H_
#define SPARROW_DENSE_TOKEN_EMBEDDING_GPU_H_

// The CUDA half of dense/token_embedding.h, with the dropout behind it. Needs CUDA and base/cuda only.
//
// All pointers are GPU memory. Vectors and x are of the precision's type, gradients of vectors float32. 0 tokens are
// legal. Queued on `stream`, without allocation or synchronisation, so a graph can record it. Two runs are bit-equal.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "base/cuda/device_buffer.h"
#include "base/cuda/stream.h"
#include "dense/device_matrix.h"
#include "dense/dropout_gpu.h"

namespace sparrow {

// Row i of x: dropout's factor times the vector of token i plus that of position i % length. REQUIRES: tokens <
// token_vectors.rows, length <= position_vectors.rows.
void TokenEmbeddingForwardGpu(Precision precision, const uint16_t* tokens /*[n]*/, int64_t length,
                              const DeviceMatrix& token_vectors /*[vocabulary, width]*/,
                              const DeviceMatrix& position_vectors /*[context, width]*/, const DropoutGpu& dropout,
                              const DeviceMatrix& x /*[n, width]*/, const Stream& stream);

// Sums the gradients of each token and each position. Not thread-safe; its calls are queued one behind the other.
class TokenEmbeddingBackwardGpu {
 public:
  // Takes GPU memory for batches of up to tokens_max tokens: 8 * width bytes for each 32 of them, and about 20 for
  // each; waits for the stream. nullopt: the GPU has not that much free. REQUIRES: 0 < tokens_max < 2^31.
  static std::optional<TokenEmbeddingBackwardGpu> Make(int64_t tokens_max, int64_t width, const Stream& stream);

  // Sorts the positions of a batch by token: needs no gradient, so it can run beside the forward. REQUIRES: n <=
  // tokens_max.
  void Group(const uint16_t* tokens /*[n]*/, int64_t n, const Stream& stream);

  // Adds to the gradients of both, in an order that depends on the tokens and the shape alone. REQUIRES: Group of the
  // same tokens has run, or is queued before; x_gradients.rows is a multiple of length.
  void Run(Precision precision, int64_t length, const DropoutGpu& dropout,
           const DeviceMatrix& x_gradients /*[n, width]*/,
           const DeviceMatrix& token_gradients /*[vocabulary, width], float32*/,
           const DeviceMatrix& position_gradients /*[context, width], float32*/, const Stream& stream);

 private:
  TokenEmbeddingBackwardGpu(int64_t tokens_max, int64_t width, DeviceBuffer<char> memory)
      : tokens_max_(tokens_max), width_(width), memory_(std::move(memory)) {}

  int64_t tokens_max_;
  int64_t width_;
  DeviceBuffer<char> memory_;
};

}  // namespace sparrow

#endif  // SPARROW_DENSE_TOKEN_EMBEDDING_GPU_H_
