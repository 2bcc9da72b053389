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
//
// A lone worker goes through its batch in two pieces, cut where two workers would share it, and adds their gradients:
// fp32 sums depend on their order, and in a network of ReLUs a last bit soon decides whether a unit is on, so only
// equal sums train equal weights. Thus one and two workers have the same weights, bit for bit.
class BatchModel {
 public:
  // Both outlive it. `cut` is the number of samples in the first piece, 0: the batch is one piece.
  BatchModel(const JobLayout* layout, Model* model, uint64_t cut = 0);

  // Pools the batch's rows and gives the logits, both valid until the next call. REQUIRES: prepared.rows are filled.
  std::span<const float> Forward(const PreparedBatch& prepared);

  // The sum of the samples' losses (binary cross-entropy) and its backward.
  struct Result {
    double loss_sum = 0;
    std::span<const float> gradients;  // Of the model's parameters, sums over samples.
    std::span<const std::span<const float>>
        row_gradients;  // Of the unique rows, a span for each table; sums over samples.
    double forward_seconds = 0;
    double backward_seconds = 0;
  };
  // Forward and backward of a batch. A loss that is not finite ends it before the backward; the gradients are empty
  // then. Valid until the next call. REQUIRES: prepared.rows are filled.
  Result ForwardBackward(const PreparedBatch& prepared);

 private:
  void Pool(const PreparedBatch& prepared);
  // Adds what the samples [first, last) give to `result`, whose gradients it sets or adds to.
  void Piece(const PreparedBatch& prepared, size_t first, size_t last, Result* result);
  void RowGradients(const PreparedBatch& prepared, size_t first, size_t last);

  const JobLayout* const layout_;
  Model* const model_;
  const uint64_t cut_;

  std::vector<std::vector<float>> gradient_buffers_;  // [tables][unique, dim]
  std::vector<std::span<const float>> gradients_;
  std::vector<std::vector<float>> piece_gradients_;   // [tables][unique, dim], of a later piece.
  std::vector<std::vector<uint32_t>> piece_offsets_;  // [features][rows of the piece + 1]
  std::vector<float> first_gradients_;                // Of the parameters, of the first piece.
  std::vector<float> pooled_;                         // [rows, sparse columns]
  std::vector<float> pooled_gradients_;               // [rows, sparse columns]
  std::vector<float> logits_;                         // [rows]
  std::vector<float> logit_gradients_;                // [rows]
};

}  // namespace sparrow

#endif  // SPARROW_WORKER_BATCH_MODEL_H_
