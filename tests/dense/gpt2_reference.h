#ifndef SPARROW_TESTS_DENSE_GPT2_REFERENCE_H_
#define SPARROW_TESTS_DENSE_GPT2_REFERENCE_H_

// GPT-2 in double precision, written apart from the code under test: one sequence, plain loops, forward alone.

#include <cmath>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tests/dense/double_reference.h"

namespace sparrow::testing {

inline Vector LayerNorm(const Vector& x, std::span<const double> weight, std::span<const double> bias) {
  double mean = 0, variance = 0;
  for (double v : x) mean += v / static_cast<double>(x.size());
  for (double v : x) variance += (v - mean) * (v - mean) / static_cast<double>(x.size());
  Vector y(x.size());
  for (size_t j = 0; j < x.size(); ++j) y[j] = (x[j] - mean) / std::sqrt(variance + 1e-5) * weight[j] + bias[j];
  return y;
}

inline double Gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
}

enum DropPlace { kDropEmbedding, kDropWeights, kDropAttention, kDropMlp };
// What dropout multiplies by: an element at a place of the model, and the weight of row t for row u of a head, by the
// head's number over all sequences. 1 without dropout.
struct DropFactors {
  std::function<double(uint64_t block, int place, uint64_t element)> element;
  std::function<double(uint64_t block, uint64_t head, size_t t, size_t u)> weight;
};

// Attention of one head: rows are [q | k | v] of it. factor(t, u): of the weight of row t for row u.
inline std::vector<Vector> AttendHead(const std::vector<Vector>& q, const std::vector<Vector>& k,
                                      const std::vector<Vector>& v,
                                      const std::function<double(size_t t, size_t u)>& factor) {
  std::vector<Vector> y;
  for (size_t t = 0; t < q.size(); ++t) {
    Vector weights(t + 1);
    double sum = 0;
    for (size_t u = 0; u <= t; ++u) {
      double dot = 0;
      for (size_t j = 0; j < q[t].size(); ++j) dot += q[t][j] * k[u][j];
      sum += weights[u] = std::exp(dot / std::sqrt(static_cast<double>(q[t].size())));
    }
    Vector out(q[t].size());
    for (size_t u = 0; u <= t; ++u) {
      for (size_t j = 0; j < out.size(); ++j) out[j] += weights[u] / sum * factor(t, u) * v[u][j];
    }
    y.push_back(out);
  }
  return y;
}

// The logits behind each token. `sequence` is its number among those of the step.
inline std::vector<Vector> Gpt2Logits(const std::vector<Parameter>& parameters, const Vector& weights, size_t heads,
                                      std::span<const uint16_t> tokens, uint64_t sequence, const DropFactors& factors) {
  const auto find = [&](const std::string& name) { return Find(parameters, weights, name); };
  const size_t length = tokens.size();
  const size_t width = find("ln_f.weight").size();
  const size_t head_width = width / heads;
  // x weight + bias, weight [in, out].
  const auto linear = [&](const Vector& x, const std::string& name) {
    const auto w = find(name + ".weight");
    const auto b = find(name + ".bias");
    Vector y(b.begin(), b.end());
    for (size_t i = 0; i < x.size(); ++i) {
      for (size_t o = 0; o < y.size(); ++o) y[o] += x[i] * w[i * y.size() + o];
    }
    return y;
  };
  const auto norm = [&](const Vector& x, const std::string& name) {
    return LayerNorm(x, find(name + ".weight"), find(name + ".bias"));
  };
  const auto drop = [&](uint64_t block, int place, size_t t, Vector x) {
    for (size_t j = 0; j < width; ++j) x[j] *= factors.element(block, place, (sequence * length + t) * width + j);
    return x;
  };
  size_t layers = 0;
  while (!find("h." + std::to_string(layers) + ".ln_1.bias").empty()) ++layers;

  std::vector<Vector> x;
  for (size_t t = 0; t < length; ++t) {
    Vector row(width);
    for (size_t j = 0; j < width; ++j) {
      row[j] = find("wte.weight")[tokens[t] * width + j] + find("wpe.weight")[t * width + j];
    }
    x.push_back(drop(layers, kDropEmbedding, t, row));
  }
  for (size_t b = 0; b < layers; ++b) {
    const std::string name = "h." + std::to_string(b) + ".";
    std::vector<Vector> attended(length, Vector(width));
    std::vector<Vector> qkv;
    for (size_t t = 0; t < length; ++t) qkv.push_back(linear(norm(x[t], name + "ln_1"), name + "attn.c_attn"));
    for (size_t h = 0; h < heads; ++h) {
      std::vector<Vector> parts[3];
      for (size_t p = 0; p < 3; ++p) {
        for (const Vector& row : qkv) {
          const auto from = row.begin() + static_cast<int64_t>(p * width + h * head_width);
          parts[p].emplace_back(from, from + static_cast<int64_t>(head_width));
        }
      }
      const auto weight_factor = [&](size_t t, size_t u) { return factors.weight(b, sequence * heads + h, t, u); };
      const std::vector<Vector> out = AttendHead(parts[0], parts[1], parts[2], weight_factor);
      for (size_t t = 0; t < length; ++t) {
        for (size_t j = 0; j < head_width; ++j) attended[t][h * head_width + j] = out[t][j];
      }
    }
    for (size_t t = 0; t < length; ++t) {
      const Vector end = drop(b, kDropAttention, t, linear(attended[t], name + "attn.c_proj"));
      for (size_t j = 0; j < width; ++j) x[t][j] += end[j];
      Vector fc = linear(norm(x[t], name + "ln_2"), name + "mlp.c_fc");
      for (double& v : fc) v = Gelu(v);
      const Vector mlp = drop(b, kDropMlp, t, linear(fc, name + "mlp.c_proj"));
      for (size_t j = 0; j < width; ++j) x[t][j] += mlp[j];
    }
  }
  std::vector<Vector> logits;
  const auto wte = find("wte.weight");
  for (size_t t = 0; t < length; ++t) {
    const Vector last = norm(x[t], "ln_f");
    Vector row(wte.size() / width);
    for (size_t v = 0; v < row.size(); ++v) {
      for (size_t j = 0; j < width; ++j) row[v] += last[j] * wte[v * width + j];
    }
    logits.push_back(row);
  }
  return logits;
}

inline double CrossEntropy(const Vector& logits, size_t target) {
  double sum = 0;
  for (double logit : logits) sum += std::exp(logit - logits[target]);
  return std::log(sum);
}

}  // namespace sparrow::testing

#endif  // SPARROW_TESTS_DENSE_GPT2_REFERENCE_H_
