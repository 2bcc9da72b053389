#ifndef SPARROW_CLIENT_SAMPLER_H_
#define SPARROW_CLIENT_SAMPLER_H_

// The next token, drawn from a language model's logits.

#include <cstdint>
#include <span>

namespace sparrow {

struct SamplingOptions {
  double temperature = 1;  // Divides the logits. 0: the likeliest token, the first of equal ones.
  uint32_t top_k = 0;      // Only so many of the likeliest tokens may come; of equal ones the first. 0: all.
};

// Token i with probability exp(logits[i] / temperature) over the sum of those that may come. `uniform` is the random
// number that decides, in [0, 1): equal numbers give equal tokens. REQUIRES: logits are finite and not empty;
// temperature >= 0.
uint16_t SampleToken(std::span<const float> logits, const SamplingOptions& options, double uniform);

}  // namespace sparrow

#endif  // SPARROW_CLIENT_SAMPLER_H_
