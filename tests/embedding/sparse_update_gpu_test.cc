// The twins of embedding/sparse_update.h: the CUDA half against the CPU half on random, non-zero data.

#include "embedding/sparse_update_gpu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/cuda/graph.h"
#include "base/random.h"
#include "embedding/sparse_update.h"
#include "tests/support/gpu.h"
#include "tests/support/sparse_batch.h"

namespace sparrow {
namespace {

using Kind = SparseOptimizerKind;

constexpr Kind kKinds[] = {Kind::kSgd,  Kind::kMomentum,    Kind::kAdagrad, Kind::kRowwiseAdagrad,
                           Kind::kAdam, Kind::kRowwiseAdam, Kind::kFtrl,    Kind::kRmsProp};

// Of random sums of up to 70,001 numbers, relative to the sum of absolute values: rounding errors add up like a random
// walk, 6e-8 * sqrt(70001) of a partial sum at most.
constexpr double kSumTolerance = 2e-6;

SparseOptimizer Optimizer(Kind kind) {
  return {.kind = kind,
          .learning_rate = 0.37,
          .weight_decay = kind == Kind::kSgd ? 0.01 : 0,
          .momentum = 0.85,
          .beta1 = 0.87,
          .beta2 = 0.96,
          .eps = 1e-3,
          .initial_accumulator = 0.1,
          .l1 = 0.02,
          .l2 = 0.03,
          .beta = 0.7,
          .decay = 0.93};
}

// The records after the CUDA half. `spare` look-ups more than there are is what the call is told to expect.
std::vector<char> RunGpu(const SparseBatch& c, const TableSpec& spec, const ApplyOptions& options,
                         const std::vector<char>& records, uint32_t spare = 0, uint64_t* refused_rows = nullptr) {
  const Stream stream;
  BatchOnDevice batch(c, LookupsOf(c) + spare, stream);
  const auto step = Upload(std::vector<SparseStep>{StepOf(options)}, stream);
  auto d_records = Upload(records, stream);
  batch.Group(stream);
  batch.Update(spec, step.data(), d_records.data(), stream);
  if (refused_rows != nullptr) *refused_rows = batch.BadRows(stream);
  return Download(d_records, stream);
}

std::vector<float> SumsOfGpu(const SparseBatch& c, uint64_t* not_finite_rows) {
  const Stream stream;
  BatchOnDevice batch(c, LookupsOf(c) + 5, stream);
  auto sums = Upload(std::vector<float>(size_t{c.shape.slots} * c.shape.dim, -77.0f), stream);
  batch.Group(stream);
  batch.Sum(sums.data(), stream);
  *not_finite_rows = batch.BadRows(stream);
  return Download(sums, stream);
}

// Bit for bit.
void ExpectSameRecords(const std::vector<char>& actual, const std::vector<char>& expected, const TableSpec& spec) {
  const auto differs = std::mismatch(actual.begin(), actual.end(), expected.begin()).first - actual.begin();
  const auto slot_bytes = static_cast<int64_t>(spec.Layout().slot_bytes());
  EXPECT_EQ(differs, static_cast<int64_t>(actual.size()))
      << "slot " << differs / slot_bytes << ", byte " << differs % slot_bytes;
}

void ExpectTwins(const BatchShape& shape, Kind kind, uint64_t seed, uint32_t spare = 0) {
  SCOPED_TRACE(testing::Message() << "optimizer " << static_cast<int>(kind) << ", samples " << shape.samples << ", dim "
                                  << shape.dim << ", weighted " << shape.weighted << ", mean " << shape.mean
                                  << ", stride " << shape.stride << ", type " << static_cast<int>(shape.type)
                                  << ", seed " << seed);
  const TableSpec spec{.name = "t", .dim = shape.dim, .optimizer = Optimizer(kind), .initializer = {}};
  const ApplyOptions options{.gradient_scale = 0.75, .learning_rate_factor = 0.6, .step = 0x123456789abcdef0u};
  const SparseBatch c = MakeBatch(shape, seed);
  for (const Bags& bags : c.CpuBags()) ASSERT_TRUE(CheckBags(bags, shape.slots).ok());
  const std::vector<char> before = MakeRecords(spec, shape.slots, seed + 3);
  std::vector<char> expected = before;
  EXPECT_EQ(0u, SparseUpdateCpu(spec, c.CpuBags(), shape.columns, c.gradients, shape.stride, options, expected));

  uint64_t refused_rows = 1;
  const std::vector<char> actual = RunGpu(c, spec, options, before, spare, &refused_rows);
  EXPECT_EQ(refused_rows, 0u);
  ExpectSameRecords(actual, expected, spec);
  EXPECT_TRUE(actual == RunGpu(c, spec, options, before, spare)) << "two runs must agree bit for bit";
}

class SparseUpdateGpuTest : public OnGpu<> {};

constexpr ElementType kTypes[] = {ElementType::kFloat32, ElementType::kBfloat16, ElementType::kFloat16};

// Columns at multiples of 4, or not; features whose columns are not in order. The three types take turns.
BatchShape ShapeOf(uint32_t samples, uint32_t dim, bool weighted, bool mean, bool aligned = true) {
  const uint32_t first = aligned ? (dim + 3) / 4 * 4 : dim + 1;
  return {.samples = samples,
          .slots = 1 + samples / 2,
          .dim = dim,
          .stride = aligned ? 3 * first : 3 * first + 1,
          .columns = {2 * first, first},
          .weighted = weighted,
          .mean = mean,
          .type = kTypes[(samples + dim) % 3]};
}

TEST_F(SparseUpdateGpuTest, EveryOptimizerEqualsTheCpuHalf) {
  for (const Kind kind : kKinds) {
    for (const uint32_t dim : {1u, 7u, 8u, 16u, 129u}) {
      for (const uint32_t samples : {0u, 1u, 31u, 32u, 33u, 257u}) {
        const bool weighted = (samples + dim) % 2 == 0, mean = samples % 4 < 2;
        ExpectTwins(ShapeOf(samples, dim, weighted, mean), kind, 7 * samples + dim);
      }
    }
  }
}

TEST_F(SparseUpdateGpuTest, EveryPoolingEqualsTheCpuHalf) {
  for (const bool weighted : {false, true}) {
    for (const bool mean : {false, true}) {
      for (const bool aligned : {false, true}) {
        for (const ElementType type : kTypes) {
          BatchShape shape = ShapeOf(257, 12, weighted, mean, aligned);
          shape.type = type;
          ExpectTwins(shape, Kind::kRowwiseAdam, 11);
          shape = ShapeOf(1000, 32, weighted, mean, aligned);
          shape.type = type;
          ExpectTwins(shape, Kind::kAdagrad, 12);
        }
      }
    }
  }
}

TEST_F(SparseUpdateGpuTest, EveryWidthEqualsTheCpuHalf) {
  for (const Kind kind : kKinds) {
    for (const uint32_t dim : {4u, 9u, 15u, 17u, 20u, 32u, 48u, 64u, 128u, 132u, 1024u, 1028u, 4095u, 4096u}) {
      ExpectTwins(ShapeOf(70, dim, true, false), kind, dim);
    }
    ExpectTwins(ShapeOf(70, 64, true, true, /*aligned=*/false), kind, 64);
  }
}

TEST_F(SparseUpdateGpuTest, ALargeBatchEqualsTheCpuHalf) {
  for (const Kind kind : {Kind::kSgd, Kind::kRowwiseAdagrad, Kind::kAdam}) {
    ExpectTwins(ShapeOf(70001, 8, false, false), kind, 21);
    ExpectTwins(ShapeOf(70001, 7, true, true), kind, 22);
  }
  for (const ElementType type : kTypes) {
    BatchShape shape = ShapeOf(70001, 128, false, false);
    shape.type = type;
    ExpectTwins(shape, Kind::kRowwiseAdagrad, 23);
  }
}

// Into shared memory, while a group is at work on others.
TEST_F(SparseUpdateGpuTest, RowsThatComeAheadEqualTheCpuHalf) {
  for (const ElementType type : {ElementType::kBfloat16, ElementType::kFloat16}) {
    for (const uint32_t dim : {36u, 64u, 68u, 100u, 128u}) {
      for (const uint32_t samples : {1u, 33u, 257u, 2000u}) {
        BatchShape shape = ShapeOf(samples, dim, samples == 33, samples == 257);
        shape.type = type;
        ExpectTwins(shape, Kind::kRowwiseAdagrad, samples + dim);
      }
    }
  }
}

// Rows of every number of look-ups around a chunk's and a tile's ends, up to one that all of 70,001 samples hit.
TEST_F(SparseUpdateGpuTest, HeavyRowsEqualTheCpuHalf) {
  for (const Kind kind : kKinds) {
    for (const uint32_t slots : {1u, 2u, 3u, 7u, 40u, 100u}) {
      for (const uint32_t samples : {64u, 65u, 129u, 2000u}) {
        BatchShape shape = ShapeOf(samples, slots % 2 == 0 ? 8 : 33, false, false);
        shape.slots = slots;
        ExpectTwins(shape, kind, samples + slots);
      }
    }
  }
  for (const Kind kind : {Kind::kSgd, Kind::kFtrl, Kind::kRowwiseAdam}) {
    for (const uint32_t dim : {3u, 128u}) {
      BatchShape shape = ShapeOf(70001, dim, true, false);
      shape.features = 1;
      shape.columns.resize(1);
      shape.slots = 1;
      shape.lookups_min = shape.lookups_max = 1;
      ExpectTwins(shape, kind, 31);
    }
  }
}

// The order of a light row's sum is the CPU's, so even sums that are not exact agree; a heavy row's differ by rounding.
TEST_F(SparseUpdateGpuTest, SumsThatAreNotExactAgreeBitForBitUpTo64LookUps) {
  for (const Kind kind : kKinds) {
    BatchShape shape = ShapeOf(2000, 20, true, true);
    shape.slots = 40000;  // So that the most frequent row has about 35.
    shape.exact = false;
    ExpectTwins(shape, kind, 41);
  }
}

TEST_F(SparseUpdateGpuTest, AHeavySumThatIsNotExactIsWithinTolerance) {
  BatchShape shape = ShapeOf(70001, 8, false, false);
  shape.slots = 3;
  shape.exact = false;
  shape.type = ElementType::kFloat32;
  const SparseBatch c = MakeBatch(shape, 51);
  TableSpec spec{.name = "t", .dim = 8, .optimizer = Optimizer(Kind::kSgd), .initializer = {}};
  spec.optimizer.learning_rate = 1;
  spec.optimizer.weight_decay = 0;
  const std::vector<char> zero(3 * spec.Layout().slot_bytes());
  std::vector<char> expected = zero, magnitudes = zero;
  SparseUpdateCpu(spec, c.CpuBags(), shape.columns, c.gradients, shape.stride, {}, expected);
  SparseBatch absolute = c;
  for (float& g : absolute.gradients) g = std::abs(g);
  SparseUpdateCpu(spec, c.CpuBags(), shape.columns, absolute.gradients, shape.stride, {}, magnitudes);
  const std::vector<char> actual = RunGpu(c, spec, {}, zero);
  EXPECT_TRUE(actual == RunGpu(c, spec, {}, zero)) << "two runs must agree bit for bit";
  for (uint32_t slot = 0; slot < 3; ++slot) {
    const uint64_t at = slot * spec.Layout().slot_bytes();
    for (uint32_t i = 0; i < 8; ++i) {
      const auto weight = [&](std::vector<char> records) { return spec.Layout().Weights(records.data() + at)[i]; };
      EXPECT_NEAR(weight(actual), weight(expected), kSumTolerance * std::abs(weight(magnitudes)));
    }
  }
}

TEST_F(SparseUpdateGpuTest, LookUpsBehindTheLastBagArePassedOver) {
  for (const uint32_t spare : {1u, 31u, 33u, 5000u}) {
    ExpectTwins(ShapeOf(257, 16, true, false), Kind::kAdagrad, 61, spare);
    ExpectTwins(ShapeOf(33, 7, false, true), Kind::kRowwiseAdagrad, 62, spare);
  }
}

// The slot of a row, and what else is in the batch, must not show in its bits: a cache puts rows where there is room.
TEST_F(SparseUpdateGpuTest, ARowsBitsDependOnItsOwnLookUpsAlone) {
  const TableSpec spec{.name = "t", .dim = 16, .optimizer = Optimizer(Kind::kRowwiseAdagrad), .initializer = {}};
  const uint64_t slot_bytes = spec.Layout().slot_bytes();
  BatchShape shape = ShapeOf(1000, 16, false, false);
  shape.slots = 5;
  shape.exact = false;
  const SparseBatch c = MakeBatch(shape, 71);
  const std::vector<char> before = MakeRecords(spec, 50, 72);
  std::vector<char> moved = before;
  SparseBatch other = c;
  other.shape.slots = 50;
  const auto new_slot = [](uint32_t slot) { return 49 - 7 * slot; };
  for (std::vector<uint32_t>& index : other.index) {
    for (uint32_t& slot : index) slot = new_slot(slot);
  }
  for (uint32_t slot = 0; slot < 5; ++slot) {
    std::memcpy(moved.data() + new_slot(slot) * slot_bytes, before.data() + slot * slot_bytes, slot_bytes);
  }
  const std::vector<char> first(before.begin(), before.begin() + static_cast<int64_t>(5 * slot_bytes));
  const std::vector<char> a = RunGpu(c, spec, {.step = 3}, first);
  const std::vector<char> b = RunGpu(other, spec, {.step = 3}, moved);
  for (uint32_t slot = 0; slot < 5; ++slot) {
    EXPECT_EQ(0, std::memcmp(a.data() + slot * slot_bytes, b.data() + new_slot(slot) * slot_bytes, slot_bytes))
        << "slot " << slot;
  }
}

// Some gradients of a case become useless, or too large once they are scaled.
void Spoil(SparseBatch* c, uint64_t seed) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> bad = {infinity, -infinity, std::numeric_limits<float>::quiet_NaN(), 1.6e15f};
  const size_t kinds = c->shape.type == ElementType::kFloat16 ? 3 : 4;
  for (uint32_t i = 0; i < 20; ++i) {
    const uint64_t at = RandomBits(seed, i) % c->gradients.size();
    c->gradients[at] = Rounded(c->shape.type, bad[i % kinds]);
  }
  c->gradients[c->shape.columns[0] + c->shape.dim - 1] = infinity;  // The last element of a gradient.
}

TEST_F(SparseUpdateGpuTest, RowsWhoseSumIsNotFiniteOrTooLargeAreLeftAndCounted) {
  for (const Kind kind : kKinds) {
    for (const uint32_t dim : {3u, 16u, 20u, 128u, 260u, 1028u}) {
      for (const uint32_t slots : {3u, 400u}) {
        BatchShape shape = ShapeOf(300, dim, false, false);
        shape.slots = slots;
        shape.lookups_min = 1;
        SCOPED_TRACE(testing::Message() << "optimizer " << static_cast<int>(kind) << ", dim " << dim << ", slots "
                                        << slots << ", type " << static_cast<int>(shape.type));
        SparseBatch c = MakeBatch(shape, 81);
        Spoil(&c, 82);
        const TableSpec spec{.name = "t", .dim = dim, .optimizer = Optimizer(kind), .initializer = {}};
        const ApplyOptions options{.gradient_scale = 0.75, .learning_rate_factor = 0.6, .step = 5};
        const std::vector<char> before = MakeRecords(spec, slots, 83);
        std::vector<char> expected = before;
        const uint64_t refused =
            SparseUpdateCpu(spec, c.CpuBags(), shape.columns, c.gradients, shape.stride, options, expected);
        EXPECT_GT(refused, 0u);
        uint64_t actual_refused = 0;
        ExpectSameRecords(RunGpu(c, spec, options, before, 3, &actual_refused), expected, spec);
        EXPECT_EQ(actual_refused, refused);
      }
    }
  }
}

TEST_F(SparseUpdateGpuTest, SumsAloneEqualTheCpuHalfAndAre0WhereNoLookUpReads) {
  for (const uint32_t dim : {1u, 7u, 8u, 16u, 64u, 128u, 129u, 260u, 4096u}) {
    for (const uint32_t samples : {0u, 1u, 31u, 32u, 33u, 257u, 2000u}) {
      if (dim > 1000 && samples > 300) continue;
      for (const bool few_slots : {false, true}) {
        BatchShape shape = ShapeOf(samples, dim, samples % 2 == 1, dim % 2 == 1, /*aligned=*/samples != 33);
        shape.slots = few_slots ? 3 : 1 + samples / 2;
        SparseBatch c = MakeBatch(shape, samples + dim);
        c.shape.slots += 100;  // That are not read, between those that are and behind them.
        for (std::vector<uint32_t>& index : c.index) {
          for (uint32_t& slot : index) slot += slot > 0 ? 70 : 0;
        }
        if (samples > 31) Spoil(&c, 91);
        SCOPED_TRACE(testing::Message() << "samples " << samples << ", dim " << dim << ", slots " << shape.slots);
        std::vector<float> expected(size_t{c.shape.slots} * dim);
        const uint64_t not_finite =
            SumGradientsCpu(c.CpuBags(), shape.columns, c.gradients, shape.stride, dim, expected);
        uint64_t actual_not_finite = 0;
        const std::vector<float> actual = SumsOfGpu(c, &actual_not_finite);
        EXPECT_EQ(actual_not_finite, not_finite);
        for (size_t i = 0; i < expected.size(); ++i) {
          if (std::isnan(expected[i]) && std::isnan(actual[i])) continue;
          // Beside a number of 1.6e15 a heavy row's sum is not exact.
          const float tolerance = std::abs(expected[i]) > 1e13f ? 1e-6f * std::abs(expected[i]) : 0;
          if (actual[i] == expected[i]) continue;
          ASSERT_NEAR(actual[i], expected[i], tolerance) << "slot " << i / dim << ", column " << i % dim;
        }
      }
    }
  }
}

// SGD at a rate of 1 from weights of 0 leaves the negative sums.
TEST_F(SparseUpdateGpuTest, SumsAloneHaveTheBitsThatAnUpdateSums) {
  for (const ElementType type : kTypes) {
    for (const uint32_t slots : {2u, 500u}) {
      BatchShape shape = ShapeOf(2000, 128, true, true);
      shape.type = type;
      shape.slots = slots;
      shape.exact = false;
      const SparseBatch c = MakeBatch(shape, 101);
      TableSpec spec{.name = "t", .dim = shape.dim, .optimizer = Optimizer(Kind::kSgd), .initializer = {}};
      spec.optimizer.learning_rate = 1;
      spec.optimizer.weight_decay = 0;
      std::vector<char> records = RunGpu(c, spec, {}, std::vector<char>(uint64_t{slots} * spec.Layout().slot_bytes()));
      uint64_t not_finite = 1;
      const std::vector<float> sums = SumsOfGpu(c, &not_finite);
      EXPECT_EQ(not_finite, 0u);
      for (uint64_t slot = 0; slot < slots; ++slot) {
        const float* weights = spec.Layout().Weights(records.data() + slot * spec.Layout().slot_bytes());
        for (uint32_t i = 0; i < shape.dim; ++i) ASSERT_EQ(weights[i], -sums[slot * shape.dim + i]) << "slot " << slot;
      }
    }
  }
}

// A step's calls, recorded once, on batches of other sizes than the one that they were recorded with.
TEST_F(SparseUpdateGpuTest, OneGraphServesBatchesOfEverySize) {
  for (const ElementType type : kTypes) {
    SCOPED_TRACE(testing::Message() << "type " << static_cast<int>(type));
    BatchShape shape = ShapeOf(300, 36, true, true);
    shape.slots = 40;  // So that there are heavy rows in some batches.
    shape.type = type;
    const TableSpec spec{
        .name = "t", .dim = shape.dim, .optimizer = Optimizer(Kind::kRowwiseAdagrad), .initializer = {}};
    const RowLayout layout = spec.Layout();
    std::vector<char> expected = MakeRecords(spec, shape.slots, 111);

    const Stream stream;
    BatchOnDevice batch(MakeBatch(shape, 112), shape.features * shape.samples * shape.lookups_max, stream);
    auto step = Upload(std::vector<SparseStep>(1), stream);
    auto records = Upload(expected, stream);
    auto output = Upload(std::vector<float>(size_t{shape.samples} * shape.stride, -9.0f), stream);
    const Graph graph(stream, [&] {
      BagsForwardGpu(batch.bags(), DeviceRecords{records.data(), layout}.Rows(),
                     batch.Pooled(output.data(), ElementType::kFloat32), stream);
      batch.Group(stream);
      batch.Update(spec, step.data(), records.data(), stream);
    });
    uint64_t seed = 120;
    for (const uint32_t used : {300u, 1u, 0u, 57u, 299u, 300u}) {
      SCOPED_TRACE(testing::Message() << used << " samples");
      shape.used = used;
      const SparseBatch c = MakeBatch(shape, ++seed);
      const ApplyOptions options{.gradient_scale = 0.75, .learning_rate_factor = 0.1 * used, .step = seed};
      std::vector<float> rows, pooled(size_t{shape.samples} * shape.stride, -9.0f);
      for (uint32_t slot = 0; slot < shape.slots; ++slot) {
        const float* weights = layout.Weights(expected.data() + slot * layout.slot_bytes());
        rows.insert(rows.end(), weights, weights + shape.dim);
      }
      for (uint32_t f = 0; f < shape.features; ++f) {
        BagForwardCpu(c.CpuBags()[f], rows, shape.dim, pooled, shape.stride, shape.columns[f]);
      }
      SparseUpdateCpu(spec, c.CpuBags(), shape.columns, c.gradients, shape.stride, options, expected);

      batch.Put(c, stream);
      const std::vector<SparseStep> host_step = {StepOf(options)};
      step.CopyFrom(host_step, stream);
      graph.Replay(stream);
      EXPECT_TRUE(Download(output, stream) == pooled);
      ExpectSameRecords(Download(records, stream), expected, spec);
    }
  }
}

}  // namespace
}  // namespace sparrow
