#include "worker/batch_model.h"

#include <algorithm>
#include <atomic>

#include "absl/functional/function_ref.h"
#include "base/parallel.h"
#include "dense/bce_loss.h"
#include "embedding/bag.h"

namespace sparrow {
namespace {

// The first n elements of a buffer that only ever grows; what they hold is unspecified.
std::span<float> Room(std::vector<float>* buffer, size_t n) {
  if (buffer->size() < n) {
    buffer->clear();  // Nothing to copy when it moves.
    buffer->resize(n);
  }
  return {buffer->data(), n};
}

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

BatchModel::BatchModel(const JobLayout* layout, Model* model)
    : layout_(layout),
      model_(model),
      row_buffers_(layout->tables.size()),
      gradient_buffers_(layout->tables.size()),
      rows_(layout->tables.size()),
      gradients_(layout->tables.size()) {}

std::span<const std::span<float>> BatchModel::Rows(const PreparedBatch& prepared) {
  for (size_t t = 0; t < rows_.size(); ++t) {
    rows_[t] = Room(&row_buffers_[t], prepared.tables[t].unique().size() * layout_->tables[t].dim);
  }
  return rows_;
}

std::span<const float> BatchModel::Forward(const PreparedBatch& prepared) {
  const size_t rows = prepared.batch.rows;
  const std::span<float> pooled = Room(&pooled_, rows * layout_->sparse_columns);
  ForEachItem(layout_->features.size(), [&](size_t f) {
    const JobLayout::Feature& feature = layout_->features[f];
    BagForwardCpu(prepared.bags(*layout_, static_cast<uint32_t>(f)), rows_[feature.table], feature.dim, pooled,
                  layout_->sparse_columns, feature.column);
  });
  const std::span<float> logits = Room(&logits_, rows);
  model_->Forward(prepared.batch.dense, pooled, logits);
  return logits;
}

double BatchModel::Loss(const PreparedBatch& prepared) {
  const size_t rows = prepared.batch.rows;
  return BceWithLogitsCpu({logits_.data(), rows}, prepared.batch.labels, Room(&logit_gradients_, rows));
}

std::span<const std::span<const float>> BatchModel::Backward(const PreparedBatch& prepared) {
  const size_t rows = prepared.batch.rows;
  const std::span<float> pooled_gradients = Room(&pooled_gradients_, rows * layout_->sparse_columns);
  model_->Backward({logit_gradients_.data(), rows}, pooled_gradients);
  ForEachItem(layout_->tables.size(), [&](size_t t) {
    const JobLayout::Table& table = layout_->tables[t];
    const std::span<float> gradients = Room(&gradient_buffers_[t], prepared.tables[t].unique().size() * table.dim);
    std::fill(gradients.begin(), gradients.end(), 0.0f);
    for (const uint32_t f : table.features) {
      BagBackwardCpu(prepared.bags(*layout_, f), pooled_gradients, layout_->sparse_columns, layout_->features[f].column,
                     table.dim, gradients);
    }
    gradients_[t] = gradients;
  });
  return gradients_;
}

}  // namespace sparrow
