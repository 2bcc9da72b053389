// The kernels of rows of `sparrow-bench kernels`, at a large size each. Bytes are counted as in bench/embedding/: what
// a random access moves beside what it needs, and what sorting moves, are not.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "bench/sparrow_bench/kernel_bench.h"
#include "bench/support/gpu_lookups.h"
#include "embedding/bag_gpu.h"
#include "embedding/sparse_update_gpu.h"

namespace sparrow::bench {
namespace {

constexpr uint32_t kFeatures = 26;
constexpr uint32_t kDim = 128;
constexpr uint32_t kSamples = 65536;
constexpr uint32_t kPooledRows = 500'000;   // Of a table: 6.9 GB of records in all.
constexpr uint32_t kUpdatedRows = 150'000;  // Adam's records are 6.1 GB.

std::vector<uint32_t> ColumnsOf(uint32_t dim) {
  std::vector<uint32_t> columns(kFeatures);
  for (uint32_t f = 0; f < kFeatures; ++f) columns[f] = f * dim;
  return columns;
}
DeviceBuffer<uint32_t> Columns(const Stream& stream) { return Upload(ColumnsOf(kDim), stream); }

// How a batch of 26 features is looked up and pooled.
struct BatchKind {
  uint32_t samples = kSamples;
  std::span<const uint32_t> bag_sizes = kOneHotBagSizes;
  bool zipf = false;
  bool weighted = false;
  bool mean = false;  // Every other feature.
  ElementType type = ElementType::kBfloat16;
};

const char* TypeName(ElementType type) {
  return type == ElementType::kFloat32 ? "fp32" : type == ElementType::kBfloat16 ? "bf16" : "fp16";
}

// Look-ups, weights and means of a batch in GPU memory.
class LookupsOnDevice {
 public:
  LookupsOnDevice(const BatchKind& kind, const Lookups& lookups, const Stream& stream)
      : kind_(kind), offsets_(Upload(lookups.offsets, stream)), index_(Upload(lookups.index, stream)) {
    if (kind.weighted) {
      weights_.emplace(Allocate<float>(index_.size()));
      weights_->Fill(0x3e, stream);  // 0.186
    }
    std::vector<uint8_t> means(kFeatures);
    for (uint32_t f = 0; f < kFeatures; f += 2) means[f] = 1;
    if (kind.mean) means_.emplace(Upload(means, stream));
  }

  DeviceBags bags() const {
    return {.offsets = offsets_.data(),
            .index = index_.data(),
            .weights = weights_.has_value() ? weights_->data() : nullptr,
            .mean = means_.has_value() ? means_->data() : nullptr,
            .features = kFeatures,
            .samples = kind_.samples,
            .lookups = lookups()};
  }
  uint32_t lookups() const { return static_cast<uint32_t>(index_.size()); }

 private:
  BatchKind kind_;
  DeviceBuffer<uint32_t> offsets_;
  DeviceBuffer<uint32_t> index_;
  std::optional<DeviceBuffer<float>> weights_;
  std::optional<DeviceBuffer<uint8_t>> means_;
};

// A batch with the gradients of what was pooled.
class UpdateBatch {
 public:
  // ranked: slots are numbered without gaps.
  UpdateBatch(const BatchKind& kind, bool ranked, const Stream& stream)
      : stream_(stream),
        kind_(kind),
        columns_(Columns(stream)),
        gradients_(Allocate<char>(size_t{kind.samples} * kFeatures * kDim * ElementBytes(kind.type))) {
    Lookups lookups = MakeLookups(kind.samples, kind.bag_sizes, kUpdatedRows, kind.zipf);
    const std::vector<uint32_t> distinct = DistinctSlots(lookups.index);
    if (ranked) lookups.index = RanksAmong(distinct, lookups.index);
    unique_ = static_cast<uint32_t>(distinct.size());
    lookups_.emplace(kind, lookups, stream);
    size_ = {.lookups = lookups_->lookups(), .slots = ranked ? unique_ : kFeatures * kUpdatedRows, .dim = kDim};
    gradients_.Fill(0x3d, stream);  // Every element 0.0464, in bfloat16 too: not zero, finite.
    memory_ = Allocate<char>(SparseUpdateWorkspaceBytes(size_));
  }

  uint32_t unique() const { return unique_; }
  const SparseUpdateSize& size() const { return size_; }
  DeviceBags bags() const { return lookups_->bags(); }
  DevicePooled pooled() { return {gradients_.data(), kind_.type, columns_.data(), kFeatures * kDim, true}; }
  // Of the gradients, each once.
  double gradient_bytes() const { return static_cast<double>(gradients_.size()); }
  // A look-up's factor, where there are any: its bag and itself.
  double factor_bytes() const { return kind_.weighted || kind_.mean ? 8.0 * size_.lookups : 0; }
  const char* type() const { return TypeName(kind_.type); }
  DeviceBuffer<char>& memory() { return *memory_; }
  DeviceWorkspace workspace() { return {memory_->data(), memory_->size()}; }
  void Group() { GroupLookupsGpu(bags(), size_, workspace(), stream_); }

 private:
  const Stream& stream_;
  const BatchKind kind_;
  DeviceBuffer<uint32_t> columns_;
  DeviceBuffer<char> gradients_;
  std::optional<LookupsOnDevice> lookups_;
  std::optional<DeviceBuffer<char>> memory_;
  SparseUpdateSize size_;
  uint32_t unique_ = 0;
};

SparseOptimizer OptimizerOf(SparseOptimizerKind kind) {
  return {.kind = kind,
          .learning_rate = 0.01,
          .momentum = 0.9,
          .beta1 = 0.9,
          .beta2 = 0.999,
          .eps = 1e-8,
          .l1 = 1e-4,
          .l2 = 1e-4,
          .beta = 1,
          .decay = 0.9};
}

void MeasureUpdateOf(const std::string& name, SparseOptimizerKind kind, UpdateBatch* batch, KernelBench* bench) {
  const Stream& stream = bench->stream();
  const DeviceBuffer<SparseStep> step = Upload(std::vector<SparseStep>(1), stream);
  DeviceBuffer<uint64_t> refused = Upload(std::vector<uint64_t>(1), stream);
  const RowLayout layout(kDim, kind);
  DeviceBuffer<char> records = Allocate<char>(batch->size().slots * layout.slot_bytes());
  records.Fill(0x3d, stream);
  bench->Measure({.name = name,
                  .kernels = "UpdateKernel HeavyKernel",
                  .type = batch->type(),
                  .rows = batch->size().lookups,
                  .dim = kDim,
                  .bytes = batch->gradient_bytes() + batch->factor_bytes() +
                           2.0 * batch->unique() * static_cast<double>(layout.record_bytes()),
                  .before = [&] { batch->Group(); },
                  .run =
                      [&] {
                        SparseUpdateGpu(batch->bags(), batch->size(), batch->pooled(), OptimizerOf(kind), step.data(),
                                        {records.data(), layout}, refused.data(), batch->workspace(), stream);
                      },
                  .result = records.data(),
                  .result_bytes = records.size()});
  CHECK_EQ(Download(refused.data(), 1, stream)[0], 0u) << "rows were refused";
}

void MeasureBagsOf(const std::string& name, const BatchKind& kind, const DeviceRows& rows, KernelBench* bench) {
  const Stream& stream = bench->stream();
  const std::vector<uint32_t> host_columns = ColumnsOf(rows.dim);
  const DeviceBuffer<uint32_t> columns = Upload(host_columns, stream);
  const LookupsOnDevice lookups(kind, MakeLookups(kind.samples, kind.bag_sizes, kPooledRows, kind.zipf), stream);
  const DeviceBags bags = lookups.bags();
  const double element = static_cast<double>(ElementBytes(kind.type));
  DeviceBuffer<char> output = Allocate<char>(size_t{kind.samples} * kFeatures * rows.dim * ElementBytes(kind.type));
  output.Fill(0xff, stream);  // NaN: an element that is not written shows in the checksum.
  const DevicePooled pooled{output.data(), kind.type, columns.data(), kFeatures * rows.dim, rows.dim % 4 == 0};
  bench->Measure({.name = name,
                  .kernels = "BagsForwardKernel",
                  .type = TypeName(kind.type),
                  .rows = lookups.lookups(),
                  .dim = rows.dim,
                  .bytes = lookups.lookups() * (4.0 * rows.dim + 4 + (kind.weighted ? 4 : 0)) +
                           static_cast<double>(bags.rows()) * (element * rows.dim + 4),
                  .run = [&] { BagsForwardGpu(bags, rows, pooled, stream); },
                  .result = output.data(),
                  .result_bytes = output.size()});
}

}  // namespace

void MeasureBags(KernelBench* bench) {
  const Stream& stream = bench->stream();
  const RowLayout layout(kDim, SparseOptimizerKind::kSgd);
  DeviceBuffer<char> records = Allocate<char>(size_t{kFeatures} * kPooledRows * layout.slot_bytes());
  records.Fill(0x3d, stream);  // Every weight 0.0464: not zero, finite.
  const DeviceRows rows{records.data(), layout.slot_bytes(), kDim};
  const BatchKind dcnv2{.samples = 8192, .bag_sizes = kDcnv2BagSizes};
  const auto with = [](BatchKind kind, auto change) {
    change(&kind);
    return kind;
  };
  MeasureBagsOf("bags_one_hot", {}, rows, bench);
  MeasureBagsOf("bags_one_hot", {.type = ElementType::kFloat16}, rows, bench);
  MeasureBagsOf("bags_one_hot", {.type = ElementType::kFloat32}, rows, bench);
  MeasureBagsOf("bags_dcnv2", dcnv2, rows, bench);
  MeasureBagsOf("bags_dcnv2_mean", with(dcnv2, [](BatchKind* kind) { kind->mean = true; }), rows, bench);
  MeasureBagsOf("bags_dcnv2_weighted", with(dcnv2, [](BatchKind* kind) { kind->weighted = true; }), rows, bench);
  MeasureBagsOf("bags_dcnv2_weighted_mean", with(dcnv2, [](BatchKind* kind) { kind->weighted = kind->mean = true; }),
                rows, bench);
  MeasureBagsOf("bags_dcnv2_odd_dim", dcnv2, {records.data(), layout.slot_bytes(), kDim - 1}, bench);
}

void MeasureGroup(KernelBench* bench) {
  const Stream& stream = bench->stream();
  const BatchKind dcnv2{.samples = 8192, .bag_sizes = kDcnv2BagSizes, .weighted = true, .mean = true};
  for (const bool factors : {false, true}) {
    UpdateBatch batch(factors ? dcnv2 : BatchKind{}, /*ranked=*/false, stream);
    const double lookups = batch.size().lookups;
    // A slot and an offset in; a slot and the place of its gradient out. With factors a weight in, and a factor and its
    // bag out.
    bench->Measure({.name = factors ? "group_lookups_weighted_mean" : "group_lookups",
                    .kernels = "SourcesKernel",
                    .rows = batch.size().lookups,
                    .bytes = (factors ? 28 : 16) * lookups,
                    .run = [&] { batch.Group(); },
                    .result = batch.memory().data(),
                    .result_bytes = 0});  // How it is written down is its own.
  }
}

void MeasureUpdate(KernelBench* bench) {
  using Kind = SparseOptimizerKind;
  const Stream& stream = bench->stream();
  {
    UpdateBatch batch({}, /*ranked=*/false, stream);
    const std::pair<const char*, Kind> kinds[] = {
        {"sparse_sgd", Kind::kSgd},         {"sparse_momentum", Kind::kMomentum},
        {"sparse_adagrad", Kind::kAdagrad}, {"sparse_rowwise_adagrad", Kind::kRowwiseAdagrad},
        {"sparse_adam", Kind::kAdam},       {"sparse_rowwise_adam", Kind::kRowwiseAdam},
        {"sparse_ftrl", Kind::kFtrl},       {"sparse_rmsprop", Kind::kRmsProp}};
    for (const auto& [name, kind] : kinds) MeasureUpdateOf(name, kind, &batch, bench);
  }
  for (const ElementType type : {ElementType::kFloat16, ElementType::kFloat32}) {
    UpdateBatch batch({.type = type}, /*ranked=*/false, stream);
    MeasureUpdateOf("sparse_sgd", Kind::kSgd, &batch, bench);
  }
  // With rows that many look-ups share, whose sums are made in parts.
  UpdateBatch zipf({.zipf = true}, /*ranked=*/false, stream);
  MeasureUpdateOf("sparse_rowwise_adagrad_zipf", Kind::kRowwiseAdagrad, &zipf, bench);
  UpdateBatch bags({.samples = 8192, .bag_sizes = kDcnv2BagSizes, .weighted = true, .mean = true}, false, stream);
  MeasureUpdateOf("sparse_rowwise_adagrad_weighted_mean", Kind::kRowwiseAdagrad, &bags, bench);
}

void MeasureSums(KernelBench* bench) {
  const Stream& stream = bench->stream();
  for (const ElementType type : {ElementType::kBfloat16, ElementType::kFloat16, ElementType::kFloat32}) {
    UpdateBatch batch({.type = type}, /*ranked=*/true, stream);
    DeviceBuffer<uint64_t> not_finite = Upload(std::vector<uint64_t>(1), stream);
    DeviceBuffer<float> sums = Allocate<float>(size_t{batch.unique()} * kDim);
    bench->Measure({.name = "sum_gradients",
                    .kernels = "ReadRowsKernel ZeroRowsKernel UpdateKernel HeavyKernel",
                    .type = batch.type(),
                    .rows = batch.size().lookups,
                    .dim = kDim,
                    .bytes = batch.gradient_bytes() + 4.0 * kDim * batch.unique(),
                    .before = [&] { batch.Group(); },
                    .run =
                        [&] {
                          SumGradientsGpu(batch.bags(), batch.size(), batch.pooled(), sums.data(), not_finite.data(),
                                          batch.workspace(), stream);
                        },
                    .result = sums.data(),
                    .result_bytes = sums.size() * sizeof(float)});
  }
}

}  // namespace sparrow::bench
