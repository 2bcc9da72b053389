// A core takes one head of one sequence. Blocks of kBlock queries go over the keys before and in the block, so that the
// weights at hand are [kBlock, length] at most.

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "base/parallel.h"
#include "dense/attention.h"
#include "dense/product.h"

namespace sparrow {
namespace {

constexpr int64_t kBlock = 64;

// One head of one sequence: views into the arrays of all.
struct Head {
  ConstMatrix q, k, v;  // [length, head_width]
  HeadDropout dropout;
};

Head HeadOf(const AttentionShape& shape, ConstMatrix qkv, const Dropout& dropout, uint64_t first_sequence,
            int64_t sequence, int64_t head) {
  const ConstMatrix rows = qkv.Rows(sequence * shape.length, (sequence + 1) * shape.length);
  const auto part = [&](int64_t i) {
    const int64_t begin = i * shape.width() + head * shape.head_width;
    return rows.Columns(begin, begin + shape.head_width);
  };
  const uint64_t number = (first_sequence + static_cast<uint64_t>(sequence)) * static_cast<uint64_t>(shape.heads) +
                          static_cast<uint64_t>(head);
  return {.q = part(0), .k = part(1), .v = part(2), .dropout = HeadDropout::Of(dropout, number)};
}

// Calls body(sequence, head) for each on all cores. Products inside have one thread, also where there is one head
// alone: with more, some of oneDNN's kernels sum in another order.
template <typename Body>
void ForEachHead(const AttentionShape& shape, const Body& body) {
  ParallelFor(shape.sequences * shape.heads, 1, [&](int64_t begin, int64_t end) {
    const ScopedThreads one(1);
    for (int64_t i = begin; i < end; ++i) body(i / shape.heads, i % shape.heads);
  });
}

// What the weights of a query with keys 0 to `query` are multiplied by. Words of Philox are the keys' of eight at a
// time, for compilers to compute side by side.
std::span<const float> FactorsOf(const HeadDropout& dropout, int64_t query, std::vector<float>* room) {
  const size_t keys = static_cast<size_t>(query) + 1;
  room->assign((keys + 15) / 16 * 16, 1.0f);
  if (dropout.enabled()) {
    const uint32_t q = static_cast<uint32_t>(query);
    for (uint32_t first = 0; first < room->size(); first += 16) {
      float* const factors = room->data() + first;
      for (uint32_t k = 0; k < 8; k += 2) {
        const RandomWords bits = dropout.BitsOf(q & ~8u, first + k);
        for (uint32_t j = 0; j < 2; ++j) {
          factors[k + j] = dropout.Keeps(bits.words[j], q & 8, false) ? dropout.scale : 0.0f;
          factors[k + j + 8] = dropout.Keeps(bits.words[j], q & 8, true) ? dropout.scale : 0.0f;
        }
      }
    }
  }
  return std::span(*room).first(keys);
}

// The scores of queries [begin, end) by keys [0, end), scaled; those of keys behind a query are to be passed over.
Matrix Scores(const Head& head, int64_t begin, int64_t end, std::vector<float>* room) {
  room->resize(static_cast<size_t>((end - begin) * end));
  const Matrix scores(room->data(), end - begin, end);
  ProductTransposedCpu(head.q.Rows(begin, end), head.k.Rows(0, end), Write::kOverwrite, scores);
  const float scale = 1 / std::sqrt(static_cast<float>(head.q.cols));
  for (float& score : *room) score *= scale;
  return scores;
}

}  // namespace

void AttentionForwardCpu(const AttentionShape& shape, ConstMatrix qkv, const Dropout& dropout, uint64_t first_sequence,
                         Matrix y, std::span<float> log_sums) {
  ForEachHead(shape, [&](int64_t sequence, int64_t h) {
    const Head head = HeadOf(shape, qkv, dropout, first_sequence, sequence, h);
    const Matrix out = y.Rows(sequence * shape.length, (sequence + 1) * shape.length)
                           .Columns(h * shape.head_width, (h + 1) * shape.head_width);
    float* const sums = log_sums.data() + (sequence * shape.heads + h) * shape.length;
    std::vector<float> room, factor_room;
    for (int64_t begin = 0; begin < shape.length; begin += kBlock) {
      const int64_t end = std::min(shape.length, begin + kBlock);
      const Matrix weights = Scores(head, begin, end, &room);
      for (int64_t t = begin; t < end; ++t) {
        float* const row = weights.row(t - begin);
        const float most = *std::max_element(row, row + t + 1);
        double sum = 0;
        for (int64_t u = 0; u <= t; ++u) sum += row[u] = std::exp(row[u] - most);
        sums[t] = most + static_cast<float>(std::log(sum));
        const float inverse = static_cast<float>(1 / sum);
        for (int64_t u = 0; u <= t; ++u) row[u] *= inverse;
        if (head.dropout.enabled()) {
          const std::span<const float> factors = FactorsOf(head.dropout, t, &factor_room);
          for (int64_t u = 0; u <= t; ++u) row[u] *= factors[u];
        }
        std::fill(row + t + 1, row + end, 0.0f);
      }
      ProductCpu(weights, head.v.Rows(0, end), Write::kOverwrite, out.Rows(begin, end));
    }
  });
}

void AttentionBackwardCpu(const AttentionShape& shape, ConstMatrix qkv, ConstMatrix y, std::span<const float> log_sums,
                          const Dropout& dropout, uint64_t first_sequence, ConstMatrix y_gradients,
                          Matrix qkv_gradients) {
  const float scale = 1 / std::sqrt(static_cast<float>(shape.head_width));
  ForEachHead(shape, [&](int64_t sequence, int64_t h) {
    const Head head = HeadOf(shape, qkv, dropout, first_sequence, sequence, h);
    const auto of_head = [&](const auto& matrix, int64_t part) {
      const int64_t begin = part * shape.width() + h * shape.head_width;
      return matrix.Rows(sequence * shape.length, (sequence + 1) * shape.length)
          .Columns(begin, begin + shape.head_width);
    };
    const ConstMatrix out = of_head(y, 0);
    const ConstMatrix d_out = of_head(y_gradients, 0);
    const Matrix dq = of_head(qkv_gradients, 0);
    const Matrix dk = of_head(qkv_gradients, 1);
    const Matrix dv = of_head(qkv_gradients, 2);
    for (int64_t t = 0; t < shape.length; ++t) {
      std::fill_n(dk.row(t), dk.cols, 0.0f);
      std::fill_n(dv.row(t), dv.cols, 0.0f);
    }
    const float* const sums = log_sums.data() + (sequence * shape.heads + h) * shape.length;
    std::vector<float> room, gradient_room, factor_room;
    for (int64_t begin = 0; begin < shape.length; begin += kBlock) {
      const int64_t end = std::min(shape.length, begin + kBlock);
      const Matrix weights = Scores(head, begin, end, &room);
      gradient_room.resize(room.size());
      const Matrix gradients(gradient_room.data(), end - begin, end);
      ProductTransposedCpu(d_out.Rows(begin, end), head.v.Rows(0, end), Write::kOverwrite, gradients);
      for (int64_t t = begin; t < end; ++t) {
        float* const row = weights.row(t - begin);
        float* const d_row = gradients.row(t - begin);
        // The derivative of a softmax: weight * (gradient - sum of weight * gradient); that sum is y . dy.
        double sum = 0;
        for (int64_t j = 0; j < shape.head_width; ++j) sum += out.row(t)[j] * d_out.row(t)[j];
        const float mean = static_cast<float>(sum);
        const std::span<const float> factors = FactorsOf(head.dropout, t, &factor_room);
        for (int64_t u = 0; u <= t; ++u) {
          const float weight = std::exp(row[u] - sums[t]);
          row[u] = weight * factors[u];
          d_row[u] = weight * (d_row[u] * factors[u] - mean) * scale;
        }
        std::fill(row + t + 1, row + end, 0.0f);
        std::fill(d_row + t + 1, d_row + end, 0.0f);
      }
      ProductCpu(gradients, head.k.Rows(0, end), Write::kOverwrite, dq.Rows(begin, end));
      TransposedProductCpu(gradients, head.q.Rows(begin, end), Write::kAdd, dk.Rows(0, end));
      TransposedProductCpu(weights, d_out.Rows(begin, end), Write::kAdd, dv.Rows(0, end));
    }
  });
}

}  // namespace sparrow
