// Question: what does a whole training step of a model cost with its tables in GPU memory, beside the step with its
// vectors given, and what do the row cache's look-ups add?
//
// Held fixed: MLPerf's shapes (DLRM: 13-512-256-128, dot of 27 x 128, 1024-1024-512-256-1; DCNv2: 13-512-256-128, three
// cross layers of rank 512 on 3,456, the same top), bfloat16 with float32 master weights and float32 rows, dense inputs
// and ids in GPU memory, ten batches of different ids in turn. DLRM: 26 tables of 1 M x 128, one-hot. DCNv2: MLPerf's
// tables, of at most --rows-max rows each, and its bags, 214 look-ups a sample.
//
// A step is a CUDA graph: the look-ups are sorted by row on a side stream beside the forward ("beside"; "in line":
// behind the interaction's backward), the rows are pooled by the interaction itself ("fused") or by a kernel before
// ("pooled"), and are updated on the side stream as soon as their gradients are there, while the bottom's backward goes
// on. With a row cache all rows lie in it, at a load factor of 0.6, and the names of a batch are looked up and its rows
// marked as changed: every look-up's ("each") or, of a batch whose names were made unique on the GPU, each row's once
// ("unique"); in front of the forward ("in line") or on a stream beside it, for the batch that follows ("ahead").
//
// Varies: batch size, ids (uniform, Zipf 1.05 in each table), optimizer. Ten steps follow each other between two
// events, as in training; of 30 such runs the median. The floor is what the products take at 787 TFLOP/s (the best
// bfloat16 product measured on an H200) plus what the embeddings' bytes take at the copy bandwidth of the same run.
// Bytes: vectors given: each vector read by forward and backward and its gradient written, of 16 bits; tables: that,
// the gradient read again, and, pooled, the vector written, or, fused, written instead of read by the forward; 8 a
// look-up for slots; and a unique row's weights, and twice its record. No bytes are counted for sorting and finding,
// whose times alone are columns: a batch's, as graphs, caches as a batch before has left them. The loss, the last
// step's, is the checksum: of one model, batch size and optimizer it is nearly the same whatever way the rows come.
//
//   worker_gpu_step_bench [--what given|tables|cache|dcnv2] [--batch N] [--rows-max N] [--plan-file FILE] [--once]
//
// --once runs each step twice without a graph and without a clock, for a profiler. Without --batch: DLRM at 65,536,
// 8,192 and 2,048, DCNv2 at 8,192.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/cuda/graph.h"
#include "bench/support/gpu_timing.h"
#include "bench/worker/gpu_step_parts.h"
#include "dense/interaction_gpu.h"
#include "embedding/dedup_gpu.h"
#include "embedding/lookup_slots_gpu.h"
#include "embedding/row_cache_gpu.h"

namespace sparrow {
namespace {

constexpr int kRuns = 30;
constexpr double kLoadFactor = 0.6;  // No bucket of the cache overflows.
constexpr int64_t kDcnv2Samples = 8192;

enum class Source { kGiven, kFused, kPooled };
enum class Find { kNone, kEach, kUnique };

struct Optimizers {
  const char* name;
  SparseOptimizer sparse;
  DenseRule dense;
};
const DenseRule kDenseSgd = {.kind = DenseOptimizerKind::kSgd, .learning_rate = 0.01};
const Optimizers kSgd = {"SGD", {.kind = SparseOptimizerKind::kSgd, .learning_rate = 0.01}, kDenseSgd};
const Optimizers kRowwiseAdagrad = {"row-wise Adagrad, dense SGD",
                                    {.kind = SparseOptimizerKind::kRowwiseAdagrad, .learning_rate = 0.01, .eps = 1e-8},
                                    kDenseSgd};
const Optimizers kAdagrad = {"Adagrad",
                             {.kind = SparseOptimizerKind::kAdagrad, .learning_rate = 0.004, .eps = 1e-8},
                             {.kind = DenseOptimizerKind::kAdagrad, .learning_rate = 0.004, .eps = 1e-8}};

// How a step is put together.
struct Variant {
  Source source = Source::kGiven;
  Optimizers optimizers;
  bool group_beside = true;
  Find find = Find::kNone;
  bool find_ahead = false;
};

struct Flags {
  std::string what;   // "": all.
  int64_t batch = 0;  // 0: all.
  uint64_t rows_max = 20'000'000;
  std::string plan_file;
  bool once = false;
};

class Bench {
 public:
  explicit Bench(const Flags& flags) : flags_(flags), flush_(Allocate<char>(size_t{256} << 20)) {
    if (flags.once) return;
    constexpr size_t kBytes = size_t{1} << 30;
    DeviceBuffer<char> from = Allocate<char>(kBytes), to = Allocate<char>(kBytes);
    from.Fill(1, stream_);
    copy_rate_ = CopyRate(kRuns, kBytes, from, &to, &flush_, stream_);
    std::printf("%s; copy %.2f TB/s read and written\n", GpuName().c_str(), copy_rate_ * 1e-12);
  }

  void Given() {
    Header("DLRM, vectors given");
    for (const int64_t samples : Batches()) Measure({.optimizers = kSgd}, "given", ModelOf(samples), nullptr);
  }

  void Tables() {
    const StepTables tables = StepTables::Dlrm();
    Header("DLRM, 26 tables of " + std::to_string(tables.rows[0]) + " rows in GPU memory");
    DeviceBuffer<char> memory =
        Allocate<char>(tables.total_rows() * RowLayout(kStepDim, SparseOptimizerKind::kRowwiseAdagrad).slot_bytes());
    ForEachIds(tables, /*as_names=*/false, [&](StepModel* model, StepLookups* lookups, const char* ids) {
      for (const Variant& variant : {Variant{.source = Source::kFused, .optimizers = kSgd},
                                     Variant{.source = Source::kFused, .optimizers = kSgd, .group_beside = false},
                                     Variant{.source = Source::kPooled, .optimizers = kSgd},
                                     Variant{.source = Source::kFused, .optimizers = kRowwiseAdagrad}}) {
        FillRecords(variant, tables, &memory);
        Measure(variant, ids, model, lookups);
      }
    });
  }

  void Cache() {
    const StepTables tables = StepTables::Dlrm();
    Header("DLRM, the same rows in a row cache");
    names_ = AllNames(tables);
    ForEachIds(tables, /*as_names=*/true, [&](StepModel* model, StepLookups* lookups, const char* ids) {
      unique_names_ = Allocate<RowName>(lookups->lookups());
      unique_count_ = Allocate<uint32_t>(1);
      unique_index_ = Allocate<uint32_t>(lookups->lookups());
      unique_slots_ = Allocate<uint32_t>(lookups->lookups());
      unique_memory_ = Allocate<char>(UniqueWorkspaceBytes(lookups->lookups()));
      for (const Variant& variant :
           {Variant{.source = Source::kFused, .optimizers = kSgd},
            Variant{.source = Source::kFused, .optimizers = kSgd, .find = Find::kUnique},
            Variant{.source = Source::kFused, .optimizers = kSgd, .find = Find::kUnique, .find_ahead = true},
            Variant{.source = Source::kFused, .optimizers = kSgd, .find = Find::kEach},
            Variant{.source = Source::kFused, .optimizers = kSgd, .find = Find::kEach, .find_ahead = true}}) {
        FillCache(variant, tables, *lookups);
        find_us_ = TimeOfFind(variant.find == Find::kNone ? Find::kEach : variant.find, lookups);
        Measure(variant, ids, model, lookups);
      }
      cache_.reset();
    });
    names_.reset();
    find_us_ = 0;
  }

  void Dcnv2() {
    const StepTables tables = StepTables::Dcnv2(flags_.rows_max);
    Header("DCNv2, 26 tables of at most " + std::to_string(flags_.rows_max) + " rows, " +
           std::to_string(tables.total_rows()) + " in all, 214 look-ups a sample");
    const int64_t samples = flags_.batch != 0 ? flags_.batch : kDcnv2Samples;
    StepModel model(kStepDcnv2, samples, flags_.plan_file, stream_);
    Measure({.optimizers = kSgd}, "given", &model, nullptr);
    Measure({.optimizers = kAdagrad}, "given", &model, nullptr);
    DeviceBuffer<char> memory =
        Allocate<char>(tables.total_rows() * RowLayout(kStepDim, SparseOptimizerKind::kAdagrad).slot_bytes());
    for (const bool zipf : {false, true}) {
      StepLookups lookups(tables, static_cast<uint32_t>(samples), zipf, /*as_names=*/false, stream_);
      for (const Variant& variant :
           {Variant{.source = Source::kPooled, .optimizers = kAdagrad},
            Variant{.source = Source::kPooled, .optimizers = kAdagrad, .group_beside = false}}) {
        FillRecords(variant, tables, &memory);
        Measure(variant, zipf ? "Zipf 1.05" : "uniform", &model, &lookups);
      }
    }
  }

 private:
  std::vector<int64_t> Batches() const {
    if (flags_.batch != 0) return {flags_.batch};
    return {65536, 8192, 2048};
  }

  // The same one for all groups, so that all have the same products.
  StepModel* ModelOf(int64_t samples) {
    std::unique_ptr<StepModel>& model = models_[samples];
    if (model == nullptr) model = std::make_unique<StepModel>(kStepDlrm, samples, flags_.plan_file, stream_);
    return model.get();
  }

  void ForEachIds(const StepTables& tables, bool as_names,
                  const std::function<void(StepModel*, StepLookups*, const char*)>& work) {
    for (const int64_t samples : Batches()) {
      StepModel* const model = ModelOf(samples);
      for (const bool zipf : {false, true}) {
        StepLookups lookups(tables, static_cast<uint32_t>(samples), zipf, as_names, stream_);
        work(model, &lookups, zipf ? "Zipf 1.05" : "uniform");
      }
    }
  }

  void FillRecords(const Variant& variant, const StepTables& tables, DeviceBuffer<char>* memory) {
    const RowLayout layout(kStepDim, variant.optimizers.sparse.kind);
    const uint64_t rows = tables.total_rows();
    FillWithPattern(layout, rows, memory, stream_);
    records_ = DeviceRecords{memory->data(), layout};
    slots_ = static_cast<uint32_t>(rows);
  }

  // In the order of their slots where they lie in an array.
  DeviceBuffer<RowName> AllNames(const StepTables& tables) const {
    std::vector<RowName> names;
    names.reserve(tables.total_rows());
    for (uint32_t table = 0; table < kStepFeatures; ++table) {
      for (uint64_t row = 0; row < tables.rows[table]; ++row) names.push_back({row, table});
    }
    return Upload(names, stream_);
  }

  // The same records.
  void FillCache(const Variant& variant, const StepTables& tables, const StepLookups& lookups) {
    const RowLayout layout(kStepDim, variant.optimizers.sparse.kind);
    const uint64_t rows = tables.total_rows();
    const auto slots = static_cast<uint64_t>(static_cast<double>(rows) / kLoadFactor);
    cache_.reset();
    cache_ = RowCacheGpu::Make({.layout = layout,
                                .bytes = slots * RowCacheSlotBytes(layout),
                                .batch_rows = std::max(kPatternRows, lookups.lookups())},
                               stream_);
    CHECK(cache_.has_value()) << "no GPU memory for " << slots << " slots";
    const DeviceBuffer<char> pattern = RecordPattern(layout, stream_);
    DeviceBuffer<uint32_t> slots_of_names = Allocate<uint32_t>(kPatternRows);
    DeviceBuffer<RowName> evicted_names = Allocate<RowName>(kPatternRows);
    DeviceBuffer<char> evicted_records = Allocate<char>(kPatternRows * layout.slot_bytes());
    DeviceBuffer<uint8_t> evicted_dirty = Allocate<uint8_t>(kPatternRows);
    DeviceBuffer<uint32_t> refused = Allocate<uint32_t>(kPatternRows);
    DeviceBuffer<uint32_t> counts = Allocate<uint32_t>(2);
    const DeviceBuffer<RowCacheStep> step = Upload(std::vector<RowCacheStep>{{.step = 1}}, stream_);
    std::vector<uint32_t> counted(2);
    for (uint64_t row = 0; row < rows; row += kPatternRows) {
      const auto some = static_cast<uint32_t>(std::min<uint64_t>(kPatternRows, rows - row));
      cache_->Insert({.data = names_->data() + row, .max = some}, pattern.data(), step.data(), slots_of_names.data(),
                     {.names = evicted_names.data(),
                      .records = evicted_records.data(),
                      .dirty = evicted_dirty.data(),
                      .count = counts.data(),
                      .refused = refused.data(),
                      .refused_count = counts.data() + 1},
                     stream_);
      counts.CopyTo(counted, stream_);
      stream_.Synchronize();
      CHECK(counted[0] == 0 && counted[1] == 0) << counted[0] << " rows were evicted, " << counted[1] << " refused";
    }
    records_ = cache_->records();
    slots_ = cache_->slots();
    cache_step_ = 1;
  }

  // Ten steps of the cache that were not used yet, so that rows are marked as used.
  void NextCacheSteps() {
    std::vector<RowCacheStep> steps(kStepBatches);
    for (RowCacheStep& step : steps) {
      ++cache_step_;
      step = {.step = cache_step_, .oldest_in_flight = cache_step_};
    }
    cache_steps_.CopyFrom(steps, stream_);
    stream_.Synchronize();
  }

  // Where the rows of batch `batch` lie, at the `step`-th of the ten steps; they are marked as changed.
  void QueueFind(Find find, int batch, int step, StepLookups* lookups, const Stream& queue) {
    const DeviceNames names = lookups->Names(batch);
    const RowCacheStep* const cache_step = cache_steps_.data() + step;
    uint32_t* const index = lookups->index(batch).data();
    if (find == Find::kEach) {
      cache_->Find(names, cache_step, index, /*values=*/nullptr, queue);
      cache_->MarkDirty(index, names.max, /*count=*/nullptr, queue);
      return;
    }
    UniqueNamesGpu(names, {unique_names_->data(), unique_count_->data(), unique_index_->data()},
                   {unique_memory_->data(), unique_memory_->size()}, queue);
    const DeviceNames unique{.data = unique_names_->data(), .max = names.max, .count = unique_count_->data()};
    cache_->Find(unique, cache_step, unique_slots_->data(), /*values=*/nullptr, queue);
    cache_->MarkDirty(unique_slots_->data(), names.max, unique_count_->data(), queue);
    SlotsOfLookupsGpu(unique_index_->data(), names.max, unique_slots_->data(), index, queue);
  }

  // Leaves the slots of all batches, and sees to it that all rows were found.
  double TimeOfFind(Find find, StepLookups* lookups) {
    const double us = TimeOf([&](int batch) { QueueFind(find, batch, batch, lookups, stream_); }).median_us;
    if (flags_.once) {  // Of the first batch alone until here.
      for (int batch = 1; batch < kStepBatches; ++batch) QueueFind(find, batch, batch, lookups, stream_);
    }
    std::vector<uint32_t> index(lookups->lookups());
    for (int batch = 0; batch < kStepBatches; ++batch) {
      lookups->index(batch).CopyTo(index, stream_);
      stream_.Synchronize();
      for (const uint32_t slot : index) CHECK(slot < slots_) << "a row of batch " << batch << " was not found";
    }
    return us;
  }

  // Of one of ten batches, each a graph, that follow each other.
  Spread TimeOf(const std::function<void(int)>& queue) {
    NextCacheSteps();
    queue(0);
    stream_.Synchronize();
    if (flags_.once) {
      queue(0);
      stream_.Synchronize();
      return {};
    }
    std::vector<std::unique_ptr<Graph>> graphs;
    for (int batch = 0; batch < kStepBatches; ++batch) {
      graphs.push_back(std::make_unique<Graph>(stream_, [&] { queue(batch); }));
    }
    const auto replay = [&] {
      for (const std::unique_ptr<Graph>& graph : graphs) graph->Replay(stream_);
    };
    Spread time = Time(
        kRuns, [&] { NextCacheSteps(); }, replay, &flush_, stream_);
    for (double* us : {&time.median_us, &time.min_us, &time.max_us}) *us /= kStepBatches;
    return time;
  }

  struct Grouping {
    SparseUpdateSize size;
    DeviceWorkspace workspace;
  };

  // One step of the ten.
  void QueueStep(const Variant& v, int step, StepModel* model, StepLookups* lookups, const Grouping& grouping) {
    if (v.source == Source::kGiven) {
      const ModelGpu::Batch batch = model->Batch(nullptr);
      model->model()->ForwardLoss(batch, stream_);
      model->model()->Backward(batch, stream_);
      model->UpdateDense(stream_);
      return;
    }
    const DeviceBags bags = lookups->Bags(step);
    if (v.find != Find::kNone && !v.find_ahead) QueueFind(v.find, step, step, lookups, stream_);
    started_.Record(stream_);
    side_.WaitFor(started_);
    if (v.group_beside) GroupLookupsGpu(bags, grouping.size, grouping.workspace, side_);
    if (v.find_ahead) {
      ahead_.WaitFor(started_);
      QueueFind(v.find, (step + 1) % kStepBatches, step, lookups, ahead_);
      found_.Record(ahead_);
    }

    const GatheredVectors gathered{
        .records = records_->data, .slot_bytes = records_->layout.slot_bytes(), .slots = bags.index};
    const ModelGpu::Batch batch = model->Batch(v.source == Source::kFused ? &gathered : nullptr);
    if (v.source == Source::kPooled) {
      BagsForwardGpu(bags, records_->Rows(), model->Pooled(model->model()->sparse(model->rows())), stream_);
    }
    model->model()->set_sparse_gradients_queued([&] {
      sparse_ready_.Record(stream_);
      side_.WaitFor(sparse_ready_);
      if (!v.group_beside) GroupLookupsGpu(bags, grouping.size, grouping.workspace, side_);
      SparseUpdateGpu(bags, grouping.size, model->Pooled(model->model()->sparse_gradients(model->rows())),
                      v.optimizers.sparse, sparse_step_->data(), *records_, refused_.data(), grouping.workspace, side_);
      rows_updated_.Record(side_);
    });
    model->model()->ForwardLoss(batch, stream_);
    model->model()->Backward(batch, stream_);
    model->model()->set_sparse_gradients_queued(nullptr);
    model->UpdateDense(stream_);
    stream_.WaitFor(rows_updated_);
    if (v.find_ahead) stream_.WaitFor(found_);
  }

  // lookups: null where the vectors are given.
  void Measure(const Variant& v, const char* ids, StepModel* model, StepLookups* lookups) {
    model->Reset(v.optimizers.dense, stream_);
    Grouping grouping;
    std::optional<DeviceBuffer<char>> memory;
    double group_us = 0;
    if (lookups != nullptr) {
      grouping.size = {.lookups = lookups->lookups(), .slots = slots_, .dim = kStepDim};
      memory = Allocate<char>(SparseUpdateWorkspaceBytes(grouping.size));
      grouping.workspace = {memory->data(), memory->size()};
      group_us = TimeOf([&](int batch) {
                   GroupLookupsGpu(lookups->Bags(batch), grouping.size, grouping.workspace, stream_);
                 }).median_us;
      sparse_step_ = Upload(
          std::vector<SparseStep>{
              {.gradient_scale = 1 / static_cast<double>(model->rows()), .learning_rate_factor = 1, .step = 1}},
          stream_);
      refused_.Fill(0, stream_);
    } else {
      model->GiveVectors(stream_);
    }
    const Spread time = TimeOf([&](int step) { QueueStep(v, step, model, lookups, grouping); });
    if (!flags_.once) Print(v, ids, model, lookups, time, group_us);
    std::vector<uint64_t> refused(1);
    refused_.CopyTo(refused, stream_);
    stream_.Synchronize();
    if (lookups != nullptr && refused[0] != 0) {
      std::printf("%llu updates were refused\n", static_cast<unsigned long long>(refused[0]));
    }
  }

  double FloorUs(const Variant& v, const StepModel& model, const StepLookups* lookups) const {
    const double passes = v.source == Source::kGiven ? 3 : v.source == Source::kFused ? 4 : 5;
    double bytes = passes * 2 * kStepFeatures * kStepDim * static_cast<double>(model.rows());
    if (lookups != nullptr) {
      const double row_bytes = 4 * kStepDim + 2 * static_cast<double>(records_->layout.record_bytes());
      bytes += lookups->unique_rows() * row_bytes + 8.0 * lookups->lookups();
    }
    return 1e6 * (model.flops() / kBfloat16ProductFlops + bytes / copy_rate_);
  }

  void Header(const std::string& title) const {
    if (flags_.once) return;
    std::printf(
        "\n%s\n\n"
        "| batch | ids | unique rows | optimizer | vectors | grouping | find | median us | min | max | M samples/s | "
        "floor us | of the floor | grouping alone us | find alone us | loss |\n"
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
        title.c_str());
  }

  void Print(const Variant& v, const char* ids, StepModel* model, StepLookups* lookups, const Spread& time,
             double group_us) const {
    const char* const sources[] = {"given", "fused", "pooled"};
    const char* const finds[] = {"", "each", "unique"};
    const double floor_us = FloorUs(v, *model, lookups);
    std::printf("| %lld | %s |", static_cast<long long>(model->rows()), ids);
    if (lookups != nullptr) std::printf(" %.0f", lookups->unique_rows());
    std::printf(" | %s | %s | %s |", v.optimizers.name, sources[static_cast<int>(v.source)],
                lookups == nullptr ? ""
                : v.group_beside   ? "beside"
                                   : "in line");
    if (v.find != Find::kNone) {
      std::printf(" %s, %s", finds[static_cast<int>(v.find)], v.find_ahead ? "ahead" : "in line");
    }
    std::printf(" | %.1f | %.1f | %.1f | %.2f | %.1f | %.0f %% |", time.median_us, time.min_us, time.max_us,
                static_cast<double>(model->rows()) / time.median_us, floor_us, 100 * floor_us / time.median_us);
    if (lookups != nullptr) std::printf(" %.1f", group_us);
    std::printf(" |");
    if (v.find != Find::kNone) std::printf(" %.1f", find_us_);
    std::printf(" | %.5f |\n", model->Loss(stream_));
    std::fflush(stdout);
  }

  const Flags flags_;
  const Stream stream_;
  const Stream side_;   // Of the sort and the rows' optimizer.
  const Stream ahead_;  // Of the next batch's find.
  Event started_, found_, sparse_ready_, rows_updated_;
  DeviceBuffer<char> flush_;
  double copy_rate_ = 0;
  std::map<int64_t, std::unique_ptr<StepModel>> models_;

  // The rows that are measured now.
  std::optional<DeviceRecords> records_;
  uint32_t slots_ = 0;
  std::optional<DeviceBuffer<SparseStep>> sparse_step_;
  DeviceBuffer<uint64_t> refused_ = Allocate<uint64_t>(1);

  // Of the row cache.
  std::optional<RowCacheGpu> cache_;
  uint64_t cache_step_ = 1;
  DeviceBuffer<RowCacheStep> cache_steps_ = Allocate<RowCacheStep>(kStepBatches);
  std::optional<DeviceBuffer<RowName>> names_;  // Of all rows.
  std::optional<DeviceBuffer<RowName>> unique_names_;
  std::optional<DeviceBuffer<uint32_t>> unique_count_;
  std::optional<DeviceBuffer<uint32_t>> unique_index_;
  std::optional<DeviceBuffer<uint32_t>> unique_slots_;
  std::optional<DeviceBuffer<char>> unique_memory_;
  double find_us_ = 0;
};

int Main(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i < argc; ++i) {
    const char* const value = i + 1 < argc ? argv[i + 1] : "";
    if (std::strcmp(argv[i], "--once") == 0) {
      flags.once = true;
      continue;
    }
    if (std::strcmp(argv[i], "--plan-file") == 0) {
      flags.plan_file = value;
    } else if (std::strcmp(argv[i], "--what") == 0) {
      flags.what = value;
    } else if (std::strcmp(argv[i], "--batch") == 0) {
      flags.batch = std::atoll(value);
    } else if (std::strcmp(argv[i], "--rows-max") == 0) {
      flags.rows_max = std::strtoull(value, nullptr, 10);
    } else {
      i = argc;
    }
    ++i;
    const bool is_what = flags.what.empty() || flags.what == "given" || flags.what == "tables" ||
                         flags.what == "cache" || flags.what == "dcnv2";
    if (i >= argc || !is_what || flags.batch < 0 || flags.batch > 1'000'000 || flags.rows_max == 0) {
      std::fprintf(stderr,
                   "usage: %s [--what given|tables|cache|dcnv2] [--batch N] [--rows-max N] [--plan-file FILE] "
                   "[--once]\n",
                   argv[0]);
      return 1;
    }
  }
  if (GpuCount() == 0) {
    std::fprintf(stderr, "no GPU can be used: %s\n", GpuAbsence().c_str());
    return 77;
  }
  Bench bench(flags);
  const auto wanted = [&](const char* what) { return flags.what.empty() || flags.what == what; };
  if (wanted("given")) bench.Given();
  if (wanted("tables")) bench.Tables();
  if (wanted("cache")) bench.Cache();
  if (wanted("dcnv2")) bench.Dcnv2();
  return 0;
}

}  // namespace
}  // namespace sparrow

int main(int argc, char** argv) { return sparrow::Main(argc, argv); }
