#ifndef SPARROW_DENSE_LANGUAGE_MODEL_H_
#define SPARROW_DENSE_LANGUAGE_MODEL_H_

// A model that says, at each token of a sequence, which token comes next. Forward and backward are one call: the loss
// is the model's own, and its logits, far larger than anything else, are never there as a whole.

#include <cstdint>
#include <memory>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "dense/dense_parameters.h"
#include "sparrow/v1/job.pb.h"

namespace sparrow {

// Texts of one length, one behind the other.
struct Sequences {
  std::span<const uint16_t> tokens;   // [sequences, length]
  std::span<const uint16_t> targets;  // [sequences, length]: the token behind each.
  int64_t length = 0;                 // At most the model's context.

  int64_t count() const { return length == 0 ? 0 : static_cast<int64_t>(tokens.size()) / length; }
};

// What dropout depends on.
struct DropoutPlace {
  uint64_t step = 0;
  uint64_t first_sequence = 0;  // Of the batch, among those of the step on all workers.
};

// Not thread-safe: one thread trains a model; the operations inside use all cores. Parameters have the names and shapes
// of the hub's GPT-2 ("wte.weight", "h.0.attn.c_attn.weight" [in, out], ...); those with two extents come first, and
// are what AdamW decays.
class LanguageModel : public DenseParameters {
 public:
  // Adds to gradients() the derivatives of the sum of all targets' cross-entropies, and returns that sum. REQUIRES:
  // tokens and targets are below the vocabulary.
  //
  // `ready` hears of ranges of gradients() that this call adds nothing more to, as backward goes: of each element once,
  // by the same ranges in the same order for every batch, an empty one too.
  using GradientsReady = absl::FunctionRef<void(const Slice&)>;
  virtual double ForwardBackward(const Sequences& batch, const DropoutPlace& place, GradientsReady ready) = 0;
  double ForwardBackward(const Sequences& batch, const DropoutPlace& place) {
    return ForwardBackward(batch, place, [](const Slice&) {});
  }

  // The forward part of the last ForwardBackward. The head's is not in it: its two passes go together.
  double forward_seconds() const { return forward_seconds_; }

  // The sum alone, without dropout.
  virtual double Loss(const Sequences& batch) = 0;

  // What comes behind the last of these tokens, without dropout. REQUIRES: 1 to context tokens.
  virtual void NextLogits(std::span<const uint16_t> tokens, std::span<float> logits /*[vocabulary]*/) = 0;

 protected:
  double forward_seconds_ = 0;
};

// What MakeGpt2's model has in memory: of each parameter a weight and a gradient, and `activations` as soon as it was
// trained on so many sequences of its context at once. In double, since what is asked for may be of any size.
struct Gpt2Floats {
  double parameters = 0;
  // The most gradients that backward is not done with, or has told of last (GradientsReady), at one time.
  double gradients_at_hand = 0;
  double activations = 0;
};
Gpt2Floats Gpt2FloatsCpu(const v1::Gpt2& config, v1::TrainConfig::Recompute recompute, uint64_t sequences);

// Operations of a training step for each token, a multiplication and an addition being two, as others count them
// (Narayanan et al., 2021; PaLM's appendix B): 6 for each weight that a product has, the head's included, and 6 layers
// context width for causal attention, which is half of what the whole square would take. Recomputation counts nothing.
double Gpt2FlopsPerToken(const v1::Gpt2& config);

// On the CPU, in float32, with initial weights that are a pure function of (seed, parameter name, element). REQUIRES:
// the fields of `config` are in their ranges (worker/job_check.h).
std::unique_ptr<LanguageModel> MakeGpt2(const v1::Gpt2& config, v1::TrainConfig::Recompute recompute, uint64_t seed);

}  // namespace sparrow

#endif  // SPARROW_DENSE_LANGUAGE_MODEL_H_
