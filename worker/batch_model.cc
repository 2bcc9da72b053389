#include "worker/batch_model.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "absl/functional/function_ref.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/parallel.h"
#include "base/room.h"
#include "dense/bce_loss.h"
#include "embedding/bag.h"

namespace sparrow {
namespace {

// Calls body(i) for each i in [0, n). Where there are enough of them, threads take whole items, each the next one that
// is free, since items differ much in size; otherwise each item uses all threads itself.
void ForEachItem(size_t n, absl::FunctionRef<void(size_t)> body) {
  const int threads = ParallelThreads();
  if (threads == 1 || n < 2 * static_cast<size_t>(threads)) {
    for (size_t i = 0; i < n; ++i) body(i);
    return;
  }
  // Relaxed: a counter that hands out items; the loop's end orders their effects.
  std::atomic<size_t> next{0};
  ParallelFor(threads, 1, [&](int64_t, int64_t) {
    for (size_t i = next.fetch_add(1, std::memory_order_relaxed); i < n;
         i = next.fetch_add(1, std::memory_order_relaxed)) {
      body(i);
    }
  });
}

}  // namespace

BatchModel::BatchModel(const JobLayout* layout, Model* model, uint64_t cut)
    : layout_(layout),
      model_(model),
      cut_(cut),
      gradient_buffers_(layout->tables.size()),
      gradients_(layout->tables.size()),
      piece_gradients_(layout->tables.size()),
      piece_offsets_(layout->features.size()) {}

void BatchModel::Pool(const PreparedBatch& prepared) {
  const std::span<float> pooled = Room(&pooled_, size_t{prepared.batch.rows} * layout_->sparse_columns);
  ForEachItem(layout_->features.size(), [&](size_t f) {
    const JobLayout::Feature& feature = layout_->features[f];
    BagForwardCpu(prepared.bags(*layout_, static_cast<uint32_t>(f)), prepared.rows[feature.table], feature.dim, pooled,
                  layout_->sparse_columns, feature.column);
  });
}

std::span<const float> BatchModel::Forward(const PreparedBatch& prepared) {
  Pool(prepared);
  const size_t rows = prepared.batch.rows;
  const std::span<float> logits = Room(&logits_, rows);
  model_->Forward(prepared.batch.dense, {pooled_.data(), rows * layout_->sparse_columns}, logits);
  return logits;
}

BatchModel::Result BatchModel::ForwardBackward(const PreparedBatch& prepared) {
  Result result;
  const absl::Time start = absl::Now();
  Pool(prepared);
  result.forward_seconds = absl::ToDoubleSeconds(absl::Now() - start);
  const size_t rows = prepared.batch.rows;
  const size_t cut = cut_ < rows ? static_cast<size_t>(cut_) : 0;
  if (cut > 0) Piece(prepared, 0, cut, &result);
  if (std::isfinite(result.loss_sum)) Piece(prepared, cut, rows, &result);
  return result;
}

void BatchModel::Piece(const PreparedBatch& prepared, size_t first, size_t last, Result* result) {
  const absl::Time start = absl::Now();
  const size_t rows = last - first;
  const size_t columns = layout_->sparse_columns;
  const size_t dense_columns = prepared.batch.rows == 0 ? 0 : prepared.batch.dense.size() / prepared.batch.rows;
  const std::span<const float> pooled(pooled_.data() + first * columns, rows * columns);
  const std::span<const float> dense(prepared.batch.dense.data() + first * dense_columns, rows * dense_columns);
  const std::span<float> logits = Room(&logits_, rows);
  model_->Forward(dense, pooled, logits);
  const std::span<float> logit_gradients = Room(&logit_gradients_, rows);
  result->loss_sum += BceWithLogitsCpu(logits, {prepared.batch.labels.data() + first, rows}, logit_gradients);
  const absl::Time forward_end = absl::Now();
  result->forward_seconds += absl::ToDoubleSeconds(forward_end - start);
  if (!std::isfinite(result->loss_sum)) return;

  model_->Backward(logit_gradients, Room(&pooled_gradients_, rows * columns));
  const std::span<float> gradients = model_->gradients();
  if (first > 0) {
    ParallelFor(static_cast<int64_t>(gradients.size()), int64_t{1} << 15, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) gradients[i] = first_gradients_[i] + gradients[i];
    });
  } else if (last < prepared.batch.rows) {
    first_gradients_.assign(gradients.begin(), gradients.end());
  }
  RowGradients(prepared, first, last);
  result->gradients = gradients;
  result->row_gradients = gradients_;
  result->backward_seconds += absl::ToDoubleSeconds(absl::Now() - forward_end);
}

void BatchModel::RowGradients(const PreparedBatch& prepared, size_t first, size_t last) {
  const size_t columns = layout_->sparse_columns;
  const std::span<const float> pooled_gradients(pooled_gradients_.data(), (last - first) * columns);
  const bool whole = first == 0 && last == prepared.batch.rows;
  ForEachItem(layout_->tables.size(), [&](size_t t) {
    const JobLayout::Table& table = layout_->tables[t];
    const size_t floats = prepared.tables[t].unique().size() * table.dim;
    const std::span<float> gradients = Room(first == 0 ? &gradient_buffers_[t] : &piece_gradients_[t], floats);
    std::fill(gradients.begin(), gradients.end(), 0.0f);
    for (const uint32_t f : table.features) {
      Bags bags = prepared.bags(*layout_, f);
      if (!whole) {  // The piece's bags, with offsets from 0.
        const uint32_t begin = bags.offsets[first];
        const uint32_t end = bags.offsets[last];
        std::vector<uint32_t>& offsets = piece_offsets_[f];
        offsets.resize(last - first + 1);
        for (size_t i = 0; i < offsets.size(); ++i) offsets[i] = bags.offsets[first + i] - begin;
        bags.offsets = offsets;
        bags.index = bags.index.subspan(begin, end - begin);
        if (!bags.weights.empty()) bags.weights = bags.weights.subspan(begin, end - begin);
      }
      BagBackwardCpu(bags, pooled_gradients, layout_->sparse_columns, layout_->features[f].column, table.dim,
                     gradients);
    }
    if (first > 0) {
      float* const sum = gradient_buffers_[t].data();
      for (size_t i = 0; i < floats; ++i) sum[i] += gradients[i];
    }
    gradients_[t] = {gradient_buffers_[t].data(), floats};
  });
}

}  // namespace sparrow
