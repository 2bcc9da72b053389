#include "bench/worker/gpu_step_parts.h"

#include <google/protobuf/text_format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>
#include <thread>

#include "base/random.h"
#include "bench/support/zipf.h"
#include "dense/cast_gpu.h"
#include "sparrow/v1/job.pb.h"

namespace sparrow {
namespace {

constexpr double kZipfExponent = 1.05;

std::vector<float> RandomUniforms(uint64_t seed, size_t n) {
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = static_cast<float>(2 * RandomUniform(seed, i) - 1);
  return values;
}

uint64_t CountDistinct(const std::vector<uint32_t>& slots, uint64_t total) {
  std::vector<uint64_t> seen((total + 63) / 64);
  for (const uint32_t slot : slots) seen[slot / 64] |= uint64_t{1} << slot % 64;
  uint64_t count = 0;
  for (const uint64_t word : seen) count += static_cast<uint64_t>(std::popcount(word));
  return count;
}

}  // namespace

StepTables StepTables::Dlrm() {
  return {.rows = std::vector<uint64_t>(kStepFeatures, 1'000'000), .bags = std::vector<uint32_t>(kStepFeatures, 1)};
}

StepTables StepTables::Dcnv2(uint64_t rows_max) {
  StepTables tables{
      .rows = {40000000, 39060, 17295, 7424, 20265, 3,  7122,     1543,     63,       40000000, 3067956, 405282, 10,
               2209,     11938, 155,   4,    976,   14, 40000000, 40000000, 40000000, 590152,   12973,   108,    36},
      .bags = {3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1}};
  for (uint64_t& rows : tables.rows) rows = std::min(rows, rows_max);
  return tables;
}

uint64_t StepTables::total_rows() const { return std::accumulate(rows.begin(), rows.end(), uint64_t{0}); }

StepLookups::StepLookups(const StepTables& tables, uint32_t samples, bool zipf, bool as_names, const Stream& stream)
    : samples_(samples) {
  CHECK_EQ(tables.rows.size(), kStepFeatures);
  CHECK_EQ(tables.bags.size(), kStepFeatures);
  std::vector<uint32_t> offsets = {0};
  for (const uint32_t bag : tables.bags) {
    for (uint32_t i = 0; i < samples; ++i) offsets.push_back(offsets.back() + bag);
  }
  lookups_ = offsets.back();
  offsets_ = Upload(offsets, stream);
  std::map<uint64_t, Zipf> zipfs;
  if (zipf) {
    for (const uint64_t rows : tables.rows) zipfs.try_emplace(rows, rows, kZipfExponent);
  }
  struct Drawn {
    std::vector<uint32_t> index;
    std::vector<RowName> names;
    uint64_t distinct = 0;
  };
  std::vector<Drawn> batches(kStepBatches);
  const auto draw = [&](uint64_t batch) {
    Drawn& drawn = batches[batch];
    drawn.index.resize(lookups_);
    drawn.names.resize(as_names ? lookups_ : 0);
    uint64_t first = 0;
    size_t at = 0;
    for (uint32_t f = 0; f < kStepFeatures; ++f) {
      const uint64_t rows = tables.rows[f];
      const Zipf* const ranks = zipf ? &zipfs.at(rows) : nullptr;
      for (const size_t end = at + size_t{samples} * tables.bags[f]; at < end; ++at) {
        const double u = RandomUniform(100 + batch, at);
        const uint64_t rank = zipf ? ranks->Rank(u) : static_cast<uint64_t>(u * static_cast<double>(rows));
        const uint64_t row = rank * 2654435761u % rows;  // Frequent rows do not lie side by side.
        drawn.index[at] = static_cast<uint32_t>(first + row);
        if (as_names) drawn.names[at] = {row, f};
      }
      first += rows;
    }
    drawn.distinct = CountDistinct(drawn.index, first);
  };
  {
    std::vector<std::jthread> threads;  // A draw takes long: two cache misses.
    for (uint64_t batch = 0; batch < kStepBatches; ++batch) threads.emplace_back(draw, batch);
  }
  for (const Drawn& drawn : batches) {
    unique_rows_ += static_cast<double>(drawn.distinct) / kStepBatches;
    if (as_names) {
      index_.push_back(Allocate<uint32_t>(lookups_));
      names_.push_back(Upload(drawn.names, stream));
    } else {
      index_.push_back(Upload(drawn.index, stream));
    }
  }
}

DeviceBags StepLookups::Bags(int batch) const {
  return {.offsets = offsets_->data(),
          .index = index_[static_cast<size_t>(batch)].data(),
          .features = kStepFeatures,
          .samples = samples_,
          .lookups = lookups_};
}

DeviceNames StepLookups::Names(int batch) const {
  return {.data = names_[static_cast<size_t>(batch)].data(), .max = lookups_};
}

DeviceBuffer<char> RecordPattern(const RowLayout& layout, const Stream& stream) {
  std::vector<char> pattern(kPatternRows * layout.slot_bytes());  // State and metadata: 0.
  for (uint64_t row = 0; row < kPatternRows; ++row) {
    float* const weights = layout.Weights(pattern.data() + row * layout.slot_bytes());
    for (uint64_t i = 0; i < kStepDim; ++i) {
      weights[i] = static_cast<float>(0.2 * RandomUniform(5, row * kStepDim + i) - 0.1);
    }
  }
  return Upload(pattern, stream);
}

void FillWithPattern(const RowLayout& layout, uint64_t rows, DeviceBuffer<char>* memory, const Stream& stream) {
  const uint64_t slot_bytes = layout.slot_bytes();
  CHECK(rows * slot_bytes <= memory->size());
  const DeviceBuffer<char> pattern = RecordPattern(layout, stream);
  for (uint64_t row = 0; row < rows; row += kPatternRows) {
    const uint64_t some = std::min<uint64_t>(kPatternRows, rows - row);
    internal::CopyOnDevice(memory->data() + row * slot_bytes, pattern.data(), some * slot_bytes, stream);
  }
  stream.Synchronize();
}

StepModel::StepModel(const std::string& config_text, int64_t rows, const std::string& plan_file, const Stream& stream)
    : rows_(rows),
      dense_(Allocate<float>(static_cast<size_t>(rows) * kStepDense)),
      labels_(Allocate<float>(static_cast<size_t>(rows))),
      samples_(Upload(std::vector<uint32_t>{static_cast<uint32_t>(rows)}, stream)),
      scale_(Upload(std::vector<float>{1.0f}, stream)),
      options_(Upload(std::vector<DenseStepOptions>{{.gradient_scale = 1.0 / static_cast<double>(rows)}}, stream)),
      logits_(Allocate<float>(static_cast<size_t>(rows))),
      loss_(Allocate<double>(1)),
      columns_(Allocate<uint32_t>(kStepFeatures)) {
  v1::ModelConfig config;
  CHECK(google::protobuf::TextFormat::ParseFromString(config_text, &config));
  const ModelShape shape{.dense_columns = kStepDense, .feature_dims = std::vector<uint32_t>(kStepFeatures, kStepDim)};
  auto host = MakeModel(config, shape, 1);
  CHECK(host.ok()) << std::string(host.status().message());
  host_ = std::move(*host);
  auto model = MakeModelGpu(
      config, shape, *host_,
      {.precision = Precision::kBfloat16, .rows_max = rows, .deterministic = false, .plan_file = plan_file}, stream);
  CHECK(model.ok()) << std::string(model.status().message());
  model_ = std::move(*model);

  const std::vector<float> dense = RandomUniforms(1, dense_.size());
  dense_.CopyFrom(dense, stream);
  std::vector<float> labels = RandomUniforms(2, labels_.size());
  for (float& label : labels) label = label > 0.5f ? 1.0f : 0.0f;
  labels_.CopyFrom(labels, stream);
  std::vector<uint32_t> columns(kStepFeatures);
  for (uint32_t f = 0; f < kStepFeatures; ++f) columns[f] = f * kStepDim;
  columns_.CopyFrom(columns, stream);
  GiveVectors(stream);
  // The products choose now, with the GPU to themselves.
  model_->ForwardLoss(Batch(nullptr), stream);
  model_->Backward(Batch(nullptr), stream);
  stream.Synchronize();
}

void StepModel::Reset(const DenseRule& rule, const Stream& stream) {
  model_->parameters()->Set(std::as_const(*host_).weights(), stream);
  optimizer_ = DenseOptimizerGpu::Make(rule, model_->parameters()->layout().size(), stream);
  CHECK(optimizer_.has_value()) << "no GPU memory for the dense optimizer";
  stream.Synchronize();
}

void StepModel::GiveVectors(const Stream& stream) {
  constexpr int64_t kRows = 2048;  // Which repeat.
  const DeviceMatrix vectors = model_->sparse(rows_);
  const DeviceBuffer<float> values = Upload(RandomUniforms(3, static_cast<size_t>(kRows * vectors.cols)), stream);
  for (int64_t row = 0; row < rows_; row += kRows) {
    DeviceMatrix some = vectors;
    some.rows = std::min(kRows, rows_ - row);
    some.data = static_cast<uint16_t*>(vectors.data) + row * vectors.stride;
    CastGpu(Precision::kBfloat16, values.data(), vectors.cols, some, stream);
  }
  stream.Synchronize();
}

// Multiplications, twice (an addition each), three times (forward and two backward).
double StepModel::flops() const {
  double weights = 0;
  for (const Parameter& parameter : host_->parameters()) {
    if (parameter.shape.size() == 2) weights += static_cast<double>(parameter.size);
  }
  return 6.0 * weights * static_cast<double>(rows_);
}

double StepModel::Loss(const Stream& stream) const {
  std::vector<double> loss(1);
  loss_.CopyTo(loss, stream);
  stream.Synchronize();
  return loss[0] / static_cast<double>(rows_);
}

ModelGpu::Batch StepModel::Batch(const GatheredVectors* gathered) {
  return {.rows = rows_,
          .dense = dense_.data(),
          .labels = labels_.data(),
          .samples = samples_.data(),
          .loss_scale = scale_.data(),
          .logits = logits_.data(),
          .loss_sum = loss_.data(),
          .gathered = gathered};
}

DevicePooled StepModel::Pooled(const DeviceMatrix& vectors) const {
  return {.values = vectors.data,
          .type = ElementType::kBfloat16,
          .columns = columns_.data(),
          .stride = static_cast<uint32_t>(vectors.stride),
          .columns_divide_by_4 = true};
}

void StepModel::UpdateDense(const Stream& stream) {
  DeviceParameters* const parameters = model_->parameters();
  optimizer_->Step({.weights = parameters->weights(),
                    .gradients = parameters->gradients(),
                    .copy_type = WeightCopy::kBfloat16,
                    .copy = parameters->copy(),
                    .options = options_.data(),
                    .weights_ready = true},
                   stream);
}

}  // namespace sparrow
