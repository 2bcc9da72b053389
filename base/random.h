#ifndef SPARROW_BASE_RANDOM_H_
#define SPARROW_BASE_RANDOM_H_

// Counter-based random numbers: a value is a pure function of (seed, index), so any process can compute any element
// alone and a restart needs no state. The mixing function is the finaliser of SplitMix64 (Steele, Lea, Flood, "Fast
// Splittable Pseudorandom Number Generators", 2014). Fixed for ever: initial weights, and so golden files and
// checkpoints, depend on it.

#include <cmath>
#include <cstdint>

#include "base/cuda/host_device.h"

namespace sparrow {

// A bijection of 64-bit numbers that looks random.
SPARROW_HOST_DEVICE inline uint64_t Mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// The index-th 64 random bits of the stream `seed`.
SPARROW_HOST_DEVICE inline uint64_t RandomBits(uint64_t seed, uint64_t index) { return Mix64(seed ^ Mix64(index)); }

// Uniform in [0, 1), a multiple of 2^-53.
SPARROW_HOST_DEVICE inline double RandomUniform(uint64_t seed, uint64_t index) {
  return static_cast<double>(RandomBits(seed, index) >> 11) * 0x1.0p-53;
}

// Normal with mean 0 and variance 1 (Box and Muller, 1958), from elements 2 * index and 2 * index + 1 of the stream.
SPARROW_HOST_DEVICE inline double RandomNormal(uint64_t seed, uint64_t index) {
  constexpr double kTwoPi = 6.283185307179586;
  const double u = 1.0 - RandomUniform(seed, 2 * index);  // (0, 1], so the logarithm is finite.
  const double v = RandomUniform(seed, 2 * index + 1);
  return std::sqrt(-2.0 * std::log(u)) * std::cos(kTwoPi * v);
}

}  // namespace sparrow

#endif  // SPARROW_BASE_RANDOM_H_
