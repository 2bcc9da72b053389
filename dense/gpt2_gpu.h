#ifndef SPARROW_DENSE_GPT2_GPU_H_
#define SPARROW_DENSE_GPT2_GPU_H_

// The CUDA half of dense/gpt2.cc: the same model in a precision of choice. Activations, their gradients and what
// products read are of the precision's type; master weights and gradients of parameters are float32, and gradients of
// micro batches add up there. Weights of layers lie transposed, [out, in], and the vocabulary is padded to a multiple
// of 128. A head's width is one that dense/attention_gpu.h takes.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "base/cuda/stream.h"
#include "dense/attention_gpu.h"
#include "dense/device_matrix.h"
#include "dense/device_parameters.h"
#include "dense/dropout_gpu.h"
#include "dense/language_model.h"

namespace sparrow {

// Not thread-safe; all its work belongs to the stream that it was made with. Nothing waits and nothing is allocated in
// Loss, ForwardLoss and Backward, so they can be recorded as a CUDA graph (base/cuda/graph.h) once each has run with
// that shape, which is when the matrix products choose their algorithms.
class LanguageModelGpu : public GradientSource {
 public:
  struct Options {
    Precision precision = Precision::kBfloat16;
    v1::TrainConfig::Recompute recompute = v1::TrainConfig::NOTHING;
    int64_t sequences_max = 0;   // Of a micro batch.
    uint64_t seed = 0;           // The model's, for dropout.
    bool deterministic = false;  // Nothing is chosen by its speed, so that two runs are bit-equal.
    std::string plan_file = "";  // Where the choices by speed are kept (dense/linear_gpu.h); empty: nowhere.
    // Not 0: gradients have room for those at hand alone (MakeGradientRing), in buckets of at least so many floats, and
    // every micro batch is a first one.
    int64_t ring_floats = 0;
    uint64_t spare_bytes = 0;  // Of GPU memory, left for others: logits are computed in slices if they must be.
  };

  // A micro batch in GPU memory. So many sequences are computed; those from `counted` on are there to fill up (a graph
  // is recorded for one number of sequences): they count for nothing, but their tokens are below the vocabulary.
  struct Batch {
    int64_t sequences = 0;
    int64_t counted = 0;
    int64_t length = 0;                 // Of a sequence, at most the model's context.
    const uint16_t* tokens = nullptr;   // [sequences, length]
    const uint16_t* targets = nullptr;  // [sequences, length]
    double* loss_sum = nullptr;         // [1], added to.
    const char* places = nullptr;       // [places_bytes()], of PutPlaces; of training only, as all below.
    const float* loss_scale = nullptr;  // [1]: multiplies all gradients, not the loss.
    bool first = true;                  // Gradients are overwritten; else they are added to.
  };

  // What dropout of a micro batch depends on, as it lies in GPU memory.
  virtual size_t places_bytes() const = 0;
  virtual void PutPlaces(const DropoutPlace& place, char* places /*[places_bytes()], host memory*/) const = 0;

  // The loss, without dropout.
  virtual void Loss(const Batch& batch, const Stream& stream) = 0;

  // Training: up to the loss, then the way back, after which parameters()->gradients() hold loss_scale times the sums
  // over the targets. REQUIRES: the same batch.
  virtual void ForwardLoss(const Batch& batch, const Stream& stream) = 0;
  virtual void Backward(const Batch& batch, const Stream& stream) = 0;

  DeviceParameters* parameters() override { return parameters_.get(); }
  void set_gradients_queued(GradientsQueued queued) override { queued_ = std::move(queued); }
  // AdamW's decay is for elements [0, decayed()) of parameters() alone.
  virtual int64_t decayed() const = 0;

  // Of GPU memory, taken when it was made.
  virtual uint64_t activation_bytes() const = 0;

  // For the log: how logits and attention are computed.
  virtual std::string Describe() const = 0;

 protected:
  explicit LanguageModelGpu(std::unique_ptr<DeviceParameters> parameters) : parameters_(std::move(parameters)) {}

  std::unique_ptr<DeviceParameters> parameters_;
  GradientsQueued queued_;
};

// Bytes of GPU memory that MakeGpt2Gpu's model takes, by formula. Its parts, with R rows of a micro batch, e bytes of
// an element, L layers, width d, H heads, vocabulary V with its padding, P parameters with theirs, and logits of Q
// rows:
//
//   weights      4 P, and their copy of 2 P where e is 2
//   gradients    4 P, or what a ring has room for (Options.ring_floats)
//   activations  of a block            R (e 10 d + 4 H), of which what takes a product or attention to compute is
//                                      e 9 d + 4 H (qkv, attended, the middle sum, GELU's input), and its input e d
//                what is cheap in it   R (e 6 d + 16) (both norms' outputs, GELU's output, two RowMoments)
//                once                  R (e 12 d + 8), with dropout e 13 d: the last sum and its norm, and gradients of
//                                      the residual sum, a branch, attention's output, qkv and fc
//                logits                Q (e V + 4)
//   workspaces   products', attention's 8 bytes for each head and row, those of embeddings' and norms' gradients
//
// recompute NOTHING keeps L blocks and all that is cheap in them, CHEAP one block's cheap part, BLOCKS one block and
// the inputs of all. In 16 bits a layer of NOTHING so takes R (32 d + 4 H + 16), where the usual formula for layers
// without fused attention says R (34 d + 5 H S) for a context of S (Korthikanti et al., "Reducing Activation
// Recomputation in Large Transformer Models", 2022): the scores, their softmax and its dropout, 5 H S, are never in
// memory, 4 H + 16 say what their rows and those of norms were divided by, and the masks of two dropouts, 2 d, are
// computed again.
struct Gpt2Bytes {
  double weights = 0;
  double gradients = 0;
  double activations = 0;
  double workspaces = 0;

  double total() const { return weights + gradients + activations + workspaces; }
};
// Q is what MakeGpt2Gpu takes where so much memory is free: all rows, or a half, a quarter, ..., 1,024 at least.
Gpt2Bytes Gpt2BytesGpu(const v1::Gpt2& config, const LanguageModelGpu::Options& options, uint64_t free_bytes);

// The twin of `model`, which MakeGpt2 made of the same config, with its weights. InvalidArgument: a width that is no
// multiple of kColumnsMultiple. ResourceExhausted: the memory of the GPU, with numbers.
absl::StatusOr<std::unique_ptr<LanguageModelGpu>> MakeGpt2Gpu(const v1::Gpt2& config, const LanguageModel& model,
                                                              const LanguageModelGpu::Options& options,
                                                              const Stream& stream);

}  // namespace sparrow

#endif  // SPARROW_DENSE_GPT2_GPU_H_
