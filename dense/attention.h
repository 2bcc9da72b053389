#ifndef SPARROW_DENSE_ATTENTION_H_
#define SPARROW_DENSE_ATTENTION_H_

// Causal multi-head attention (Vaswani et al., 2017), exact and in memory linear in the length of a sequence (Dao et
// al., "FlashAttention", 2022): of the weights nothing is kept but the logarithm of each row's sum of exponentials,
// from which backward computes them again.

#include <cstdint>
#include <span>

#include "dense/attention_dropout.h"
#include "dense/dropout.h"
#include "dense/matrix.h"

namespace sparrow {

struct AttentionShape {
  int64_t sequences = 0;
  int64_t length = 0;  // Of each sequence.
  int64_t heads = 0;
  int64_t head_width = 0;

  int64_t rows() const { return sequences * length; }
  int64_t width() const { return heads * head_width; }
  int64_t weight_rows() const { return sequences * heads * length; }
};

// Row t of a sequence attends to its rows 0 to t: y = dropout(softmax(q k^T / sqrt(head_width))) v, head by head. A row
// of `qkv` is queries, keys and values side by side, each with all heads. Head h of sequence s is number
// (first_sequence + s) * heads + h to its dropout.
void AttentionForwardCpu(const AttentionShape& shape, ConstMatrix qkv /*[rows, 3 width]*/, const Dropout& dropout,
                         uint64_t first_sequence, Matrix y /*[rows, width]*/,
                         std::span<float> log_sums /*[sequences, heads, length]*/);

void AttentionBackwardCpu(const AttentionShape& shape, ConstMatrix qkv /*[rows, 3 width]*/,
                          ConstMatrix y /*[rows, width]*/,
                          std::span<const float> log_sums /*[sequences, heads, length]*/, const Dropout& dropout,
                          uint64_t first_sequence, ConstMatrix y_gradients /*[rows, width]*/,
                          Matrix qkv_gradients /*[rows, 3 width], overwritten*/);

}  // namespace sparrow

#endif  // SPARROW_DENSE_ATTENTION_H_
