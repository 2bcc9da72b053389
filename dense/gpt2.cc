// GPT-2 on the CPU, in float32: the reference. A batch's rows are its tokens, sequence by sequence.

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "base/parallel.h"
#include "dense/activation.h"
#include "dense/attention.h"
#include "dense/batch_buffer.h"
#include "dense/dropout.h"
#include "dense/gelu.h"
#include "dense/gpt2_layout.h"
#include "dense/language_model.h"
#include "dense/layer_norm.h"
#include "dense/product.h"
#include "dense/softmax_loss.h"
#include "dense/token_embedding.h"

namespace sparrow {
namespace {

// Rows whose logits are there at one time.
constexpr int64_t kLogitRows = 512;

// What a block's forward pass leaves for its backward pass: what takes a product or attention to compute,
struct BlockActivations {
  explicit BlockActivations(int64_t width) : qkv(3 * width), attended(width), middle(width), fc(4 * width) {}

  void Resize(int64_t rows, int64_t weight_rows) {
    for (BatchBuffer* buffer : {&qkv, &attended, &middle, &fc}) buffer->Resize(rows);
    log_sums.resize(weight_rows);
  }

  BatchBuffer qkv;              // Queries, keys, values.
  std::vector<float> log_sums;  // Of attention's weights.
  BatchBuffer attended;         // Attention's output.
  BatchBuffer middle;           // The residual sum between the two parts.
  BatchBuffer fc;               // Before GELU.
};

// and what follows from those and the block's input element by element or row by row.
struct CheapActivations {
  explicit CheapActivations(int64_t width) : normal_1(width), normal_2(width), gelu(4 * width) {}

  void Resize(int64_t rows) {
    for (BatchBuffer* buffer : {&normal_1, &normal_2, &gelu}) buffer->Resize(rows);
    moments_1.resize(rows);
    moments_2.resize(rows);
  }

  std::vector<RowMoments> moments_1, moments_2;
  BatchBuffer normal_1, normal_2;  // Outputs of the norms.
  BatchBuffer gelu;
};

class Gpt2 final : public LanguageModel {
 public:
  Gpt2(const v1::Gpt2& config, v1::TrainConfig::Recompute recompute, uint64_t seed)
      : config_(config),
        recompute_(recompute),
        seed_(seed),
        layout_(config),
        gradient_(config.width()),
        branch_gradient_(config.width()),
        qkv_gradient_(3 * config.width()),
        fc_gradient_(4 * config.width()),
        logits_(config.vocabulary()),
        normal_(config.width()) {
    parameters_ = layout_.parameters.parameters();
    weights_.resize(layout_.parameters.size());
    gradients_.resize(weights_.size());
    decayed_ = layout_.decayed;
    layout_.parameters.Initialize(seed, weights_);
    const uint32_t layers = config.layers();
    for (uint32_t b = 0; b <= layers; ++b) residual_.emplace_back(config.width());
    const uint32_t kept = recompute == v1::TrainConfig::BLOCKS ? 1 : layers;
    const uint32_t kept_cheap = recompute == v1::TrainConfig::NOTHING ? layers : 1;
    for (uint32_t b = 0; b < kept; ++b) activations_.emplace_back(config.width());
    for (uint32_t b = 0; b < kept_cheap; ++b) cheap_.emplace_back(config.width());
  }

  double ForwardBackward(const Sequences& batch, const DropoutPlace& place, GradientsReady ready) override {
    const bool any = !batch.tokens.empty();
    double loss = 0;
    forward_seconds_ = 0;
    if (any) {
      const absl::Time start = absl::Now();
      Begin(batch, place);
      dropping_ = config_.dropout() > 0;
      Forward(batch);
      forward_seconds_ = absl::ToDoubleSeconds(absl::Now() - start);
      loss = Head(batch.targets, /*backward=*/true);
      BeginBackward();
    }
    for (uint64_t b = config_.layers(); b-- > 0;) {
      if (any) BlockBackward(b);
      ready({layout_.blocks[b].c_attn.weight.offset, EndOf(layout_.blocks[b].mlp_c_proj.weight)});
    }
    if (any) EmbeddingBackward(batch);
    ready({0, EndOf(layout_.wpe)});
    ready({layout_.decayed, gradients_.size()});
    return loss;
  }

  double Loss(const Sequences& batch) override {
    if (batch.tokens.empty()) return 0;
    Begin(batch, {});
    dropping_ = false;
    Forward(batch);
    return Head(batch.targets, /*backward=*/false);
  }

  void NextLogits(std::span<const uint16_t> tokens, std::span<float> logits) override {
    const Sequences batch{.tokens = tokens, .targets = {}, .length = static_cast<int64_t>(tokens.size())};
    Begin(batch, {});
    dropping_ = false;
    Forward(batch);
    const int64_t n = shape_.rows();
    normal_.Resize(1);
    final_moments_.resize(1);
    LayerNormForwardCpu(residual_.back().Rows(n - 1, n), Weights(layout_.ln_f.weight), Weights(layout_.ln_f.bias),
                        final_moments_, normal_.all());
    ProductTransposedCpu(normal_.all(), MatrixOf(layout_.wte, Weights()), Write::kOverwrite,
                         AsMatrix(logits, 1, config_.vocabulary()));
  }

 private:
  using Place = Gpt2DropoutPlace;

  static uint64_t EndOf(const Parameter& parameter) { return parameter.offset + parameter.size; }

  std::span<const float> Weights() const { return weights_; }
  std::span<const float> Weights(const Parameter& parameter) const { return ElementsOf(parameter, Weights()); }
  std::span<float> Gradients(const Parameter& parameter) { return ElementsOf(parameter, std::span<float>(gradients_)); }
  ConstMatrix Weight(const Gpt2Linear& linear) const { return MatrixOf(linear.weight, Weights()); }

  void Begin(const Sequences& batch, const DropoutPlace& place) {
    shape_ = {.sequences = batch.count(),
              .length = batch.length,
              .heads = config_.heads(),
              .head_width = config_.width() / config_.heads()};
    place_ = place;
    for (BatchBuffer& residual : residual_) residual.Resize(shape_.rows());
    for (BlockActivations& kept : activations_) kept.Resize(shape_.rows(), shape_.weight_rows());
    for (CheapActivations& cheap : cheap_) cheap.Resize(shape_.rows());
  }

  Dropout DropoutAt(uint64_t block, Place place) const {
    if (!dropping_) return {};
    const uint64_t number = block * kGpt2DropoutPlaces + static_cast<uint64_t>(place);
    return Dropout::Of(config_.dropout(), RandomBits(Gpt2DropoutSeed(seed_, place_.step), number));
  }
  // Of rows of the batch, whose elements are numbered over the sequences of all workers.
  void Drop(uint64_t block, Place place, Matrix rows) const {
    const uint64_t first = place_.first_sequence * static_cast<uint64_t>(shape_.length * config_.width());
    DropoutCpu(DropoutAt(block, place), first, {rows.data, static_cast<size_t>(rows.rows * rows.cols)});
  }

  // y = x weight + bias
  void LinearForward(const Gpt2Linear& linear, ConstMatrix x, Matrix y) const {
    ProductCpu(x, Weight(linear), Write::kOverwrite, y);
    BiasActivationForwardCpu(Activation::kIdentity, Weights(linear.bias), y);
  }
  void LinearBackward(const Gpt2Linear& linear, ConstMatrix x, ConstMatrix y_gradients, Matrix x_gradients) {
    TransposedProductCpu(x, y_gradients, Write::kAdd, MatrixOf(linear.weight, std::span<float>(gradients_)));
    const std::span<float> bias = Gradients(linear.bias);
    ParallelFor(y_gradients.cols, 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = 0; i < y_gradients.rows; ++i) {
        for (int64_t j = begin; j < end; ++j) bias[j] += y_gradients.row(i)[j];
      }
    });
    ProductTransposedCpu(y_gradients, Weight(linear), Write::kOverwrite, x_gradients);
  }

  static void Add(ConstMatrix from, Matrix to) {
    ParallelFor(to.rows, 64, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        for (int64_t j = 0; j < to.cols; ++j) to.row(i)[j] += from.row(i)[j];
      }
    });
  }

  // Of a block, or the one for all.
  BlockActivations& Kept(uint64_t block) { return activations_[std::min<uint64_t>(block, activations_.size() - 1)]; }
  CheapActivations& Cheap(uint64_t block) { return cheap_[std::min<uint64_t>(block, cheap_.size() - 1)]; }

  void NormalForward(const Gpt2Norm& norm, ConstMatrix x, std::vector<RowMoments>* moments, Matrix y) const {
    LayerNormForwardCpu(x, Weights(norm.weight), Weights(norm.bias), *moments, y);
  }

  // From residual_[b] to residual_[b + 1].
  void BlockForward(uint64_t b) {
    const Gpt2Block& block = layout_.blocks[b];
    BlockActivations& kept = Kept(b);
    CheapActivations& cheap = Cheap(b);
    const ConstMatrix x = residual_[b].all();
    NormalForward(block.ln_1, x, &cheap.moments_1, cheap.normal_1.all());
    LinearForward(block.c_attn, cheap.normal_1.all(), kept.qkv.all());
    AttentionForwardCpu(shape_, kept.qkv.all(), DropoutAt(b, Place::kAttentionWeights), place_.first_sequence,
                        kept.attended.all(), kept.log_sums);
    LinearForward(block.attn_c_proj, kept.attended.all(), kept.middle.all());
    Drop(b, Place::kAttentionEnd, kept.middle.all());
    Add(x, kept.middle.all());

    NormalForward(block.ln_2, kept.middle.all(), &cheap.moments_2, cheap.normal_2.all());
    LinearForward(block.c_fc, cheap.normal_2.all(), kept.fc.all());
    GeluForwardCpu(kept.fc.all(), cheap.gelu.all());
    const Matrix out = residual_[b + 1].all();
    LinearForward(block.mlp_c_proj, cheap.gelu.all(), out);
    Drop(b, Place::kMlpEnd, out);
    Add(kept.middle.all(), out);
  }

  void Forward(const Sequences& batch) {
    const Matrix x = residual_[0].all();
    TokenEmbeddingForwardCpu(batch.tokens, batch.length, MatrixOf(layout_.wte, Weights()),
                             MatrixOf(layout_.wpe, Weights()), x);
    Drop(config_.layers(), Place::kEmbedding, x);
    for (uint64_t b = 0; b < config_.layers(); ++b) BlockForward(b);
  }

  // The loss of all rows; with `backward` also the gradients of head and last norm, and gradient_ by the last block's
  // output.
  double Head(std::span<const uint16_t> targets, bool backward) {
    const int64_t n = shape_.rows();
    const ConstMatrix x = residual_.back().all();
    const ConstMatrix wte = MatrixOf(layout_.wte, Weights());
    const Matrix wte_gradients = MatrixOf(layout_.wte, std::span<float>(gradients_));
    normal_.Resize(std::min(n, kLogitRows));
    logits_.Resize(std::min(n, kLogitRows));
    final_moments_.resize(std::min(n, kLogitRows));
    if (backward) gradient_.Resize(n);
    double loss = 0;
    for (int64_t begin = 0; begin < n; begin += kLogitRows) {
      const int64_t end = std::min(n, begin + kLogitRows);
      const Matrix normal = normal_.Rows(0, end - begin);
      const Matrix logits = logits_.Rows(0, end - begin);
      LayerNormForwardCpu(x.Rows(begin, end), Weights(layout_.ln_f.weight), Weights(layout_.ln_f.bias), final_moments_,
                          normal);
      ProductTransposedCpu(normal, wte, Write::kOverwrite, logits);
      const std::span<const uint16_t> right = targets.subspan(begin, end - begin);
      if (!backward) {
        loss += SoftmaxLossCpu(logits, right);
        continue;
      }
      loss += SoftmaxLossAndGradientsCpu(logits, right);
      TransposedProductCpu(logits, normal, Write::kAdd, wte_gradients);
      const Matrix gradient = gradient_.Rows(begin, end);
      ProductCpu(logits, wte, Write::kOverwrite, gradient);
      LayerNormBackwardCpu(gradient, x.Rows(begin, end), Weights(layout_.ln_f.weight), final_moments_,
                           Write::kOverwrite, gradient, Gradients(layout_.ln_f.weight), Gradients(layout_.ln_f.bias));
    }
    return loss;
  }

  void NormalBackward(const Gpt2Norm& norm, ConstMatrix y_gradients, ConstMatrix x,
                      const std::vector<RowMoments>& moments, Matrix x_gradients) {
    LayerNormBackwardCpu(y_gradients, x, Weights(norm.weight), moments, Write::kAdd, x_gradients,
                         Gradients(norm.weight), Gradients(norm.bias));
  }

  // What lies behind a dropout: the gradient by the residual sum, dropped alike.
  ConstMatrix DroppedGradient(uint64_t block, Place place) {
    if (!dropping_) return gradient_.all();
    const Matrix copy = branch_gradient_.all();
    ParallelFor(copy.rows, 64, [&](int64_t begin, int64_t end) {
      std::copy_n(gradient_.all().row(begin), (end - begin) * copy.cols, copy.row(begin));
    });
    Drop(block, place, copy);
    return copy;
  }

  // Takes gradient_ from residual_[b + 1] to residual_[b].
  void BlockBackward(uint64_t b) {
    const Gpt2Block& block = layout_.blocks[b];
    BlockActivations& kept = Kept(b);
    CheapActivations& cheap = Cheap(b);
    if (recompute_ == v1::TrainConfig::BLOCKS) BlockForward(b);
    if (recompute_ == v1::TrainConfig::CHEAP) {
      NormalForward(block.ln_1, residual_[b].all(), &cheap.moments_1, cheap.normal_1.all());
      NormalForward(block.ln_2, kept.middle.all(), &cheap.moments_2, cheap.normal_2.all());
      GeluForwardCpu(kept.fc.all(), cheap.gelu.all());
    }
    const Matrix branch = branch_gradient_.all();

    LinearBackward(block.mlp_c_proj, cheap.gelu.all(), DroppedGradient(b, Place::kMlpEnd), fc_gradient_.all());
    GeluBackwardCpu(kept.fc.all(), fc_gradient_.all());
    LinearBackward(block.c_fc, cheap.normal_2.all(), fc_gradient_.all(), branch);
    NormalBackward(block.ln_2, branch, kept.middle.all(), cheap.moments_2, gradient_.all());

    const Matrix attended = attended_gradient_.all();
    LinearBackward(block.attn_c_proj, kept.attended.all(), DroppedGradient(b, Place::kAttentionEnd), attended);
    AttentionBackwardCpu(shape_, kept.qkv.all(), kept.attended.all(), kept.log_sums,
                         DropoutAt(b, Place::kAttentionWeights), place_.first_sequence, attended, qkv_gradient_.all());
    LinearBackward(block.c_attn, cheap.normal_1.all(), qkv_gradient_.all(), branch);
    NormalBackward(block.ln_1, branch, residual_[b].all(), cheap.moments_1, gradient_.all());
  }

  void BeginBackward() {
    for (BatchBuffer* buffer : {&branch_gradient_, &attended_gradient_, &qkv_gradient_, &fc_gradient_}) {
      buffer->Resize(shape_.rows());
    }
  }

  void EmbeddingBackward(const Sequences& batch) {
    Drop(config_.layers(), Place::kEmbedding, gradient_.all());
    const std::span<float> gradients(gradients_);
    TokenEmbeddingBackwardCpu(batch.tokens, batch.length, gradient_.all(), MatrixOf(layout_.wte, gradients),
                              MatrixOf(layout_.wpe, gradients));
  }

  const v1::Gpt2 config_;
  const v1::TrainConfig::Recompute recompute_;
  const uint64_t seed_;
  const Gpt2Layout layout_;

  // Of the present batch:
  AttentionShape shape_;
  DropoutPlace place_;
  bool dropping_ = false;
  std::vector<BatchBuffer> residual_;          // [layers + 1]: the input of each block, and the last one's output.
  std::vector<BlockActivations> activations_;  // [layers], or one for all that are computed again.
  std::vector<CheapActivations> cheap_;        // The same.
  BatchBuffer gradient_;                       // By the residual sum, as backward goes down.
  BatchBuffer branch_gradient_;
  BatchBuffer attended_gradient_{static_cast<int64_t>(config_.width())};
  BatchBuffer qkv_gradient_;
  BatchBuffer fc_gradient_;
  // Of the rows whose logits are at hand:
  BatchBuffer logits_;
  BatchBuffer normal_;
  std::vector<RowMoments> final_moments_;
};

}  // namespace

Gpt2Floats Gpt2FloatsCpu(const v1::Gpt2& config, v1::TrainConfig::Recompute recompute, uint64_t sequences) {
  const double layers = config.layers();
  const double width = config.width();
  const double rows = static_cast<double>(sequences) * config.context();
  const double kept = recompute == v1::TrainConfig::BLOCKS ? 1 : layers;
  const double kept_cheap = recompute == v1::TrainConfig::NOTHING ? layers : 1;
  constexpr double kMoments = 2 * sizeof(RowMoments) / sizeof(float);
  const double row = (layers + 1) * width +               // residual_
                     kept * (9 * width + config.heads())  // BlockActivations
                     + kept_cheap * (6 * width + kMoments) +
                     10 * width;  // Gradients of the residual sum, a branch, attention's output, qkv and fc.
  const double head_rows = std::min<double>(rows, kLogitRows);
  const Gpt2Layout layout(config);
  const double parameters = static_cast<double>(layout.parameters.size());
  const double block = 12 * width * width;  // The matrices of one block; the others are there until the end.
  return {.parameters = parameters,
          .gradients_at_hand = parameters - (layers - 1) * block,
          .activations = rows * row + head_rows * (config.vocabulary() + width)};
}

double Gpt2FlopsPerToken(const v1::Gpt2& config) {
  const double width = config.width(), layers = config.layers();
  return 6 * (layers * 12 * width * width + width * config.vocabulary()) + 6 * layers * config.context() * width;
}

std::unique_ptr<LanguageModel> MakeGpt2(const v1::Gpt2& config, v1::TrainConfig::Recompute recompute, uint64_t seed) {
  return std::make_unique<Gpt2>(config, recompute, seed);
}

}  // namespace sparrow
