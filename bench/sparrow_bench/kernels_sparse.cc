// The kernels of rows of `sparrow-bench kernels`, at a large size each. Bytes are counted as in bench/embedding/: what
// a random access moves beside what it needs, and what sorting moves, are not.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/random.h"
#include "bench/sparrow_bench/kernel_bench.h"
#include "bench/support/filled_cache.h"
#include "bench/support/gpu_lookups.h"
#include "embedding/bag_gpu.h"
#include "embedding/dedup_gpu.h"
#include "embedding/row_cache_gpu.h"
#include "embedding/sparse_update_gpu.h"

namespace sparrow::bench {
namespace {

constexpr uint32_t kFeatures = 26;
constexpr uint32_t kDim = 128;
constexpr uint32_t kSamples = 65536;
constexpr uint32_t kPooledRows = 500'000;   // Of a table: 6.9 GB of records in all.
constexpr uint32_t kUpdatedRows = 150'000;  // Adam's records are 6.1 GB.

DeviceBuffer<uint32_t> Columns(const Stream& stream) {
  std::vector<uint32_t> columns(kFeatures);
  for (uint32_t f = 0; f < kFeatures; ++f) columns[f] = f * kDim;
  return Upload(columns, stream);
}

// A batch of one-hot look-ups with the gradients of what was pooled, uniform over the rows.
class UpdateBatch {
 public:
  // ranked: slots are numbered without gaps.
  UpdateBatch(bool ranked, const Stream& stream) : stream_(stream), columns_(Columns(stream)) {
    Lookups lookups = MakeLookups(kSamples, kOneHotBagSizes, kUpdatedRows, /*zipf=*/false);
    const std::vector<uint32_t> distinct = DistinctSlots(lookups.index);
    if (ranked) lookups.index = RanksAmong(distinct, lookups.index);
    unique_ = static_cast<uint32_t>(distinct.size());
    size_ = {.lookups = kFeatures * kSamples, .slots = ranked ? unique_ : kFeatures * kUpdatedRows, .dim = kDim};
    offsets_ = Upload(lookups.offsets, stream);
    index_ = Upload(lookups.index, stream);
    gradients_.Fill(0x3d, stream);  // Every element 0.0464, in 16 bits too: not zero, finite.
    memory_ = Allocate<char>(SparseUpdateWorkspaceBytes(size_));
  }

  uint32_t unique() const { return unique_; }
  const SparseUpdateSize& size() const { return size_; }
  DeviceBags bags() const {
    return {.offsets = offsets_->data(),
            .index = index_->data(),
            .features = kFeatures,
            .samples = kSamples,
            .lookups = size_.lookups};
  }
  DevicePooled pooled() { return {gradients_.data(), ElementType::kBfloat16, columns_.data(), kFeatures * kDim, true}; }
  DeviceBuffer<char>& memory() { return *memory_; }
  DeviceWorkspace workspace() { return {memory_->data(), memory_->size()}; }
  void Group() { GroupLookupsGpu(bags(), size_, workspace(), stream_); }

 private:
  const Stream& stream_;
  DeviceBuffer<uint32_t> columns_;
  DeviceBuffer<uint16_t> gradients_ = Allocate<uint16_t>(size_t{kSamples} * kFeatures * kDim);
  std::optional<DeviceBuffer<uint32_t>> offsets_;
  std::optional<DeviceBuffer<uint32_t>> index_;
  std::optional<DeviceBuffer<char>> memory_;
  SparseUpdateSize size_;
  uint32_t unique_ = 0;
};

constexpr double kGradientBytes = 2.0 * kFeatures * kSamples * kDim;

}  // namespace

void MeasureBags(KernelBench* bench) {
  const Stream& stream = bench->stream();
  const RowLayout layout(kDim, SparseOptimizerKind::kSgd);
  DeviceBuffer<char> records = Allocate<char>(size_t{kFeatures} * kPooledRows * layout.slot_bytes());
  records.Fill(0x3d, stream);  // Every weight 0.0464: not zero, finite.
  const DeviceRows rows{records.data(), layout.slot_bytes(), kDim};
  const DeviceBuffer<uint32_t> columns = Columns(stream);
  for (const bool dcnv2 : {false, true}) {
    const uint32_t samples = dcnv2 ? 8192 : kSamples;
    const Lookups lookups = MakeLookups(samples, dcnv2 ? kDcnv2BagSizes : kOneHotBagSizes, kPooledRows, /*zipf=*/false);
    const DeviceBuffer<uint32_t> offsets = Upload(lookups.offsets, stream), index = Upload(lookups.index, stream);
    const DeviceBags bags{.offsets = offsets.data(),
                          .index = index.data(),
                          .features = kFeatures,
                          .samples = samples,
                          .lookups = static_cast<uint32_t>(index.size())};
    DeviceBuffer<uint16_t> output = Allocate<uint16_t>(size_t{samples} * kFeatures * kDim);
    output.Fill(0xff, stream);  // NaN: an element that is not written shows in the checksum.
    const DevicePooled pooled{output.data(), ElementType::kBfloat16, columns.data(), kFeatures * kDim, true};
    bench->Measure({.name = dcnv2 ? "bags_dcnv2" : "bags_one_hot",
                    .rows = index.size(),
                    .dim = kDim,
                    .bytes = static_cast<double>(index.size()) * (4 * kDim + 4) +
                             static_cast<double>(bags.rows()) * (2 * kDim + 4),
                    .run = [&] { BagsForwardGpu(bags, rows, pooled, stream); },
                    .result = output.data(),
                    .result_bytes = output.size() * sizeof(uint16_t)});
  }
}

void MeasureGroup(KernelBench* bench) {
  UpdateBatch batch(/*ranked=*/false, bench->stream());
  const uint64_t lookups = batch.size().lookups;
  // A slot and an offset in; a slot and the place of its gradient out.
  bench->Measure({.name = "group_lookups",
                  .rows = lookups,
                  .bytes = 16.0 * static_cast<double>(lookups),
                  .run = [&] { batch.Group(); },
                  .result = batch.memory().data(),
                  .result_bytes = 0});  // How it is written down is its own.
}

void MeasureUpdate(KernelBench* bench) {
  const Stream& stream = bench->stream();
  UpdateBatch batch(/*ranked=*/false, stream);
  const DeviceBuffer<SparseStep> step = Upload(std::vector<SparseStep>(1), stream);
  DeviceBuffer<uint64_t> refused = Upload(std::vector<uint64_t>(1), stream);
  const std::pair<const char*, SparseOptimizerKind> kinds[] = {
      {"sparse_sgd", SparseOptimizerKind::kSgd},
      {"sparse_rowwise_adagrad", SparseOptimizerKind::kRowwiseAdagrad},
      {"sparse_adam", SparseOptimizerKind::kAdam}};
  for (const auto& [name, kind] : kinds) {
    const SparseOptimizer optimizer{.kind = kind, .learning_rate = 0.01, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    const RowLayout layout(kDim, kind);
    DeviceBuffer<char> records = Allocate<char>(batch.size().slots * layout.slot_bytes());
    records.Fill(0x3d, stream);
    bench->Measure({.name = name,
                    .rows = batch.size().lookups,
                    .dim = kDim,
                    .bytes = kGradientBytes + 2.0 * batch.unique() * static_cast<double>(layout.record_bytes()),
                    .before = [&] { batch.Group(); },
                    .run =
                        [&] {
                          SparseUpdateGpu(batch.bags(), batch.size(), batch.pooled(), optimizer, step.data(),
                                          {records.data(), layout}, refused.data(), batch.workspace(), stream);
                        },
                    .result = records.data(),
                    .result_bytes = records.size()});
  }
  CHECK_EQ(Download(refused.data(), 1, stream)[0], 0u) << "rows were refused";
}

void MeasureSums(KernelBench* bench) {
  const Stream& stream = bench->stream();
  UpdateBatch batch(/*ranked=*/true, stream);
  DeviceBuffer<uint64_t> not_finite = Upload(std::vector<uint64_t>(1), stream);
  DeviceBuffer<float> sums = Allocate<float>(size_t{batch.unique()} * kDim);
  bench->Measure({.name = "sum_gradients",
                  .rows = batch.size().lookups,
                  .dim = kDim,
                  .bytes = kGradientBytes + 4.0 * kDim * batch.unique(),
                  .before = [&] { batch.Group(); },
                  .run =
                      [&] {
                        SumGradientsGpu(batch.bags(), batch.size(), batch.pooled(), sums.data(), not_finite.data(),
                                        batch.workspace(), stream);
                      },
                  .result = sums.data(),
                  .result_bytes = sums.size() * sizeof(float)});
}

void MeasureCache(KernelBench* bench) {
  constexpr uint32_t kSlots = 16 << 20, kCacheDim = 64;
  const Stream& stream = bench->stream();
  std::optional<FilledCache> filled = FilledCache::Make(kSlots, kCacheDim, /*full=*/true, KernelBench::kCalls, stream);
  CHECK(filled.has_value()) << "no GPU memory for a cache of " << kSlots << " slots";
  RowCacheGpu* const cache = &filled->cache();
  filled->PutNames(filled->PresentNames(stream), stream);
  const DeviceNames hits{filled->names(0), kCacheBatch, nullptr};
  const RowCacheStep* step = nullptr;
  // Of a name: itself, its slot's entry, the score out, the slot out; and all digests.
  const double find_bytes = (16.0 + 16 + 4 + 4) * kCacheBatch + cache->slots();
  const auto find = [&](const char* name, float* values) {
    bench->Measure({.name = name,
                    .rows = kCacheBatch,
                    .dim = kCacheDim,
                    .bytes = find_bytes + (values == nullptr ? 0 : 8.0 * kCacheDim * kCacheBatch),
                    .before = [&] { step = filled->NextStep(); },
                    .run = [&] { cache->Find(hits, step, filled->slots(), values, stream); },
                    .result = values == nullptr ? static_cast<const void*>(filled->slots()) : values,
                    .result_bytes = sizeof(uint32_t) * kCacheBatch});
  };
  find("cache_find", nullptr);
  find("cache_find_copying_rows", filled->values());

  filled->PutNames(filled->NextNames(kCacheBatch * KernelBench::kCalls), stream);
  const double record = static_cast<double>(cache->records().layout.slot_bytes());
  uint64_t batch = 0;
  // Of a name: itself, its entry out, the slot out, its record in and out, and of the row that goes its name out and
  // its record in and out; and all entries.
  bench->Measure({.name = "cache_insert_evicting",
                  .rows = kCacheBatch,
                  .dim = kCacheDim,
                  .bytes = (16.0 + 16 + 4 + 16 + 4 * record) * kCacheBatch + 16.0 * cache->slots(),
                  .run = [&] { filled->Insert(batch++ % KernelBench::kCalls, kCacheBatch, stream); },
                  .result = filled->slots(),
                  .result_bytes = sizeof(uint32_t) * kCacheBatch});

  bench->Measure({.name = "cache_mark_dirty",
                  .rows = kCacheBatch,
                  .dim = kCacheDim,
                  .bytes = (4.0 + 1) * kCacheBatch,
                  .run = [&] { cache->MarkDirty(filled->slots(), kCacheBatch, nullptr, stream); },
                  .result = cache->index().dirty,
                  .result_bytes = cache->slots()});
  // All rows of the first slots. Of each: its mark in and out, its entry in and its name out, its record in and out.
  std::vector<uint32_t> first(kCacheBatch);
  for (uint32_t i = 0; i < kCacheBatch; ++i) first[i] = i;
  const DeviceBuffer<uint32_t> first_slots = Upload(first, stream);
  const DeviceEvicted out = filled->evicted();
  bench->Measure({.name = "cache_take_dirty",
                  .rows = kCacheBatch,
                  .dim = kCacheDim,
                  .bytes = (1.0 + 1 + 16 + 16 + 2 * record) * kCacheBatch,
                  .before = [&] { cache->MarkDirty(first_slots.data(), kCacheBatch, nullptr, stream); },
                  .run =
                      [&] {
                        cache->TakeDirty(0, kCacheBatch, {out.names, out.records, kCacheBatch, out.count}, stream);
                      },
                  .result = out.records,
                  .result_bytes = static_cast<size_t>(record) * kCacheBatch});
}

void MeasureUnique(KernelBench* bench) {
  constexpr uint32_t kRows = 1'000'000, kNames = kFeatures * kSamples;
  const Stream& stream = bench->stream();
  std::vector<RowName> host(kNames);
  for (uint32_t i = 0; i < kNames; ++i) host[i] = {Mix64(RankOf(RandomUniform(1, i), kRows, false)), i / kSamples};
  const DeviceBuffer<RowName> names = Upload(host, stream);
  DeviceBuffer<RowName> unique = Allocate<RowName>(kNames);
  DeviceBuffer<uint32_t> count = Allocate<uint32_t>(1), index = Allocate<uint32_t>(kNames);
  DeviceBuffer<char> workspace = Allocate<char>(UniqueWorkspaceBytes(kNames));
  const auto run = [&] {
    UniqueNamesGpu({names.data(), kNames, nullptr}, {unique.data(), count.data(), index.data()},
                   {workspace.data(), workspace.size()}, stream);
  };
  run();
  bench->Measure({.name = "unique_names",
                  .rows = kNames,
                  .bytes = 20.0 * kNames + 16.0 * Download(count.data(), 1, stream)[0],
                  .run = run,
                  .result = index.data(),
                  .result_bytes = index.size() * sizeof(uint32_t)});
}

}  // namespace sparrow::bench
