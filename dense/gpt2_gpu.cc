#include "dense/gpt2_gpu.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/cuda/allocate.h"
#include "base/status_macros.h"
#include "dense/gelu_gpu.h"
#include "dense/gpt2_layout.h"
#include "dense/layer_norm_gpu.h"
#include "dense/linear_gpu.h"
#include "dense/softmax_loss_gpu.h"
#include "dense/step_totals.h"
#include "dense/token_embedding_gpu.h"

namespace sparrow {
namespace {

using Place = Gpt2DropoutPlace;
using v1::TrainConfig;

constexpr int64_t kVocabularyMultiple = 128;
constexpr int64_t kLogitRowsMin = 1024;  // Fewer at one time keep no GPU busy.
constexpr size_t kAlignment = 256;       // Bytes, of each array in the memory of activations.

struct Linear {
  DeviceTensor weight;  // [out, in]
  DeviceTensor bias;
};
struct Norm {
  DeviceTensor weight;
  DeviceTensor bias;
};
struct Block {
  Norm ln_1;
  Linear c_attn;
  Linear attn_c_proj;
  Norm ln_2;
  Linear c_fc;
  Linear mlp_c_proj;
};

// What a block's forward pass leaves for its backward pass: what takes a product or attention to compute,
struct BlockActivations {
  DeviceMatrix qkv;
  float* log_sums = nullptr;
  DeviceMatrix attended;
  DeviceMatrix middle;  // The residual sum between the two parts.
  DeviceMatrix fc;      // Before GELU.
};
// and what follows from those and the block's input element by element or row by row.
struct CheapActivations {
  DeviceMatrix normal_1, normal_2;
  RowMoments* moments_1 = nullptr;
  RowMoments* moments_2 = nullptr;
  DeviceMatrix gelu;
};

// All of a model's activations, in one piece of GPU memory, with room for the most rows.
struct Activations {
  std::vector<DeviceMatrix> residual;    // [layers + 1]: the input of each block, and the last one's output.
  std::vector<BlockActivations> blocks;  // [layers], or one for all that are computed again.
  std::vector<CheapActivations> cheap;   // The same.
  DeviceMatrix normal;                   // Of the last norm.
  RowMoments* moments = nullptr;
  DeviceMatrix logits;  // Its rows are those that are there at one time.
  float* row_losses = nullptr;
  DeviceMatrix branch;    // What is added to the residual sum next; backward: gradients by a norm's output.
  DeviceMatrix gradient;  // By the residual sum, as backward goes down.
  DeviceMatrix dropped;   // The same behind a dropout; without dropout it is the gradient.
  DeviceMatrix attended_gradient;
  DeviceMatrix qkv_gradient;
  DeviceMatrix fc_gradient;
  float* norm_workspace = nullptr;
};

TensorForms FormsOf(const Gpt2Layout& layout) {
  TensorForms forms;
  forms[layout.wte.name] = {.rows_multiple = kVocabularyMultiple};
  for (const Gpt2Block& block : layout.blocks) {
    for (const Gpt2Linear* linear : {&block.c_attn, &block.attn_c_proj, &block.c_fc, &block.mlp_c_proj}) {
      forms[linear->weight.name] = {.transposed = true};
    }
  }
  return forms;
}

// Vectors of all blocks lie together, and are complete when the last of them is; the embeddings, when all is.
std::vector<int64_t> CutsOf(const Gpt2Layout& layout, const DeviceLayout& places) {
  const Gpt2Block& first = layout.blocks[0];
  return {places.at(first.c_attn.weight.name).offset, places.at(first.ln_1.weight.name).offset};
}

// Where gradients of a ring of so many floats a bucket lie.
std::vector<GradientSegment> RingOf(const Gpt2Layout& layout, const DeviceLayout& places, int64_t floats) {
  return MakeGradientRing(
      MakeGradientBuckets(places.Offsets(), places.size() + kStepTotals, floats, CutsOf(layout, places)));
}

class Gpt2Gpu final : public LanguageModelGpu {
 public:
  Gpt2Gpu(const v1::Gpt2& config, const Options& options, const Gpt2Layout& layout,
          std::unique_ptr<DeviceParameters> parameters, ProductsGpu products, AttentionGpu attention,
          TokenEmbeddingBackwardGpu embedding)
      : LanguageModelGpu(std::move(parameters)),
        config_(config),
        options_(options),
        width_(config.width()),
        rows_max_(options.sequences_max * config.context()),
        products_(std::move(products)),
        attention_(std::move(attention)),
        embedding_(std::move(embedding)) {
    const DeviceLayout& places = parameters_->layout();
    const auto norm = [&](const Gpt2Norm& it) { return Norm{places.at(it.weight.name), places.at(it.bias.name)}; };
    const auto linear = [&](const Gpt2Linear& it) {
      return Linear{places.at(it.weight.name), places.at(it.bias.name)};
    };
    wte_ = places.at(layout.wte.name);
    wpe_ = places.at(layout.wpe.name);
    ln_f_ = norm(layout.ln_f);
    for (const Gpt2Block& block : layout.blocks) {
      blocks_.push_back({.ln_1 = norm(block.ln_1),
                         .c_attn = linear(block.c_attn),
                         .attn_c_proj = linear(block.attn_c_proj),
                         .ln_2 = norm(block.ln_2),
                         .c_fc = linear(block.c_fc),
                         .mlp_c_proj = linear(block.mlp_c_proj)});
    }
    decayed_ = blocks_[0].ln_1.weight.offset;
    cuts_ = CutsOf(layout, places);
  }

  // Takes the memory of activations: of all logits if they fit, else of a half, a quarter, ...
  absl::Status Allocate() {
    Activations nowhere;
    int64_t logit_rows = rows_max_;
    const uint64_t spare = options_.spare_bytes + internal::kGpuSpareBytes;
    while (logit_rows / 2 >= kLogitRowsMin && Put(&nowhere, logit_rows, nullptr) + spare > GpuMemoryNow().free) {
      logit_rows = (logit_rows + 1) / 2;
    }
    ASSIGN_OR_RETURN(DeviceBuffer<char> memory,
                     AllocateOnDevice<char>(
                         Put(&nowhere, logit_rows, nullptr),
                         absl::StrCat("the activations of ", options_.sequences_max, " windows of ", config_.context(),
                                      " tokens (train.micro_batch_size and train.recompute make "
                                      "them fewer)")));
    memory_.emplace(std::move(memory));
    Put(&all_, logit_rows, memory_->data());
    return absl::OkStatus();
  }

  size_t places_bytes() const override { return sizeof(DropoutStep) + config_.layers() * sizeof(DropoutPlaceGpu); }

  void PutPlaces(const DropoutPlace& place, char* places) const override {
    const DropoutStep step{.seed = Gpt2DropoutSeed(options_.seed, place.step), .first_sequence = place.first_sequence};
    std::memcpy(places, &step, sizeof(step));
    for (uint64_t b = 0; b < config_.layers(); ++b) {
      const DropoutPlaceGpu weights{.stream = RandomBits(step.seed, NumberOf(b, Place::kAttentionWeights)),
                                    .first_sequence = place.first_sequence};
      std::memcpy(places + sizeof(step) + b * sizeof(weights), &weights, sizeof(weights));
    }
  }

  int64_t decayed() const override { return decayed_; }

  std::vector<int64_t> gradient_cuts() const override { return cuts_; }

  void Loss(const Batch& batch, const Stream& stream) override {
    Begin(batch, /*training=*/false);
    Forward(stream);
    Head(stream);
  }

  void ForwardLoss(const Batch& batch, const Stream& stream) override {
    Begin(batch, /*training=*/true);
    if (batch.first) {  // Where gradients are only ever added to.
      const int64_t size = parameters_->layout().size();
      Zero(parameters_->gradients(wpe_), wpe_.rows * wpe_.cols, stream);
      Zero(parameters_->gradients_at(decayed_), size - decayed_, stream);
    }
    Forward(stream);
    Head(stream);
  }

  void Backward(const Batch& batch, const Stream& stream) override {
    Begin(batch, /*training=*/true);
    const Slice last = SliceOf(slices() - 1);
    HeadBackward(last, stream);
    NormBackward(ln_f_, all_.residual.back(), all_.moments, Write::kOverwrite,
                 Dropping(config_.layers() - 1, Place::kMlpEnd), stream);
    for (uint64_t b = config_.layers(); b-- > 0;) BlockBackward(b, stream);
    embedding_.Group(batch_.tokens, rows_, stream);
    embedding_.Run(options_.precision, batch_.length, /*dropout=*/{}, Rows(all_.dropped), GradientsOf(wte_),
                   GradientsOf(wpe_), stream);
    TellQueued({wte_, wpe_}, stream);
  }

  uint64_t activation_bytes() const override { return memory_->size(); }

  std::string Describe() const override {
    return absl::StrFormat("activations of %.2f GiB, logits of %d of %d rows at a time; %s",
                           static_cast<double>(memory_->size()) / (1 << 30), all_.logits.rows, rows_max_,
                           attention_.Describe());
  }

 private:
  // Rows of a batch whose logits are there at one time.
  struct Slice {
    int64_t begin = 0;
    int64_t end = 0;
  };

  static uint64_t NumberOf(uint64_t block, Place place) {
    return block * kGpt2DropoutPlaces + static_cast<uint64_t>(place);
  }

  // Lays everything out from `base` on, and returns how many bytes that takes.
  size_t Put(Activations* to, int64_t logit_rows, char* base) const {
    size_t bytes = 0;
    const auto take = [&](size_t size) {
      char* const at = base == nullptr ? nullptr : base + bytes;
      bytes += (size + kAlignment - 1) / kAlignment * kAlignment;
      return at;
    };
    const auto matrix_of = [&](int64_t rows, int64_t cols) {
      void* const data = take(static_cast<size_t>(rows * cols) * ElementBytes(options_.precision));
      return DeviceMatrix{.data = data, .rows = rows, .cols = cols, .stride = cols};
    };
    const auto matrix = [&](int64_t cols) { return matrix_of(rows_max_, cols); };
    const auto moments = [&] {
      return reinterpret_cast<RowMoments*>(take(static_cast<size_t>(rows_max_) * sizeof(RowMoments)));
    };
    const auto floats = [&](size_t n) { return reinterpret_cast<float*>(take(n * sizeof(float))); };
    const int64_t layers = config_.layers();
    *to = {};
    for (int64_t b = 0; b <= layers; ++b) to->residual.push_back(matrix(width_));
    const int64_t kept = options_.recompute == TrainConfig::BLOCKS ? 1 : layers;
    for (int64_t b = 0; b < kept; ++b) {
      to->blocks.push_back({.qkv = matrix(3 * width_),
                            .log_sums = floats(static_cast<size_t>(rows_max_) * config_.heads()),
                            .attended = matrix(width_),
                            .middle = matrix(width_),
                            .fc = matrix(4 * width_)});
    }
    const int64_t kept_cheap = options_.recompute == TrainConfig::NOTHING ? layers : 1;
    for (int64_t b = 0; b < kept_cheap; ++b) {
      to->cheap.push_back({.normal_1 = matrix(width_),
                           .normal_2 = matrix(width_),
                           .moments_1 = moments(),
                           .moments_2 = moments(),
                           .gelu = matrix(4 * width_)});
    }
    to->normal = matrix(width_);
    to->moments = moments();
    to->logits = matrix_of(logit_rows, wte_.rows);
    to->row_losses = floats(static_cast<size_t>(logit_rows));
    to->branch = matrix(width_);
    to->gradient = matrix(width_);
    to->dropped = config_.dropout() > 0 ? matrix(width_) : to->gradient;
    to->attended_gradient = matrix(width_);
    to->qkv_gradient = matrix(3 * width_);
    to->fc_gradient = matrix(4 * width_);
    to->norm_workspace = floats(LayerNormWorkspaceFloats(rows_max_, width_));
    return bytes;
  }

  void Begin(const Batch& batch, bool training) {
    CHECK(batch.sequences > 0 && batch.sequences <= options_.sequences_max && batch.counted <= batch.sequences);
    CHECK(batch.length > 0 && batch.length <= config_.context());
    batch_ = batch;
    training_ = training;
    dropping_ = training && config_.dropout() > 0;
    rows_ = batch.sequences * batch.length;
    shape_ = {.sequences = batch.sequences,
              .length = batch.length,
              .heads = config_.heads(),
              .head_width = width_ / config_.heads()};
  }

  static void Zero(float* values, int64_t count, const Stream& stream) {
    internal::FillDevice(values, 0, static_cast<size_t>(count) * sizeof(float), stream);
  }

  // Of the present batch.
  DeviceMatrix Rows(const DeviceMatrix& matrix) const { return Rows(matrix, {0, rows_}); }
  DeviceMatrix Rows(DeviceMatrix matrix, const Slice& slice) const {
    matrix.data = static_cast<char*>(matrix.data) +
                  static_cast<size_t>(slice.begin * matrix.stride) * ElementBytes(options_.precision);
    matrix.rows = slice.end - slice.begin;
    return matrix;
  }

  const void* Vector(const DeviceTensor& tensor) { return parameters_->vector(tensor); }
  DeviceMatrix GradientsOf(const DeviceTensor& tensor) {
    return {.data = parameters_->gradients(tensor), .rows = tensor.rows, .cols = tensor.cols, .stride = tensor.cols};
  }

  DropoutGpu Dropping(uint64_t block, Place place) const {
    if (!dropping_) return {};
    return DropoutGpu::Of(config_.dropout(), reinterpret_cast<const DropoutStep*>(batch_.places),
                          NumberOf(block, place), static_cast<uint64_t>(batch_.length * width_));
  }
  AttentionDropoutGpu DroppingWeights(uint64_t block) const {
    if (!dropping_) return {};
    const Dropout dropout = Dropout::Of(config_.dropout(), /*stream=*/0);
    return {.place = reinterpret_cast<const DropoutPlaceGpu*>(batch_.places + sizeof(DropoutStep)) + block,
            .threshold = dropout.threshold};
  }

  // Of a block, or the one for all.
  const BlockActivations& Kept(uint64_t b) const { return all_.blocks[std::min<uint64_t>(b, all_.blocks.size() - 1)]; }
  const CheapActivations& Cheap(uint64_t b) const { return all_.cheap[std::min<uint64_t>(b, all_.cheap.size() - 1)]; }

  // sum = residual + dropped branch (none: the residual, which is there), y = its norm.
  void NormForward(const Norm& norm, const DeviceMatrix& residual, bool with_branch, const DropoutGpu& dropout,
                   const DeviceMatrix& sum, RowMoments* moments, const DeviceMatrix& y, const Stream& stream) {
    AddLayerNormForwardGpu(options_.precision, Rows(residual), with_branch ? Rows(all_.branch) : DeviceMatrix{},
                           dropout, with_branch ? Rows(sum) : DeviceMatrix{}, Vector(norm.weight), Vector(norm.bias),
                           moments, Rows(y), stream);
  }

  void LinearForward(const Linear& linear, const DeviceMatrix& x, const DeviceMatrix& y, const Stream& stream) {
    products_.Forward(Rows(x), parameters_->matrix(linear.weight), Vector(linear.bias), /*relu=*/false, Rows(y),
                      /*relu_mask=*/nullptr, stream);
  }

  // From a block's input and its first norm to what its last layer takes.
  void BlockForward(uint64_t b, const Stream& stream) {
    const Block& block = blocks_[b];
    const BlockActivations& kept = Kept(b);
    const CheapActivations& cheap = Cheap(b);
    LinearForward(block.c_attn, cheap.normal_1, kept.qkv, stream);
    attention_.Forward(shape_, Rows(kept.qkv), DroppingWeights(b), Rows(kept.attended), kept.log_sums, stream);
    LinearForward(block.attn_c_proj, kept.attended, all_.branch, stream);
    NormForward(block.ln_2, all_.residual[b], /*with_branch=*/true, Dropping(b, Place::kAttentionEnd), kept.middle,
                cheap.moments_2, cheap.normal_2, stream);
    products_.ForwardGelu(Rows(cheap.normal_2), parameters_->matrix(block.c_fc.weight), Vector(block.c_fc.bias),
                          Rows(kept.fc), Rows(cheap.gelu), stream);
  }

  // Up to the last norm.
  void Forward(const Stream& stream) {
    TokenEmbeddingForwardGpu(options_.precision, batch_.tokens, batch_.length, parameters_->matrix(wte_),
                             parameters_->matrix(wpe_), Dropping(config_.layers(), Place::kEmbedding),
                             Rows(all_.residual[0]), stream);
    for (uint64_t b = 0; b < config_.layers(); ++b) {
      const CheapActivations& cheap = Cheap(b);
      const DeviceMatrix& before = b == 0 ? all_.residual[0] : Kept(b - 1).middle;
      NormForward(blocks_[b].ln_1, before, /*with_branch=*/b > 0,
                  b == 0 ? DropoutGpu{} : Dropping(b - 1, Place::kMlpEnd), all_.residual[b], cheap.moments_1,
                  cheap.normal_1, stream);
      BlockForward(b, stream);
      LinearForward(blocks_[b].mlp_c_proj, cheap.gelu, all_.branch, stream);
    }
    NormForward(ln_f_, Kept(config_.layers() - 1).middle, /*with_branch=*/true,
                Dropping(config_.layers() - 1, Place::kMlpEnd), all_.residual.back(), all_.moments, all_.normal,
                stream);
  }

  int64_t slices() const { return (rows_ + all_.logits.rows - 1) / all_.logits.rows; }
  Slice SliceOf(int64_t i) const {
    return {.begin = i * all_.logits.rows, .end = std::min(rows_, (i + 1) * all_.logits.rows)};
  }

  // The loss; in training also the gradients of all slices but the last, which Backward begins with, as its logits
  // are still there.
  void Head(const Stream& stream) {
    for (int64_t i = 0; i < slices(); ++i) {
      const Slice slice = SliceOf(i);
      DeviceMatrix logits = Rows(all_.logits, {0, slice.end - slice.begin});
      products_.Forward(Rows(all_.normal, slice), parameters_->matrix(wte_), /*b=*/nullptr, /*relu=*/false, logits,
                        /*relu_mask=*/nullptr, stream);
      const int64_t counted = std::clamp<int64_t>(batch_.counted * batch_.length - slice.begin, 0, logits.rows);
      if (training_ && counted < logits.rows) {
        const DeviceMatrix rest = Rows(logits, {counted, logits.rows});
        internal::FillDevice(rest.data, 0,
                             static_cast<size_t>(rest.rows * rest.stride) * ElementBytes(options_.precision), stream);
      }
      logits.rows = counted;
      SoftmaxLossGpu(options_.precision, logits, batch_.targets + slice.begin, config_.vocabulary(),
                     training_ ? batch_.loss_scale : nullptr, all_.row_losses, batch_.loss_sum, stream);
      if (training_ && i + 1 < slices()) HeadBackward(slice, stream);
    }
  }

  // From the gradients by a slice's logits, which lie in their place, to those of the head and by the last norm.
  void HeadBackward(const Slice& slice, const Stream& stream) {
    const DeviceMatrix logits = Rows(all_.logits, {0, slice.end - slice.begin});
    WeightGradients({.y_gradients = logits, .x = Rows(all_.normal, slice), .w_gradients = parameters_->gradients(wte_)},
                    batch_.first && slice.begin == 0, stream);
    products_.BackwardInput(logits, parameters_->matrix(wte_), /*relu_mask=*/nullptr, /*add=*/false,
                            Rows(all_.branch, slice), stream);
  }

  // Backward adds nothing more to the gradients of these.
  void TellQueued(std::initializer_list<DeviceTensor> tensors, const Stream& stream) {
    if (queued_ == nullptr) return;
    for (const DeviceTensor& tensor : tensors) queued_(parameters_->gradients(tensor), stream);
  }

  void WeightGradients(const LayerGradients& layer, bool first, const Stream& stream) {
    if (first) {
      products_.BackwardWeights(layer.y_gradients, layer.x, layer.w_gradients, layer.b_gradients, stream);
    } else {
      products_.AddBackwardWeights(layer, stream);
    }
  }

  void LinearGradients(const Linear& linear, const DeviceMatrix& x, const DeviceMatrix& y_gradients,
                       const Stream& stream) {
    WeightGradients({.y_gradients = Rows(y_gradients),
                     .x = Rows(x),
                     .w_gradients = parameters_->gradients(linear.weight),
                     .b_gradients = parameters_->gradients(linear.bias)},
                    batch_.first, stream);
    TellQueued({linear.weight, linear.bias}, stream);
  }
  void LinearBackward(const Linear& linear, const DeviceMatrix& x, const DeviceMatrix& y_gradients,
                      const DeviceMatrix& x_gradients, const Stream& stream) {
    LinearGradients(linear, x, y_gradients, stream);
    products_.BackwardInput(Rows(y_gradients), parameters_->matrix(linear.weight), /*relu_mask=*/nullptr,
                            /*add=*/false, Rows(x_gradients), stream);
  }

  // From gradients by a norm's output, which lie in branch, to those by the residual sum, in gradient, and behind the
  // dropout of what was added to that sum last, in dropped.
  void NormBackward(const Norm& norm, const DeviceMatrix& x, const RowMoments* moments, Write write,
                    const DropoutGpu& dropout, const Stream& stream) {
    LayerNormGradients gradients{.write = write,
                                 .x_gradients = Rows(all_.gradient),
                                 .dropout = dropout,
                                 .weight_gradients = parameters_->gradients(norm.weight),
                                 .bias_gradients = parameters_->gradients(norm.bias)};
    if (dropping_) gradients.branch_gradients = Rows(all_.dropped);
    LayerNormBackwardGpu(options_.precision, Rows(all_.branch), Rows(x), Vector(norm.weight), moments, gradients,
                         all_.norm_workspace, stream);
    TellQueued({norm.weight, norm.bias}, stream);
  }

  void ComputeAgain(uint64_t b, const Stream& stream) {
    if (options_.recompute == TrainConfig::NOTHING) return;
    const CheapActivations& cheap = Cheap(b);
    NormForward(blocks_[b].ln_1, all_.residual[b], /*with_branch=*/false, {}, {}, cheap.moments_1, cheap.normal_1,
                stream);
    if (options_.recompute == TrainConfig::BLOCKS) {
      BlockForward(b, stream);
      return;
    }
    NormForward(blocks_[b].ln_2, Kept(b).middle, /*with_branch=*/false, {}, {}, cheap.moments_2, cheap.normal_2,
                stream);
    GeluForwardGpu(options_.precision, Rows(Kept(b).fc), Rows(cheap.gelu), stream);
  }

  // Takes gradient and dropped from residual[b + 1] to residual[b].
  void BlockBackward(uint64_t b, const Stream& stream) {
    const Block& block = blocks_[b];
    const BlockActivations& kept = Kept(b);
    const CheapActivations& cheap = Cheap(b);
    ComputeAgain(b, stream);

    LinearGradients(block.mlp_c_proj, cheap.gelu, all_.dropped, stream);
    products_.BackwardThroughGelu(Rows(all_.dropped), parameters_->matrix(block.mlp_c_proj.weight), Rows(kept.fc),
                                  Rows(all_.fc_gradient), stream);
    LinearBackward(block.c_fc, cheap.normal_2, all_.fc_gradient, all_.branch, stream);
    NormBackward(block.ln_2, kept.middle, cheap.moments_2, Write::kAdd, Dropping(b, Place::kAttentionEnd), stream);

    LinearBackward(block.attn_c_proj, kept.attended, all_.dropped, all_.attended_gradient, stream);
    attention_.Backward(shape_, Rows(kept.qkv), Rows(kept.attended), kept.log_sums, DroppingWeights(b),
                        Rows(all_.attended_gradient), Rows(all_.qkv_gradient), stream);
    LinearBackward(block.c_attn, cheap.normal_1, all_.qkv_gradient, all_.branch, stream);
    NormBackward(block.ln_1, all_.residual[b], cheap.moments_1, Write::kAdd,
                 b > 0 ? Dropping(b - 1, Place::kMlpEnd) : Dropping(config_.layers(), Place::kEmbedding), stream);
  }

  const v1::Gpt2 config_;
  const Options options_;
  const int64_t width_;
  const int64_t rows_max_;
  ProductsGpu products_;
  AttentionGpu attention_;
  TokenEmbeddingBackwardGpu embedding_;
  DeviceTensor wte_, wpe_;
  Norm ln_f_;
  std::vector<Block> blocks_;
  int64_t decayed_ = 0;
  std::vector<int64_t> cuts_;
  std::optional<DeviceBuffer<char>> memory_;
  Activations all_;

  // Of the present call:
  Batch batch_;
  AttentionShape shape_;
  int64_t rows_ = 0;
  bool training_ = false;
  bool dropping_ = false;
};

}  // namespace

Gpt2Bytes Gpt2BytesGpu(const v1::Gpt2& config, const LanguageModelGpu::Options& options, uint64_t free_bytes) {
  const Gpt2Layout layout(config);
  const DeviceLayout places(layout.parameters.parameters(), FormsOf(layout));
  const double parameters = static_cast<double>(places.size());
  const double layers = config.layers(), width = config.width(), heads = config.heads();
  const double e = static_cast<double>(ElementBytes(options.precision));
  const int64_t rows = options.sequences_max * config.context();
  const double kept = options.recompute == TrainConfig::BLOCKS ? 1 : layers;
  const double kept_cheap = options.recompute == TrainConfig::NOTHING ? layers : 1;
  const double row = layers * e * width + kept * (e * 9 * width + 4 * heads) + kept_cheap * (e * 6 * width + 16) +
                     e * (config.dropout() > 0 ? 13 : 12) * width + 8;
  const double attention_rows = static_cast<double>(options.sequences_max) * std::ceil(config.context() / 64.0) * 64;
  int64_t gradients = options.ring_floats > 0 ? 0 : places.size();
  if (options.ring_floats > 0) {
    for (const GradientSegment& segment : RingOf(layout, places, options.ring_floats)) {
      gradients = std::max(gradients, segment.at + segment.end - segment.begin);
    }
  }
  Gpt2Bytes bytes{.weights = parameters * (e == 2 ? 6 : 4),
                  .gradients = 4.0 * static_cast<double>(gradients),
                  .workspaces = kProductsWorkspaceBytes + 8 * heads * attention_rows +
                                static_cast<double>(rows) * (20 + width / 4) +
                                sizeof(float) * static_cast<double>(LayerNormWorkspaceFloats(rows, config.width()))};
  const double spare = static_cast<double>(options.spare_bytes + internal::kGpuSpareBytes);
  int64_t logit_rows = rows;
  const auto with_logits = [&] {
    return static_cast<double>(rows) * row +
           static_cast<double>(logit_rows) * (e * static_cast<double>(places.at(layout.wte.name).rows) + 4);
  };
  while (logit_rows / 2 >= kLogitRowsMin && bytes.total() + with_logits() + spare > static_cast<double>(free_bytes)) {
    logit_rows = (logit_rows + 1) / 2;
  }
  bytes.activations = with_logits();
  return bytes;
}

absl::StatusOr<std::unique_ptr<LanguageModelGpu>> MakeGpt2Gpu(const v1::Gpt2& config, const LanguageModel& model,
                                                              const LanguageModelGpu::Options& options,
                                                              const Stream& stream) {
  if (config.width() % kColumnsMultiple != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.gpt2.width is ", config.width(), "; on a GPU it is a multiple of ", kColumnsMultiple));
  }
  const AttentionShape largest{.sequences = options.sequences_max,
                               .length = config.context(),
                               .heads = config.heads(),
                               .head_width = config.width() / config.heads()};
  const auto micro_batch = [&] {
    return absl::StrCat(largest.sequences, " windows of ", largest.length, " tokens at a time");
  };
  if (largest.rows() > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat(micro_batch(), " are ", largest.rows(), ", and a GPU takes ",
                                                   std::numeric_limits<int32_t>::max(),
                                                   " at most; lower train.micro_batch_size"));
  }
  const Gpt2Layout layout(config);
  DeviceLayout places(layout.parameters.parameters(), FormsOf(layout));
  std::vector<GradientSegment> segments;
  if (options.ring_floats > 0) segments = RingOf(layout, places, options.ring_floats);
  ASSIGN_OR_RETURN(DeviceParameters made,
                   DeviceParameters::Make(std::move(places), options.precision, stream, std::move(segments)));
  auto parameters = std::make_unique<DeviceParameters>(std::move(made));
  parameters->Set(model.weights(), stream);
  std::optional<ProductsGpu> products = ProductsGpu::Make(
      {.precision = options.precision, .deterministic = options.deterministic, .plan_file = options.plan_file}, stream);
  if (!products.has_value()) {
    return GpuIsOutOfMemory(absl::StrCat("matrix products work in ", kProductsWorkspaceBytes, " bytes"));
  }
  std::optional<AttentionGpu> attention = AttentionGpu::Make(largest, options.precision);
  if (!attention.has_value()) {
    return GpuIsOutOfMemory(absl::StrCat("attention keeps some 8 bytes for each of ", largest.heads, " heads and of ",
                                         micro_batch(), "; lower train.micro_batch_size"));
  }
  std::optional<TokenEmbeddingBackwardGpu> embedding =
      TokenEmbeddingBackwardGpu::Make(largest.rows(), static_cast<int64_t>(config.width()), stream);
  if (!embedding.has_value()) {
    return GpuIsOutOfMemory(absl::StrCat("gradients of tokens' vectors need some ", 20 + config.width() / 4,
                                         " bytes for each of ", micro_batch(), "; lower train.micro_batch_size"));
  }
  auto gpt2 = std::make_unique<Gpt2Gpu>(config, options, layout, std::move(parameters), *std::move(products),
                                        *std::move(attention), *std::move(embedding));
  RETURN_IF_ERROR(gpt2->Allocate());
  return gpt2;
}

}  // namespace sparrow
