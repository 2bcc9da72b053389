#ifndef SPARROW_TESTS_SUPPORT_SPARSE_BATCH_H_
#define SPARROW_TESTS_SUPPORT_SPARSE_BATCH_H_

// Random batches of bags and gradients, on the host and in GPU memory, and records of rows: for tests of the sparse
// update's twins.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "base/cuda/device_buffer.h"
#include "base/random.h"
#include "embedding/row_type.h"
#include "embedding/sparse_update.h"
#include "embedding/sparse_update_gpu.h"
#include "tests/support/gpu.h"

namespace sparrow {

struct BatchShape {
  uint32_t features = 2;
  uint32_t samples = 0;
  uint32_t slots = 0;
  uint32_t dim = 0;
  uint32_t stride = 0;
  std::vector<uint32_t> columns = {};
  bool weighted = false;
  bool mean = false;  // Of every other feature.
  ElementType type = ElementType::kFloat32;
  uint32_t lookups_min = 0;  // A bag; lengths are 0 and powers of two, so that a mean's factor is exact.
  uint32_t lookups_max = 4;
  uint32_t used = 0xffffffff;  // Samples behind these have empty bags.
  bool exact = true;           // Gradients are small multiples of 1/64, so that every sum is exact in any order.
};

// One batch: features, gradients, the same row in several of them.
struct SparseBatch {
  BatchShape shape;
  std::vector<std::vector<uint32_t>> offsets, index;  // By feature.
  std::vector<std::vector<float>> weights;
  std::vector<float> gradients;  // That the shape's type holds.

  Pooling PoolingOf(uint32_t f) const { return shape.mean && f % 2 == 0 ? Pooling::kMean : Pooling::kSum; }
  std::vector<Bags> CpuBags() const {
    std::vector<Bags> bags;
    for (uint32_t f = 0; f < shape.features; ++f) {
      bags.push_back({offsets[f], index[f], weights[f], PoolingOf(f)});
    }
    return bags;
  }
};

inline uint16_t To16Bits(ElementType type, float value) {
  uint64_t saturated = 0;
  return type == ElementType::kBfloat16 ? ToBfloat16(value, &saturated) : ToFloat16(value, &saturated);
}

inline float Rounded(ElementType type, float value) {
  if (type == ElementType::kFloat32) return value;
  const uint16_t bits = To16Bits(type, value);
  return type == ElementType::kBfloat16 ? FromBfloat16(bits) : FromFloat16(bits);
}

inline SparseBatch MakeBatch(const BatchShape& shape, uint64_t seed) {
  SparseBatch c{.shape = shape, .offsets = {}, .index = {}, .weights = {}, .gradients = {}};
  uint64_t n = 0;
  for (uint32_t f = 0; f < shape.features; ++f) {
    std::vector<uint32_t> offsets = {0}, index;
    std::vector<float> weights;
    for (uint32_t i = 0; i < shape.samples; ++i) {
      const uint64_t draw = RandomBits(seed, n++) % 4;
      uint32_t length = std::clamp(draw == 0 ? 0u : 1u << (draw - 1), shape.lookups_min, shape.lookups_max);
      if (i >= shape.used) length = 0;
      const float weight = RandomBits(seed, n++) % 2 == 0 ? 0.5f : 2.0f;
      for (uint32_t k = 0; k < length; ++k) {
        const double u = RandomUniform(seed, n++);
        index.push_back(static_cast<uint32_t>(u * u * shape.slots));
        if (shape.weighted) weights.push_back(weight);
      }
      offsets.push_back(static_cast<uint32_t>(index.size()));
    }
    c.offsets.push_back(std::move(offsets));
    c.index.push_back(std::move(index));
    c.weights.push_back(std::move(weights));
  }
  c.gradients.resize(uint64_t{shape.samples} * shape.stride);
  for (size_t i = 0; i < c.gradients.size(); ++i) {
    const uint64_t bits = RandomBits(seed + 1, i);
    const float sign = bits % 2 == 0 ? 1.0f : -1.0f;
    const float magnitude = shape.exact ? static_cast<float>(1 + (bits >> 8) % 16) / 64
                                        : static_cast<float>(0.01 + RandomUniform(seed + 1, i));
    c.gradients[i] = Rounded(shape.type, sign * magnitude);
  }
  return c;
}

// Records with random weights of either sign, positive state, and metadata of which some stand at their largest.
inline std::vector<char> MakeRecords(const TableSpec& spec, uint32_t slots, uint64_t seed) {
  const RowLayout layout = spec.Layout();
  std::vector<char> records(slots * layout.slot_bytes(), 0x5a);
  for (uint64_t slot = 0; slot < slots; ++slot) {
    char* record = records.data() + slot * layout.slot_bytes();
    for (uint32_t i = 0; i < spec.dim; ++i) {
      const uint64_t bits = RandomBits(seed, slot * 4096 + i);
      layout.Weights(record)[i] = (bits % 2 == 0 ? 1 : -1) * static_cast<float>(0.05 + (bits >> 40) * 0x1p-24);
    }
    for (uint32_t i = 0; i < layout.state_floats(); ++i) {
      layout.State(record)[i] = static_cast<float>(0.1 + RandomUniform(seed + 1, slot * 8193 + i));
    }
    const uint64_t bits = RandomBits(seed + 2, slot);
    layout.SetMetadata({.updates = bits % 7 == 0 ? 0xffffffffu : static_cast<uint32_t>(bits % 1000),
                        .frequency = bits % 5 == 0 ? 0xffffffffu : static_cast<uint32_t>(bits >> 40),
                        .last_step = bits},
                       record);
  }
  return records;
}

// A batch in GPU memory, in buffers for `lookups` look-ups, that another one of the shape can be put into.
class BatchOnDevice {
 public:
  BatchOnDevice(const SparseBatch& c, uint32_t lookups, const Stream& stream)
      : shape_(c.shape),
        size_{lookups, c.shape.slots, c.shape.dim},
        offsets_(Upload(std::vector<uint32_t>(size_t{c.shape.features} * c.shape.samples + 1), stream)),
        index_(Upload(std::vector<uint32_t>(lookups), stream)),
        weights_(Upload(std::vector<float>(c.shape.weighted ? lookups : 0), stream)),
        means_(Upload(Means(c), stream)),
        gradients_(Upload(Encoded(c), stream)),
        columns_(Upload(c.shape.columns, stream)),
        bad_rows_(Upload(std::vector<uint64_t>{0}, stream)),
        workspace_(Upload(std::vector<char>(SparseUpdateWorkspaceBytes(size_), '\xff'), stream)) {
    Put(c, stream);
  }

  void Put(const SparseBatch& c, const Stream& stream) {
    std::vector<uint32_t> offsets = {0}, index;
    std::vector<float> weights;
    for (uint32_t f = 0; f < shape_.features; ++f) {
      for (uint32_t i = 0; i < shape_.samples; ++i) {
        offsets.push_back(static_cast<uint32_t>(index.size()) + c.offsets[f][i + 1]);
      }
      index.insert(index.end(), c.index[f].begin(), c.index[f].end());
      weights.insert(weights.end(), c.weights[f].begin(), c.weights[f].end());
    }
    CHECK_LE(index.size(), size_.lookups);
    index.resize(size_.lookups, 0x7fffffff);
    if (shape_.weighted) weights.resize(size_.lookups, std::numeric_limits<float>::quiet_NaN());
    const std::vector<char> gradients = Encoded(c);
    offsets_.CopyFrom(offsets, stream);
    index_.CopyFrom(index, stream);
    weights_.CopyFrom(weights, stream);
    gradients_.CopyFrom(gradients, stream);
    stream.Synchronize();
  }

  DeviceBags bags() const {
    return {.offsets = offsets_.data(),
            .index = index_.data(),
            .weights = shape_.weighted ? weights_.data() : nullptr,
            .mean = shape_.mean ? means_.data() : nullptr,
            .features = shape_.features,
            .samples = shape_.samples};
  }
  DevicePooled gradients() { return Pooled(gradients_.data(), shape_.type); }
  DevicePooled Pooled(void* values, ElementType type) const {
    const bool fours =
        std::all_of(shape_.columns.begin(), shape_.columns.end(), [](uint32_t column) { return column % 4 == 0; });
    return {values, type, columns_.data(), shape_.stride, fours};
  }

  void Group(const Stream& stream) { GroupLookupsGpu(bags(), size_, workspace(), stream); }
  void Update(const TableSpec& spec, const SparseStep* step, char* records, const Stream& stream) {
    SparseUpdateGpu(bags(), size_, gradients(), spec.optimizer, step, {records, spec.Layout()}, bad_rows_.data(),
                    workspace(), stream);
  }
  void Sum(float* sums, const Stream& stream) {
    SumGradientsGpu(bags(), size_, gradients(), sums, bad_rows_.data(), workspace(), stream);
  }
  uint64_t BadRows(const Stream& stream) const { return Download(bad_rows_, stream)[0]; }

 private:
  static std::vector<uint8_t> Means(const SparseBatch& c) {
    std::vector<uint8_t> means;
    for (uint32_t f = 0; f < c.shape.features; ++f) means.push_back(c.PoolingOf(f) == Pooling::kMean ? 1 : 0);
    return means;
  }
  static std::vector<char> Encoded(const SparseBatch& c) {
    std::vector<char> bytes(c.gradients.size() * ElementBytes(c.shape.type));
    if (c.shape.type == ElementType::kFloat32) {
      std::copy_n(reinterpret_cast<const char*>(c.gradients.data()), bytes.size(), bytes.data());
      return bytes;
    }
    for (size_t i = 0; i < c.gradients.size(); ++i) {
      const uint16_t bits = To16Bits(c.shape.type, c.gradients[i]);
      std::memcpy(bytes.data() + 2 * i, &bits, 2);
    }
    return bytes;
  }
  DeviceWorkspace workspace() { return {workspace_.data(), workspace_.size()}; }

  const BatchShape shape_;
  const SparseUpdateSize size_;
  DeviceBuffer<uint32_t> offsets_, index_;
  DeviceBuffer<float> weights_;
  DeviceBuffer<uint8_t> means_;
  DeviceBuffer<char> gradients_;
  DeviceBuffer<uint32_t> columns_;
  DeviceBuffer<uint64_t> bad_rows_;
  DeviceBuffer<char> workspace_;
};

inline uint32_t LookupsOf(const SparseBatch& c) {
  size_t lookups = 0;
  for (const std::vector<uint32_t>& index : c.index) lookups += index.size();
  return static_cast<uint32_t>(lookups);
}

inline SparseStep StepOf(const ApplyOptions& options) {
  return {options.gradient_scale, options.learning_rate_factor, options.step};
}

}  // namespace sparrow

#endif  // SPARROW_TESTS_SUPPORT_SPARSE_BATCH_H_
