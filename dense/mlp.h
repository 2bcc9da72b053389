#ifndef SPARROW_DENSE_MLP_H_
#define SPARROW_DENSE_MLP_H_

// A stack of fully connected layers over blocks of rows. Holds the activations of the current batch; the weights are
// the model's.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "dense/activation.h"
#include "dense/batch_buffer.h"
#include "dense/matrix.h"
#include "dense/parameters.h"
#include "dense/row_blocks.h"

namespace sparrow {

// Thread-compatible: ForwardBlock and BackwardBlock may run on several threads at a time, on different blocks.
class Mlp {
 public:
  // Adds PREFIX.I.weight and PREFIX.I.bias to `layout` for each layer I. ReLU after every layer but the last, which has
  // `last`. Without layers the MLP is the identity on nothing: outputs() is 0 and there is nothing to call.
  Mlp(absl::string_view prefix, uint32_t inputs, std::span<const uint32_t> layer_outputs, Activation last,
      ParameterLayout* layout);

  int64_t outputs() const { return layers_.empty() ? 0 : layers_.back().activations.cols(); }

  // Before the blocks of a forward pass.
  void BeginForward(const RowBlocks& blocks);
  // Rows [begin, begin + x.rows) of the batch. Returns their outputs.
  ConstMatrix ForwardBlock(std::span<const float> weights, ConstMatrix x /*[n, inputs]*/, int64_t begin);
  ConstMatrix output() const { return layers_.back().activations.all(); }

  // Before the blocks of a backward pass.
  void BeginBackward(const RowBlocks& blocks);
  // Where the gradients by the outputs go before BackwardBlock.
  Matrix output_gradients() { return layers_.back().gradients.all(); }
  // Overwrites x_gradients, the gradients by the inputs, unless x_gradients.data is null.
  void BackwardBlock(std::span<const float> weights, int64_t block, int64_t begin, int64_t end,
                     Matrix x_gradients /*[n, inputs]*/);
  // After all blocks: the gradients of the MLP's parameters, overwritten in the model's flat array. x: the inputs of
  // the whole batch.
  void BackwardWeights(ConstMatrix x /*[rows, inputs]*/, std::span<float> gradients);

 private:
  struct Layer {
    Parameter weight;
    Parameter bias;
    Activation activation;
    BatchBuffer activations;     // [rows, out]
    BatchBuffer gradients;       // [rows, out], by the outputs, then by the inputs of the activation.
    BatchBuffer bias_gradients;  // [blocks, out], each block's sum.
  };

  std::vector<Layer> layers_;
};

// sums[j] = sum of column j.
void ColumnSums(ConstMatrix values, std::span<float> sums);

}  // namespace sparrow

#endif  // SPARROW_DENSE_MLP_H_
