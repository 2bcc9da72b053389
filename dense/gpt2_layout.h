#ifndef SPARROW_DENSE_GPT2_LAYOUT_H_
#define SPARROW_DENSE_GPT2_LAYOUT_H_

// Where the parameters of a GPT-2 lie in its flat vector, the same for both halves. All tensors with two extents come
// first, in the order of the model, then those with one, so that what AdamW decays is one range.

#include <cstdint>
#include <vector>

#include "dense/parameters.h"
#include "sparrow/v1/job.pb.h"

namespace sparrow {

// A fully connected layer y = x weight + bias: weight [in, out], as the hub stores GPT-2's.
struct Gpt2Linear {
  Parameter weight;
  Parameter bias;
};
struct Gpt2Norm {
  Parameter weight;
  Parameter bias;
};

struct Gpt2Block {
  Gpt2Norm ln_1;
  Gpt2Linear c_attn;       // [width, 3 width]
  Gpt2Linear attn_c_proj;  // [width, width]
  Gpt2Norm ln_2;
  Gpt2Linear c_fc;        // [width, 4 width]
  Gpt2Linear mlp_c_proj;  // [4 width, width]
};

// Where a GPT-2 drops elements in training. The stream of place p of a block in a step is RandomBits(seed of the step,
// block * kGpt2DropoutPlaces + p), with the number of layers as the embeddings' block.
enum class Gpt2DropoutPlace : uint64_t { kEmbedding, kAttentionWeights, kAttentionEnd, kMlpEnd };
inline constexpr uint64_t kGpt2DropoutPlaces = 4;
uint64_t Gpt2DropoutSeed(uint64_t seed /*of the model*/, uint64_t step);

struct Gpt2Layout {
  explicit Gpt2Layout(const v1::Gpt2& config);

  ParameterLayout parameters;
  uint64_t decayed = 0;  // Elements of tensors with two extents.

  Parameter wte;  // [vocabulary, width]: embeds tokens, and is the head.
  Parameter wpe;  // [context, width]
  std::vector<Gpt2Block> blocks;
  Gpt2Norm ln_f;
};

}  // namespace sparrow

#endif  // SPARROW_DENSE_GPT2_LAYOUT_H_
