// The twins of embedding/row_cache.h: the same calls to both halves, and equal results and contents after each, bit by
// bit. (So two runs of the CUDA half equal each other, too.)

#include "embedding/row_cache_gpu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/cuda/device_buffer.h"
#include "base/cuda/graph.h"
#include "base/random.h"
#include "embedding/row_cache.h"
#include "tests/support/gpu.h"
#include "tests/support/stated_costs.h"

namespace sparrow {
namespace {

struct Hasher {
  size_t operator()(const RowName& name) const { return Mix64(name.key) ^ name.table; }
};

template <typename T>
DeviceBuffer<T> Allocate(size_t n) {
  auto buffer = DeviceBuffer<T>::Allocate(n);
  CHECK(buffer.has_value()) << "the GPU is out of memory";
  return std::move(*buffer);
}

// Arrays for `max` names, for the calls of a step.
struct Arrays {
  Arrays(uint32_t max, const RowLayout& layout)
      : names(Allocate<RowName>(max)),
        count(Allocate<uint32_t>(1)),
        step(Allocate<RowCacheStep>(1)),
        slots(Allocate<uint32_t>(max)),
        values(Allocate<float>(size_t{max} * layout.dim())),
        missing(Allocate<RowName>(max)),
        positions(Allocate<uint32_t>(max)),
        missing_count(Allocate<uint32_t>(1)),
        records(Allocate<char>(max * layout.slot_bytes())),
        new_slots(Allocate<uint32_t>(max)),
        out_names(Allocate<RowName>(max)),
        out_records(Allocate<char>(max * layout.slot_bytes())),
        out_dirty(Allocate<uint8_t>(max)),
        out_count(Allocate<uint32_t>(1)),
        refused(Allocate<uint32_t>(max)),
        refused_count(Allocate<uint32_t>(1)) {}

  DeviceEvicted evicted() {
    return {out_names.data(), out_records.data(), out_dirty.data(),
            out_count.data(), refused.data(),     refused_count.data()};
  }

  DeviceBuffer<RowName> names;
  DeviceBuffer<uint32_t> count;
  DeviceBuffer<RowCacheStep> step;
  DeviceBuffer<uint32_t> slots;
  DeviceBuffer<float> values;
  DeviceBuffer<RowName> missing;
  DeviceBuffer<uint32_t> positions, missing_count;
  DeviceBuffer<char> records;
  DeviceBuffer<uint32_t> new_slots;
  DeviceBuffer<RowName> out_names;
  DeviceBuffer<char> out_records;
  DeviceBuffer<uint8_t> out_dirty;
  DeviceBuffer<uint32_t> out_count, refused, refused_count;
};

void ExpectNames(const std::vector<RowName>& actual, const std::vector<RowName>& expected, const char* what) {
  ASSERT_LE(expected.size(), actual.size()) << what;
  for (size_t i = 0; i < expected.size(); ++i) ASSERT_TRUE(actual[i] == expected[i]) << what << " " << i;
}

template <typename T>
void ExpectPrefix(const std::vector<T>& actual, const std::vector<T>& expected, const char* what) {
  ASSERT_LE(expected.size(), actual.size()) << what;
  if (expected.empty()) return;
  ASSERT_EQ(std::memcmp(actual.data(), expected.data(), expected.size() * sizeof(T)), 0) << what;
}

std::vector<char> RandomRecords(size_t bytes, uint64_t seed) {
  std::vector<char> records(bytes);
  for (size_t i = 0; i + 8 <= bytes; i += 8) {
    const uint64_t bits = RandomBits(seed, i);
    std::memcpy(records.data() + i, &bits, 8);
  }
  return records;
}

// A cache of each half.
class Twins {
 public:
  Twins(const RowCacheOptions& options, const Stream& queue)
      : options_(options), queue_(queue), cpu_(options), gpu_(RowCacheGpu::Make(options, queue).value()) {
    CHECK_EQ(cpu_.slots(), gpu_.slots());
    // The staging rows, which no call may change.
    const std::vector<char> staging = RandomRecords(options.staging_rows * options.layout.slot_bytes(), 99);
    std::copy(staging.begin(), staging.end(), cpu_.record(cpu_.slots()));
    internal::CopyToDevice(gpu_.records().data + cpu_.slots() * options.layout.slot_bytes(), staging.data(),
                           staging.size(), queue);
    queue.Synchronize();
  }

  RowCacheCpu& cpu() { return cpu_; }
  RowCacheGpu& gpu() { return gpu_; }

  // Slot by slot: what the rows are, and what is known of them.
  void ExpectEqualContents() {
    const uint32_t slots = cpu_.slots();
    if (slots == 0) return;
    const DeviceRowIndex& index = gpu_.index();
    std::vector<CacheEntry> entries(slots);
    std::vector<uint8_t> digests(slots), dirty(slots);
    std::vector<char> records((slots + options_.staging_rows) * options_.layout.slot_bytes());
    Fetch(index.entries, &entries);
    Fetch(index.digests, &digests);
    Fetch(index.dirty, &dirty);
    Fetch(gpu_.records().data, &records);
    queue_.Synchronize();
    const size_t bytes = options_.layout.slot_bytes();
    for (uint32_t slot = 0; slot < slots; ++slot) {
      const RowName name{entries[slot].key, entries[slot].table};
      ASSERT_EQ(entries[slot].score, cpu_.scores()[slot]) << "slot " << slot;
      ASSERT_EQ(dirty[slot], cpu_.dirty()[slot]) << "slot " << slot;
      ASSERT_EQ(digests[slot], entries[slot].score == 0 ? 0 : CacheDigestOf(NameBits(name))) << "slot " << slot;
      if (entries[slot].score == 0) continue;
      ASSERT_TRUE(name == cpu_.names()[slot]) << "slot " << slot;
      ASSERT_EQ(std::memcmp(records.data() + slot * bytes, cpu_.record(slot), bytes), 0) << "slot " << slot;
    }
    ASSERT_EQ(std::memcmp(records.data() + slots * bytes, cpu_.record(slots), options_.staging_rows * bytes), 0);
  }

  // Compares what Insert of `names` gives with what the arrays hold.
  void ExpectInserts(const std::vector<RowName>& names, const std::vector<char>& records, const RowCacheStep& step,
                     Arrays* arrays, std::vector<uint32_t>* slots) {
    slots->resize(names.size());
    const EvictedRows evicted = cpu_.Insert(names, records, step, *slots);
    ExpectPrefix(Download(arrays->new_slots, queue_), *slots, "slots of new rows");
    ASSERT_EQ(Download(arrays->out_count, queue_)[0], evicted.names.size());
    ExpectNames(Download(arrays->out_names, queue_), evicted.names, "evicted name");
    ExpectPrefix(Download(arrays->out_records, queue_), evicted.records, "evicted records");
    ExpectPrefix(Download(arrays->out_dirty, queue_), evicted.dirty, "evicted dirty marks");
    ASSERT_EQ(Download(arrays->refused_count, queue_)[0], evicted.refused.size());
    ExpectPrefix(Download(arrays->refused, queue_), evicted.refused, "refused");
    evicted_ += evicted.names.size();
    refused_ += evicted.refused.size();
  }

  uint64_t evicted() const { return evicted_; }
  uint64_t refused() const { return refused_; }

 private:
  template <typename T>
  void Fetch(const T* from, std::vector<T>* to) {
    internal::CopyToHost(to->data(), from, to->size() * sizeof(T), queue_);
  }

  RowCacheOptions options_;
  const Stream& queue_;
  RowCacheCpu cpu_;
  RowCacheGpu gpu_;
  uint64_t evicted_ = 0;
  uint64_t refused_ = 0;
};

struct Shape {
  uint32_t n;
  uint32_t dim;
  uint32_t buckets;
  uint32_t steps = 6;
  SparseOptimizerKind optimizer = SparseOptimizerKind::kAdagrad;
};

void PrintTo(const Shape& shape, std::ostream* out) {
  *out << shape.n << " names, dim " << shape.dim << ", " << shape.buckets << " buckets";
}

RowCacheOptions OptionsOf(const Shape& shape) {
  const RowLayout layout(shape.dim, shape.optimizer);
  return {layout, uint64_t{shape.buckets} * kBucketSlots * (layout.slot_bytes() + 18), 5, std::max(shape.n, 300u)};
}

// Unique names, of about as many keys as have room, and a few edges.
std::vector<RowName> UniqueNames(const Shape& shape, std::mt19937_64* random) {
  const uint64_t keys = std::max<uint64_t>(2 * shape.n, uint64_t{shape.buckets} * kBucketSlots * 3 / 4);
  std::vector<RowName> names;
  std::unordered_set<RowName, Hasher> distinct;
  while (names.size() < shape.n) {
    const RowName name{(*random)() % keys - 3, static_cast<uint32_t>((*random)() % 3) - 1};
    if (distinct.insert(name).second) names.push_back(name);
  }
  return names;
}

class RowCacheGpuTwins : public OnGpu<::testing::TestWithParam<Shape>> {};

TEST_P(RowCacheGpuTwins, EqualCallsGiveEqualResultsAndContents) {
  const Shape shape = GetParam();
  const uint64_t seed = 31 * shape.n + shape.dim + shape.buckets;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  const Stream stream;
  const RowCacheOptions options = OptionsOf(shape);
  const size_t bytes = options.layout.slot_bytes();
  Twins twins(options, stream);
  Arrays arrays(shape.n, options.layout);
  const DeviceNames all{arrays.names.data(), shape.n, nullptr};

  for (uint64_t step = 1; step <= shape.steps; ++step) {
    // The first steps pin all, later ones little.
    const RowCacheStep now{1000 + step, step < 3 ? 0 : 1000 + step - 1, /*steps_kept=*/step % 4};
    const std::vector<RowName> names = UniqueNames(shape, &random);
    arrays.names.CopyFrom(names, stream);
    arrays.step.CopyFrom({&now, 1}, stream);

    std::vector<uint32_t> slots(shape.n);
    std::vector<float> values(size_t{shape.n} * shape.dim, -5.0f);
    arrays.values.CopyFrom(values, stream);
    twins.gpu().Find(all, arrays.step.data(), arrays.slots.data(), arrays.values.data(), stream);
    twins.cpu().Find(names, &now, slots, values);
    ExpectPrefix(Download(arrays.slots, stream), slots, "slots");
    ExpectPrefix(Download(arrays.values, stream), values, "values");

    twins.gpu().ListMissing(all, arrays.slots.data(),
                            {arrays.missing.data(), arrays.positions.data(), arrays.missing_count.data()}, stream);
    const MissingRows missing = ListMissing(names, slots);
    ASSERT_EQ(Download(arrays.missing_count, stream)[0], missing.names.size());
    ExpectNames(Download(arrays.missing, stream), missing.names, "missing name");
    ExpectPrefix(Download(arrays.positions, stream), missing.positions, "missing position");

    // Their number is known to the GPU alone.
    const std::vector<char> records = RandomRecords(shape.n * bytes, seed + step);
    arrays.records.CopyFrom(records, stream);
    twins.gpu().Insert({arrays.missing.data(), shape.n, arrays.missing_count.data()}, arrays.records.data(),
                       arrays.step.data(), arrays.new_slots.data(), arrays.evicted(), stream);
    const std::vector<char> used(records.begin(), records.begin() + static_cast<int64_t>(missing.names.size() * bytes));
    std::vector<uint32_t> new_slots;
    twins.ExpectInserts(missing.names, used, now, &arrays, &new_slots);
    twins.ExpectEqualContents();
    if (HasFatalFailure()) return;

    // Half of the rows found (where one was evicted for a new one, the new one) and of the new ones. Some repeat, and
    // some are kNoSlot.
    std::vector<uint32_t> changed;
    for (size_t i = 0; i < slots.size(); i += 2) changed.push_back(slots[i]);
    for (size_t i = 0; i < new_slots.size(); i += 2) changed.insert(changed.end(), 2, new_slots[i]);
    changed.push_back(twins.cpu().slots() + 4);  // A staging row.
    const auto device_changed = Upload(changed, stream);
    twins.gpu().MarkDirty(device_changed.data(), static_cast<uint32_t>(changed.size()), nullptr, stream);
    twins.cpu().MarkDirty(changed);

    // Names that repeat, are there or not; looked at only.
    std::vector<RowName> repeated(names);
    for (size_t i = 0; i < repeated.size(); ++i) {
      if (i % 3 == 0) repeated[i] = names[i / 7];
      if (i % 5 == 0) repeated[i].key += 1;
    }
    arrays.names.CopyFrom(repeated, stream);
    twins.gpu().Find(all, nullptr, arrays.slots.data(), nullptr, stream);
    std::vector<uint32_t> again(shape.n);
    twins.cpu().Find(repeated, nullptr, again);
    ExpectPrefix(Download(arrays.slots, stream), again, "slots of repeated names");
    // Used, two times at the same step, and at an earlier one.
    const RowCacheStep later{2000 + step, 0}, earlier{5, 0};
    for (const RowCacheStep& use : {later, later, earlier}) {
      if (step % 2 == 0) break;
      arrays.step.CopyFrom({&use, 1}, stream);
      twins.gpu().Find(all, arrays.step.data(), arrays.slots.data(), nullptr, stream);
      twins.cpu().Find(repeated, &use, again);
      stream.Synchronize();
    }
    twins.ExpectEqualContents();
    if (HasFatalFailure()) return;

    // Dirty rows of some slots, up to less than there are.
    const uint32_t first = twins.cpu().slots() / 4;
    const uint32_t range = std::min(options.batch_rows, twins.cpu().slots() - first);
    for (const uint32_t most : {std::min(shape.n, 33u), std::min(shape.n, range), 0u}) {
      DeviceBuffer<uint32_t>& count = arrays.out_count;
      twins.gpu().TakeDirty(first, range, {arrays.out_names.data(), arrays.out_records.data(), most, count.data()},
                            stream);
      const DirtyRows dirty = twins.cpu().TakeDirty(first, range, most);
      ASSERT_EQ(Download(count, stream)[0], dirty.names.size());
      ExpectNames(Download(arrays.out_names, stream), dirty.names, "dirty name");
      ExpectPrefix(Download(arrays.out_records, stream), dirty.records, "dirty records");
    }
    // Rows in use and staging rows, copied by slot.
    std::vector<uint32_t> copied;
    const uint32_t all = twins.cpu().slots() + options.staging_rows;
    for (uint32_t i = 0; i < shape.n && all > 0; ++i) {
      const uint32_t slot = static_cast<uint32_t>(RandomBits(step, i) % all);
      if (slot >= twins.cpu().slots() || twins.cpu().scores()[slot] != 0) copied.push_back(slot);
    }
    std::vector<char> expected;
    for (const uint32_t slot : copied) {
      const char* const record = twins.cpu().record(slot);
      expected.insert(expected.end(), record, record + options.layout.slot_bytes());
    }
    const auto copied_slots = Upload(copied, stream);
    const auto copied_count = Upload(std::vector<uint32_t>{static_cast<uint32_t>(copied.size())}, stream);
    twins.gpu().CopyRows(copied_slots.data(), static_cast<uint32_t>(copied.size()), copied_count.data(),
                         arrays.out_records.data(), stream);
    ExpectPrefix(Download(arrays.out_records, stream), expected, "copied records");
    twins.ExpectEqualContents();
    if (HasFatalFailure()) return;
  }
  if (shape.n > 100) {
    EXPECT_GT(twins.evicted() + twins.refused(), 0u) << "the shape does not test what it should";
  }
}

INSTANTIATE_TEST_SUITE_P(Small, RowCacheGpuTwins,
                         testing::Values(Shape{0, 8, 2}, Shape{1, 1, 1}, Shape{31, 7, 1}, Shape{32, 8, 1},
                                         Shape{33, 16, 1}, Shape{33, 4096, 1, 5}, Shape{33, 129, 3, 8},
                                         Shape{257, 1, 1}, Shape{257, 64, 2},
                                         Shape{257, 129, 2, 8, SparseOptimizerKind::kAdam}, Shape{257, 4096, 2, 4},
                                         Shape{257, 16, 0}, Shape{257, 1000, 1, 4, SparseOptimizerKind::kSgd},
                                         Shape{300, 2, 7, 12}));
INSTANTIATE_TEST_SUITE_P(Large, RowCacheGpuTwins,
                         testing::Values(Shape{70001, 1, 700, 4}, Shape{70001, 7, 300, 3}, Shape{70001, 8, 1000, 4},
                                         Shape{70001, 16, 555, 3}, Shape{70001, 129, 300, 3}, Shape{70001, 3, 1, 3}));

class RowCacheGpuOnGpu : public OnGpu<> {};

TEST_F(RowCacheGpuOnGpu, NamesOfOneDigestAndBucketAreToldApart) {
  const Shape shape{200, 8, 3};
  const Stream stream;
  Twins twins(OptionsOf(shape), stream);
  Arrays arrays(shape.n, OptionsOf(shape).layout);
  std::vector<RowName> names;
  for (uint64_t key = 0; names.size() < shape.n; ++key) {
    const RowName name{key, static_cast<uint32_t>(key % 2)};
    if (CacheBucketOf(NameBits(name), 3) == 1 && CacheDigestOf(NameBits(name)) == 1) names.push_back(name);
  }
  const RowCacheStep now{3, 3};
  const std::vector<char> records = RandomRecords(shape.n * OptionsOf(shape).layout.slot_bytes(), 1);
  arrays.names.CopyFrom(names, stream);
  arrays.step.CopyFrom({&now, 1}, stream);
  arrays.records.CopyFrom(records, stream);
  const DeviceNames all{arrays.names.data(), shape.n, nullptr};
  twins.gpu().Insert(all, arrays.records.data(), arrays.step.data(), arrays.new_slots.data(), arrays.evicted(), stream);
  std::vector<uint32_t> slots;
  twins.ExpectInserts(names, records, now, &arrays, &slots);
  EXPECT_EQ(twins.refused(), shape.n - kBucketSlots);
  twins.gpu().Find(all, arrays.step.data(), arrays.slots.data(), nullptr, stream);
  EXPECT_EQ(Download(arrays.slots, stream), slots);
  twins.ExpectEqualContents();
}

// One step of both: look up, insert what is missing, mark every second new row.
void Step(const std::vector<RowName>& names, const RowCacheStep& now, const RowCacheOptions& options, Twins* twins,
          Arrays* arrays, const Stream& stream) {
  const auto n = static_cast<uint32_t>(names.size());
  std::vector<uint32_t> slots(n), new_slots;
  internal::CopyToDevice(arrays->names.data(), names.data(), n * sizeof(RowName), stream);
  arrays->step.CopyFrom({&now, 1}, stream);
  twins->gpu().Find({arrays->names.data(), n, nullptr}, arrays->step.data(), arrays->slots.data(), nullptr, stream);
  twins->cpu().Find(names, &now, slots);
  ExpectPrefix(Download(arrays->slots, stream), slots, "slots");
  const MissingRows missing = ListMissing(names, slots);
  const auto to_insert = static_cast<uint32_t>(missing.names.size());
  const std::vector<char> records = RandomRecords(to_insert * options.layout.slot_bytes(), now.step);
  internal::CopyToDevice(arrays->missing.data(), missing.names.data(), to_insert * sizeof(RowName), stream);
  internal::CopyToDevice(arrays->records.data(), records.data(), records.size(), stream);
  twins->gpu().Insert({arrays->missing.data(), to_insert, nullptr}, arrays->records.data(), arrays->step.data(),
                      arrays->new_slots.data(), arrays->evicted(), stream);
  twins->ExpectInserts(missing.names, records, now, arrays, &new_slots);
  for (size_t i = 0; i < new_slots.size(); i += 2) new_slots[i] = kNoSlot;
  const auto changed = Upload(new_slots, stream);
  twins->gpu().MarkDirty(changed.data(), to_insert, nullptr, stream);
  twins->cpu().MarkDirty(new_slots);
  twins->ExpectEqualContents();
}

TEST_F(RowCacheGpuOnGpu, AnyKeyOfAnyTableIsARow) {
  std::vector<RowName> names;
  for (const uint32_t table : {0u, 1u, 0x7fffffffu, 0x80000000u, 0xffffffffu}) {
    for (int bit = 0; bit < 64; bit += 3) {
      for (const uint64_t key : {uint64_t{1} << bit, ~(uint64_t{1} << bit)}) names.push_back({key, table});
    }
    names.push_back({0, table});
    names.push_back({~uint64_t{0}, table});
  }
  std::mt19937_64 random(3);
  while (names.size() < 1000) names.push_back({random(), static_cast<uint32_t>(random())});
  const Shape shape{1000, 8, 20};
  const Stream stream;
  const RowCacheOptions options = OptionsOf(shape);
  Twins twins(options, stream);
  Arrays arrays(shape.n, options.layout);
  for (uint64_t step = 1; step < 4; ++step) Step(names, {step, step}, options, &twins, &arrays, stream);
  EXPECT_EQ(twins.refused() + twins.evicted(), 0u);
  const std::vector<uint32_t> slots = Download(arrays.slots, stream);
  EXPECT_EQ(std::unordered_set<uint32_t>(slots.begin(), slots.end()).size(), names.size()) << "two rows in one slot";
  EXPECT_EQ(std::count(slots.begin(), slots.end(), kNoSlot), 0);
}

// Steps are compared modulo 2^24: what was used shortly before a wrap is older than what was used behind it, and rows
// in flight stay across it.
TEST_F(RowCacheGpuOnGpu, StepsWrap) {
  for (const uint64_t wrap : {uint64_t{1} << 23, uint64_t{1} << 24, uint64_t{1} << 32, ~uint64_t{0} - 2}) {
    SCOPED_TRACE(testing::Message() << "wrap " << wrap);
    const Shape shape{90, 8, 2};
    const Stream stream;
    const RowCacheOptions options = OptionsOf(shape);
    Twins twins(options, stream);
    Arrays arrays(shape.n, options.layout);
    for (uint64_t i = 0; i < 12; ++i) {
      const uint64_t step = wrap + i - 6;
      std::vector<RowName> names(shape.n);  // Half of them are the batch before's.
      for (uint32_t k = 0; k < shape.n; ++k) names[k] = {i * shape.n / 2 + k, 1};
      Step(names, {step, step - 1}, options, &twins, &arrays, stream);
      if (HasFatalFailure()) return;
    }
    EXPECT_GT(twins.evicted(), 0u);
    // Half the range on, and back to a step gone by.
    Step({{1'000'000, 1}, {1'000'001, 1}}, {wrap + kHalfRange, wrap + kHalfRange}, options, &twins, &arrays, stream);
    Step({{1'000'002, 1}, {1'000'003, 1}}, {wrap - 5, wrap - 6}, options, &twins, &arrays, stream);
  }
}

TEST_F(RowCacheGpuOnGpu, AGraphServesStepsOfSeveralSizes) {
  const Shape shape{2000, 8, 12};
  const Stream stream;
  const RowCacheOptions options = OptionsOf(shape);
  Twins twins(options, stream);
  Arrays arrays(shape.n, options.layout);
  const DeviceNames names{arrays.names.data(), shape.n, arrays.count.data()};
  const Graph graph(stream, [&] {
    twins.gpu().Find(names, arrays.step.data(), arrays.slots.data(), arrays.values.data(), stream);
    twins.gpu().ListMissing(names, arrays.slots.data(),
                            {arrays.missing.data(), arrays.positions.data(), arrays.missing_count.data()}, stream);
    twins.gpu().Insert({arrays.missing.data(), shape.n, arrays.missing_count.data()}, arrays.records.data(),
                       arrays.step.data(), arrays.new_slots.data(), arrays.evicted(), stream);
    twins.gpu().MarkDirty(arrays.new_slots.data(), shape.n, arrays.missing_count.data(), stream);
  });
  std::mt19937_64 random(5);
  uint64_t step = 0;
  for (const uint32_t count : {2000u, 0u, 1u, 1333u, 1999u}) {
    ++step;
    const std::vector<RowName> batch = UniqueNames(shape, &random);
    const std::vector<char> records = RandomRecords(shape.n * options.layout.slot_bytes(), step);
    const RowCacheStep now{step, step};
    arrays.names.CopyFrom(batch, stream);
    arrays.count.CopyFrom({&count, 1}, stream);
    arrays.step.CopyFrom({&now, 1}, stream);
    arrays.records.CopyFrom(records, stream);
    graph.Replay(stream);
    const std::span<const RowName> here(batch.data(), count);
    std::vector<uint32_t> slots(count), new_slots;
    twins.cpu().Find(here, &now, slots);
    ExpectPrefix(Download(arrays.slots, stream), slots, "slots");
    const MissingRows missing = ListMissing(here, slots);
    ASSERT_EQ(Download(arrays.missing_count, stream)[0], missing.names.size());
    const std::vector<char> used(
        records.begin(), records.begin() + static_cast<int64_t>(missing.names.size() * options.layout.slot_bytes()));
    twins.ExpectInserts(missing.names, used, now, &arrays, &new_slots);
    twins.cpu().MarkDirty(new_slots);
    twins.ExpectEqualContents();
    if (HasFatalFailure()) return;
  }
}

TEST_F(RowCacheGpuOnGpu, EveryKernelStatesItsCost) {
  const Shape shape{2000, 8, 12};
  const Stream stream;
  const RowCacheOptions options = OptionsOf(shape);
  RowCacheGpu cache = RowCacheGpu::Make(options, stream).value();
  Arrays arrays(shape.n, options.layout);
  std::mt19937_64 random(5);
  arrays.names = Upload(UniqueNames(shape, &random), stream);
  arrays.step = Upload<RowCacheStep>({{1, 1}}, stream);
  arrays.records.Fill(0, stream);
  const DeviceNames names{arrays.names.data(), shape.n, nullptr};
  ExpectStatedCosts([&] {
    cache.Find(names, arrays.step.data(), arrays.slots.data(), nullptr, stream);
    cache.ListMissing(names, arrays.slots.data(),
                      {arrays.missing.data(), arrays.positions.data(), arrays.missing_count.data()}, stream);
    cache.Insert(names, arrays.records.data(), arrays.step.data(), arrays.new_slots.data(), arrays.evicted(), stream);
    cache.Find(names, arrays.step.data(), arrays.slots.data(), arrays.values.data(), stream);
    cache.MarkDirty(arrays.new_slots.data(), shape.n, nullptr, stream);
    cache.TakeDirty(0, std::min(cache.slots(), shape.n),
                    {arrays.out_names.data(), arrays.out_records.data(), shape.n, arrays.out_count.data()}, stream);
    cache.CopyRows(arrays.new_slots.data(), shape.n, arrays.missing_count.data(), arrays.out_records.data(), stream);
    stream.Synchronize();
  });
}

TEST_F(RowCacheGpuOnGpu, AGpuWithoutRoomIsAnAnswer) {
  const RowLayout layout(4096, SparseOptimizerKind::kAdam);
  const Stream stream;
  EXPECT_FALSE(RowCacheGpu::Make({layout, uint64_t{1} << 42, 0, 1000}, stream).has_value());
}

}  // namespace
}  // namespace sparrow
