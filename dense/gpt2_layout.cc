#include "dense/gpt2_layout.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/random.h"

namespace sparrow {
namespace {

constexpr double kDeviation = 0.02;
constexpr uint64_t kHashOfDropout = 0x64726f706f7574;  // "dropout"

}  // namespace

uint64_t Gpt2DropoutSeed(uint64_t seed, uint64_t step) { return RandomBits(RandomBits(seed, kHashOfDropout), step); }

Gpt2Layout::Gpt2Layout(const v1::Gpt2& config) : blocks(config.layers()) {
  const uint64_t width = config.width();
  const auto last = [&] { return parameters.parameters().back(); };
  const auto matrix = [&](const std::string& name, uint64_t rows, uint64_t cols, double deviation) {
    parameters.Add(absl::StrCat(name, ".weight"), {rows, cols}, deviation);
    return last();
  };
  const auto vector = [&](const std::string& name, uint64_t size, float value) {
    parameters.AddConstant(name, {size}, value);
    return last();
  };
  const auto name_of = [](size_t block, const char* part) { return absl::StrCat("h.", block, ".", part); };
  // The residual sum grows with each block's two parts.
  const double deviation_of_ends = kDeviation / std::sqrt(2.0 * config.layers());

  wte = matrix("wte", config.vocabulary(), width, kDeviation);
  wpe = matrix("wpe", config.context(), width, kDeviation);
  for (size_t b = 0; b < blocks.size(); ++b) {
    blocks[b].c_attn.weight = matrix(name_of(b, "attn.c_attn"), width, 3 * width, kDeviation);
    blocks[b].attn_c_proj.weight = matrix(name_of(b, "attn.c_proj"), width, width, deviation_of_ends);
    blocks[b].c_fc.weight = matrix(name_of(b, "mlp.c_fc"), width, 4 * width, kDeviation);
    blocks[b].mlp_c_proj.weight = matrix(name_of(b, "mlp.c_proj"), 4 * width, width, deviation_of_ends);
  }
  decayed = parameters.size();

  const auto norm = [&](const std::string& name) {
    return Gpt2Norm{.weight = vector(absl::StrCat(name, ".weight"), width, 1),
                    .bias = vector(absl::StrCat(name, ".bias"), width, 0)};
  };
  const auto bias = [&](const std::string& name, uint64_t size) {
    return vector(absl::StrCat(name, ".bias"), size, 0);
  };
  for (size_t b = 0; b < blocks.size(); ++b) {
    blocks[b].ln_1 = norm(name_of(b, "ln_1"));
    blocks[b].c_attn.bias = bias(name_of(b, "attn.c_attn"), 3 * width);
    blocks[b].attn_c_proj.bias = bias(name_of(b, "attn.c_proj"), width);
    blocks[b].ln_2 = norm(name_of(b, "ln_2"));
    blocks[b].c_fc.bias = bias(name_of(b, "mlp.c_fc"), 4 * width);
    blocks[b].mlp_c_proj.bias = bias(name_of(b, "mlp.c_proj"), width);
  }
  ln_f = norm("ln_f");
}

}  // namespace sparrow
