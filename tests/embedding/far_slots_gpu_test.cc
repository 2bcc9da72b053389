// Rows whose records lie beyond the first 4 GiB of an array: numbers of slots fit 32 bits, places of bytes do not. The
// kernels of embedding/ on an array of 6 GiB, of which a few rows count, against the CPU half on those rows alone.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "base/random.h"
#include "embedding/row_cache_gpu.h"
#include "embedding/sparse_update_gpu.h"
#include "tests/support/gpu.h"
#include "tests/support/sparse_batch.h"

namespace sparrow {
namespace {

constexpr uint64_t kBytes = uint64_t{6} << 30;

class FarSlotsGpu : public OnGpu<> {};

// nullopt: this GPU has not 6 GiB free.
std::optional<DeviceBuffer<char>> Memory() { return DeviceBuffer<char>::Allocate(kBytes); }

// Slots around each multiple of 2 GiB, the first and the last, in ascending order.
std::vector<uint32_t> FarSlots(uint64_t slot_bytes) {
  const auto slots = static_cast<uint32_t>(kBytes / slot_bytes);
  std::vector<uint32_t> chosen = {0};
  for (uint64_t bytes = uint64_t{2} << 30; bytes < kBytes; bytes += uint64_t{2} << 30) {
    const auto slot = static_cast<uint32_t>(bytes / slot_bytes);
    chosen.insert(chosen.end(), {slot - 1, slot, slot + 1});
  }
  chosen.insert(chosen.end(), {slots - 2, slots - 1});
  return chosen;
}

BatchShape ShapeOf(uint32_t dim, uint32_t rows) {
  return {.samples = 257,
          .slots = rows,
          .dim = dim,
          .stride = 2 * dim,
          .columns = {0, dim},
          .weighted = true,
          .type = ElementType::kBfloat16};
}

TEST_F(FarSlotsGpu, PoolingAndUpdatesReachThem) {
  std::optional<DeviceBuffer<char>> memory = Memory();
  if (!memory.has_value()) GTEST_SKIP() << "no 6 GiB of GPU memory are free";
  const Stream stream;
  for (const SparseOptimizerKind kind : {SparseOptimizerKind::kSgd, SparseOptimizerKind::kRowwiseAdagrad}) {
    for (const uint32_t dim : {8u, 128u}) {
      SCOPED_TRACE(testing::Message() << "optimizer " << static_cast<int>(kind) << ", dim " << dim);
      const TableSpec spec{
          .name = "t", .dim = dim, .optimizer = {.kind = kind, .learning_rate = 0.5, .eps = 1e-3}, .initializer = {}};
      const RowLayout layout = spec.Layout();
      const size_t slot_bytes = layout.slot_bytes();
      const std::vector<uint32_t> far = FarSlots(slot_bytes);
      const auto rows = static_cast<uint32_t>(far.size());
      const SparseBatch near_batch = MakeBatch(ShapeOf(dim, rows), dim);
      SparseBatch batch = near_batch;
      batch.shape.slots = static_cast<uint32_t>(kBytes / slot_bytes);
      for (std::vector<uint32_t>& index : batch.index) {
        for (uint32_t& slot : index) slot = far[slot];
      }
      std::vector<char> records = MakeRecords(spec, rows, 3);
      for (uint32_t i = 0; i < rows; ++i) {
        internal::CopyToDevice(memory->data() + far[i] * slot_bytes, records.data() + i * slot_bytes, slot_bytes,
                               stream);
      }

      BatchOnDevice device(batch, LookupsOf(batch), stream);
      std::vector<float> weights, pooled(size_t{batch.shape.samples} * batch.shape.stride);
      for (uint32_t i = 0; i < rows; ++i) {
        const float* row = layout.Weights(records.data() + i * slot_bytes);
        weights.insert(weights.end(), row, row + dim);
      }
      for (uint32_t f = 0; f < batch.shape.features; ++f) {
        BagForwardCpu(near_batch.CpuBags()[f], weights, dim, pooled, batch.shape.stride, batch.shape.columns[f]);
      }
      auto output = Upload(std::vector<float>(pooled.size()), stream);
      BagsForwardGpu(device.bags(), DeviceRecords{memory->data(), layout}.Rows(),
                     device.Pooled(output.data(), ElementType::kFloat32), stream);
      EXPECT_TRUE(Download(output, stream) == pooled);

      const ApplyOptions options{.gradient_scale = 0.75, .learning_rate_factor = 0.6, .step = 7};
      const auto step = Upload(std::vector<SparseStep>{StepOf(options)}, stream);
      device.Group(stream);
      device.Update(spec, step.data(), memory->data(), stream);
      EXPECT_EQ(device.BadRows(stream), 0u);
      SparseUpdateCpu(spec, near_batch.CpuBags(), batch.shape.columns, batch.gradients, batch.shape.stride, options,
                      records);
      std::vector<char> actual(records.size());
      for (uint32_t i = 0; i < rows; ++i) {
        internal::CopyToHost(actual.data() + i * slot_bytes, memory->data() + far[i] * slot_bytes, slot_bytes, stream);
      }
      stream.Synchronize();
      for (uint32_t i = 0; i < rows; ++i) {
        EXPECT_EQ(std::memcmp(&actual[i * slot_bytes], &records[i * slot_bytes], slot_bytes), 0) << "slot " << far[i];
      }
    }
  }
}

TEST_F(FarSlotsGpu, SumsOfGradientsReachThem) {
  std::optional<DeviceBuffer<char>> memory = Memory();
  if (!memory.has_value()) GTEST_SKIP() << "no 6 GiB of GPU memory are free";
  constexpr uint32_t kDim = 128;
  const Stream stream;
  const std::vector<uint32_t> far = FarSlots(kDim * sizeof(float));
  const auto rows = static_cast<uint32_t>(far.size());
  const SparseBatch near_batch = MakeBatch(ShapeOf(kDim, rows), 5);
  SparseBatch batch = near_batch;
  batch.shape.slots = static_cast<uint32_t>(kBytes / (kDim * sizeof(float)));
  for (std::vector<uint32_t>& index : batch.index) {
    for (uint32_t& slot : index) slot = far[slot];
  }
  memory->Fill(0xff, stream);
  BatchOnDevice device(batch, LookupsOf(batch), stream);
  device.Group(stream);
  device.Sum(reinterpret_cast<float*>(memory->data()), stream);
  EXPECT_EQ(device.BadRows(stream), 0u);
  std::vector<float> expected(size_t{rows} * kDim), actual(kDim);
  SumGradientsCpu(near_batch.CpuBags(), batch.shape.columns, batch.gradients, batch.shape.stride, kDim, expected);
  const auto row = [&](uint64_t slot) {
    internal::CopyToHost(actual.data(), memory->data() + slot * kDim * sizeof(float), kDim * sizeof(float), stream);
    stream.Synchronize();
    return actual;
  };
  for (uint32_t i = 0; i < rows; ++i) {
    EXPECT_TRUE(std::equal(expected.begin() + i * kDim, expected.begin() + (i + 1) * kDim, row(far[i]).begin()))
        << "slot " << far[i];
  }
  // Rows that no look-up reads.
  for (const uint32_t slot : {1u, far[2] - 5, far[5] + 7, far.back() - 3}) {
    EXPECT_EQ(row(slot), std::vector<float>(kDim)) << "slot " << slot;
  }
}

// A record begins with its row's key.
uint64_t KeyOf(const char* record, const Stream& stream) {
  uint64_t key = 0;
  internal::CopyToHost(&key, record, sizeof(key), stream);
  stream.Synchronize();
  return key;
}

TEST_F(FarSlotsGpu, ACacheKeepsRowsThere) {
  constexpr uint32_t kNames = 20'000, kDim = 4096;
  const RowLayout layout(kDim, SparseOptimizerKind::kSgd);
  const size_t slot_bytes = layout.slot_bytes();
  const Stream stream;
  std::optional<RowCacheGpu> cache =
      RowCacheGpu::Make({.layout = layout, .bytes = kBytes, .staging_rows = 1, .batch_rows = kNames}, stream);
  std::optional<DeviceBuffer<char>> records = DeviceBuffer<char>::Allocate(kNames * slot_bytes);
  std::optional<DeviceBuffer<char>> taken = DeviceBuffer<char>::Allocate(kNames * slot_bytes);
  if (!cache.has_value() || !records.has_value() || !taken.has_value()) {
    GTEST_SKIP() << "no 7 GiB of GPU memory are free";
  }
  std::vector<RowName> names(kNames);
  records->Fill(0x3d, stream);
  for (uint32_t i = 0; i < kNames; ++i) {
    names[i] = {RandomBits(1, i), i % 5};
    internal::CopyToDevice(records->data() + i * slot_bytes, &names[i].key, sizeof(uint64_t), stream);
  }
  stream.Synchronize();
  const auto device_names = Upload(names, stream);
  const auto step = Upload(std::vector<RowCacheStep>{{1, 1}}, stream);
  auto slots = Upload(std::vector<uint32_t>(kNames), stream), refused = Upload(std::vector<uint32_t>(kNames), stream);
  auto counts = Upload(std::vector<uint32_t>(3), stream);
  auto out_names = Upload(std::vector<RowName>(kNames), stream);
  auto out_dirty = Upload(std::vector<uint8_t>(kNames), stream);
  const DeviceNames all{device_names.data(), kNames, nullptr};
  cache->Insert(all, records->data(), step.data(), slots.data(),
                {out_names.data(), taken->data(), out_dirty.data(), counts.data(), refused.data(), counts.data() + 1},
                stream);
  const std::vector<uint32_t> places = Download(slots, stream);
  EXPECT_EQ(Download(counts, stream), (std::vector<uint32_t>{0, 0, 0})) << "rows evicted or refused";
  uint32_t beyond = 0;
  for (uint32_t i = 0; i < kNames; ++i) {
    ASSERT_LT(places[i], cache->slots());
    const uint64_t at = places[i] * slot_bytes;
    beyond += at >= uint64_t{4} << 30 ? 1 : 0;
    if (i % 31 != 0) continue;
    ASSERT_EQ(KeyOf(cache->records().data + at, stream), names[i].key) << "slot " << places[i];
  }
  EXPECT_GT(beyond, kNames / 4);

  // Found, and copied out: over what was inserted.
  records->Fill(0, stream);
  slots.Fill(0, stream);
  cache->Find(all, step.data(), slots.data(), reinterpret_cast<float*>(records->data()), stream);
  EXPECT_EQ(Download(slots, stream), places);
  for (uint32_t i = 0; i < kNames; i += 31) {
    ASSERT_EQ(KeyOf(records->data() + i * kDim * sizeof(float), stream), names[i].key) << "slot " << places[i];
  }

  // Taken out of the last slots.
  cache->MarkDirty(slots.data(), kNames, nullptr, stream);
  cache->TakeDirty(cache->slots() - kNames, kNames, {out_names.data(), taken->data(), kNames, counts.data() + 2},
                   stream);
  const uint32_t count = Download(counts, stream)[2];
  const std::vector<RowName> dirty = Download(out_names, stream);
  EXPECT_EQ(count, std::count_if(places.begin(), places.end(),
                                 [&](uint32_t slot) { return slot >= cache->slots() - kNames; }));
  for (uint32_t i = 0; i < count; i += 7) ASSERT_EQ(KeyOf(taken->data() + i * slot_bytes, stream), dirty[i].key) << i;
}

}  // namespace
}  // namespace sparrow
