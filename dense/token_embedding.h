#ifndef SPARROW_DENSE_TOKEN_EMBEDDING_H_
#define SPARROW_DENSE_TOKEN_EMBEDDING_H_

#include <cstdint>
#include <span>

#include "dense/matrix.h"

namespace sparrow {

// Row s * length + t of x: the vector of its token plus that of position t. REQUIRES: tokens < token_vectors.rows,
// length <= position_vectors.rows.
void TokenEmbeddingForwardCpu(std::span<const uint16_t> tokens /*[sequences, length]*/, int64_t length,
                              ConstMatrix token_vectors /*[vocabulary, width]*/,
                              ConstMatrix position_vectors /*[context, width]*/,
                              Matrix x /*[sequences * length, width]*/);

// Adds to the gradients of both, token by token in order.
void TokenEmbeddingBackwardCpu(std::span<const uint16_t> tokens /*[sequences, length]*/, int64_t length,
                               ConstMatrix x_gradients /*[sequences * length, width]*/,
                               Matrix token_gradients /*[vocabulary, width]*/,
                               Matrix position_gradients /*[context, width]*/);

}  // namespace sparrow

#endif  // SPARROW_DENSE_TOKEN_EMBEDDING_H_
