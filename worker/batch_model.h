#ifndef SPARROW_WORKER_BATCH_MODEL_H_
#define SPARROW_WORKER_BATCH_MODEL_H_

#include <cstdint>
#include <span>
#include <vector>

#include "dense/model.h"
#include "worker/job_layout.h"
#include "worker/prepared_batch.h"

namespace sparrow {

// The arithmetic of one batch: rows -> pooled vectors -> model, and back to row gradients. Its buffers are kept from
// batch to batch. Not thread-safe; the work inside uses all cores.
class BatchModel {
 public:
  // Both outlive it.
  BatchModel(const JobLayout* layout, Model* model);

  // Room for the batch's unique rows, a span for each table: the caller fills them before Forward.
  std::span<const std::span<float>> Rows(const PreparedBatch& prepared);

  // Logits, valid until the next call. REQUIRES: Rows was called for this batch and filled.
  std::span<const float> Forward(const PreparedBatch& prepared);

  // Sum of the samples' losses (binary cross-entropy) of the last Forward.
  double Loss(const PreparedBatch& prepared);

  // Backward of Loss: the model's gradients, and the gradients of the unique rows, a span for each table, valid until
  // the next call. All are sums over samples. REQUIRES: Loss was called for this batch.
  std::span<const std::span<const float>> Backward(const PreparedBatch& prepared);

 private:
  const JobLayout* const layout_;
  Model* const model_;

  std::vector<std::vector<float>> row_buffers_;       // [tables][unique, dim]
  std::vector<std::vector<float>> gradient_buffers_;  // [tables][unique, dim]
  std::vector<std::span<float>> rows_;
  std::vector<std::span<const float>> gradients_;
  std::vector<float> pooled_;            // [rows, sparse columns]
  std::vector<float> pooled_gradients_;  // [rows, sparse columns]
  std::vector<float> logits_;            // [rows]
  std::vector<float> logit_gradients_;   // [rows]
};

}  // namespace sparrow

#endif  // SPARROW_WORKER_BATCH_MODEL_H_
