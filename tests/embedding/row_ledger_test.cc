// Admission and eviction, as tables of every tier must do them: against a model that states the policies literally.

#include "embedding/row_ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "embedding/table.h"
#include "tests/support/row_model.h"
#include "tests/support/table_specs.h"
#include "tests/support/temporary_directory.h"

namespace sparrow {
namespace {

constexpr uint32_t kDim = 5;

TableSpec PolicySpec(Admission admission, Eviction eviction) {
  TableSpec spec = TestSpec("t", kDim, SparseOptimizerKind::kRowwiseAdagrad);
  spec.admission = admission;
  spec.eviction = eviction;
  return spec;
}

std::vector<float> RandomGradients(size_t keys, std::mt19937_64* random) {
  std::vector<float> gradients(keys * kDim);
  for (float& g : gradients) g = std::uniform_real_distribution<float>(-1, 1)(*random);
  return gradients;
}

// In DRAM alone (budget 0), or tiered with so many bytes.
class Home {
 public:
  explicit Home(uint64_t budget_bytes) : budget_(budget_bytes == 0 ? uint64_t{1} << 30 : budget_bytes) {
    if (budget_bytes != 0) cold_ = ColdStore::Create(directory_.File("cold")).value();
  }
  std::unique_ptr<Table> Make(const TableSpec& spec) {
    if (cold_ == nullptr) return MakeHostTable(spec, &budget_);
    // The background thread writes for stripes of a few rows, so that it does while rows are forgotten.
    return MakeTieredTable(spec, &budget_, cold_.get(), {.background_rows_min = 8}).value();
  }

 private:
  TemporaryDirectory directory_;
  MemoryBudget budget_;
  std::unique_ptr<ColdStore> cold_;
};

// The words of table.proto, where rows_max is below 2,048 and ttl_steps below 16: exact at every step.
class PolicyModel {
 public:
  explicit PolicyModel(const TableSpec& spec) : spec_(spec), layout_(spec.Layout()) {}

  void Apply(const std::vector<Key>& keys, std::span<const float> gradients, const ApplyOptions& options) {
    const RowUpdate update(spec_, options);
    for (size_t i = 0; i < keys.size(); ++i) {
      const std::pair<uint32_t, Key> at = {BucketOf(keys[i]), keys[i]};
      if (!records_.contains(at)) {
        if (spec_.admission.count != 0 && ++seen_[keys[i]] < spec_.admission.count) {
          ++dropped;
          continue;
        }
        seen_.erase(keys[i]);
        std::string& record = records_[at];
        record.resize(layout_.record_bytes());
        InitRowCpu(spec_, keys[i], record.data());
      }
      update(keys[i], gradients.data() + i * kDim, records_[at].data());
    }
  }

  void EndStep(uint64_t step) {
    const Eviction& eviction = spec_.eviction;
    if (eviction.ttl_steps != 0) {
      std::erase_if(records_, [&](const auto& row) {
        const bool old = layout_.Metadata(row.second.data()).last_step + eviction.ttl_steps < step;
        evicted_ttl += old;
        return old;
      });
    }
    while (eviction.rows_max != 0 && records_.size() > eviction.rows_max) {
      const auto rank = [&](const auto& row) {
        const RowMetadata metadata = layout_.Metadata(row.second.data());
        return std::make_tuple(eviction.policy == EvictionPolicy::kLfu ? metadata.frequency : 0, metadata.last_step,
                               row.first.second);
      };
      const auto victim = std::min_element(records_.begin(), records_.end(), [&](const auto& a, const auto& b) {
        const bool a_used = layout_.Metadata(a.second.data()).last_step == step;
        const bool b_used = layout_.Metadata(b.second.data()).last_step == step;
        return a_used != b_used ? b_used : rank(a) < rank(b);
      });
      if (layout_.Metadata(victim->second.data()).last_step == step) break;
      records_.erase(victim);
      ++evicted_capacity;
    }
  }

  const Records& records() const { return records_; }

  uint64_t dropped = 0, evicted_ttl = 0, evicted_capacity = 0;

 private:
  const TableSpec spec_;
  const RowLayout layout_;
  Records records_;
  std::map<Key, uint32_t> seen_;
};

uint64_t Seed() {
  const char* const given = std::getenv("SPARROW_TEST_SEED");
  const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 20'261'129;
  std::cout << "SPARROW_TEST_SEED=" << seed << "\n";
  return seed;
}

class RowPolicy : public testing::TestWithParam<uint64_t> {
 protected:
  std::vector<float> MustPull(Table* table, const std::vector<Key>& keys, PullMode mode = PullMode::kCreate) {
    std::vector<float> rows(keys.size() * kDim);
    const absl::Status status = table->Pull(keys, mode, rows);
    EXPECT_TRUE(status.ok()) << status;
    return rows;
  }
  void MustApply(Table* table, const std::vector<Key>& keys, std::span<const float> gradients, uint64_t step) {
    const absl::Status status = table->Apply(keys, gradients, {.step = step});
    ASSERT_TRUE(status.ok()) << status;
  }
  void MustEnd(Table* table, uint64_t step) {
    const absl::Status status = table->EndStep(step);
    ASSERT_TRUE(status.ok()) << status;
  }
  // One step with gradients of 1.
  void Step(Table* table, const std::vector<Key>& keys, uint64_t step) {
    MustPull(table, keys);
    MustApply(table, keys, std::vector<float>(keys.size() * kDim, 1.0f), step);
    MustEnd(table, step);
  }
  std::vector<float> Initial(const TableSpec& spec, const std::vector<Key>& keys) {
    std::vector<float> rows(keys.size() * kDim);
    for (size_t i = 0; i < keys.size(); ++i) LoadInitialWeights(spec, keys[i], rows.data() + i * kDim);
    return rows;
  }

  Home home_{GetParam()};
};

std::string TierName(const testing::TestParamInfo<uint64_t>& info) {
  constexpr const char* kNames[] = {"Host", "Roomy", "Small", "Tiny"};
  return kNames[info.index];
}
INSTANTIATE_TEST_SUITE_P(Tiers, RowPolicy, testing::Values(0u, 1u << 30, 32u << 10, 1u), TierName);

TEST_P(RowPolicy, RandomStepsEqualTheModelBitForBit) {
  const uint64_t seed = Seed();
  const std::pair<Admission, Eviction> policies[] = {
      {{.count = 3}, {}},
      {{}, {.ttl_steps = 4}},
      {{}, {.rows_max = 150}},
      {{}, {.rows_max = 150, .policy = EvictionPolicy::kLfu}},
      {{.count = 2}, {.ttl_steps = 9, .rows_max = 120}},
      {{.count = 2}, {.ttl_steps = 15, .rows_max = 200, .policy = EvictionPolicy::kLfu}},
      {{}, {.rows_max = 3}},  // Fewer than a step's.
  };
  int index = 0;
  for (const auto& [admission, eviction] : policies) {
    SCOPED_TRACE(index);
    TableSpec spec = PolicySpec(admission, eviction);
    spec.name += std::to_string(index++);
    const auto table = home_.Make(spec);
    PolicyModel model(spec);
    std::mt19937_64 random(seed);
    for (uint64_t step = 0; step < 120; ++step) {
      std::set<Key> unique;
      for (int i = 0; i < 30; ++i) unique.insert(RandomBits(1, random() % (random() % 3 == 0 ? 2'000 : 60)));
      std::vector<Key> keys(unique.begin(), unique.end());
      std::shuffle(keys.begin(), keys.end(), random);
      const std::vector<float> gradients = RandomGradients(keys.size(), &random);
      MustPull(table.get(), keys);
      MustApply(table.get(), keys, gradients, step);
      model.Apply(keys, gradients, {.step = step});
      MustEnd(table.get(), step);
      model.EndStep(step);
      ASSERT_EQ(table->Stats().rows, model.records().size()) << "step " << step;
      if (step % 10 == 9) {
        ASSERT_TRUE(ExportAll(table.get()).value() == model.records()) << "step " << step;
      }
    }
    const TableStats stats = table->Stats();
    EXPECT_EQ(stats.dropped_gradients, model.dropped);
    EXPECT_EQ(stats.evicted_ttl, model.evicted_ttl);
    EXPECT_EQ(stats.evicted_capacity, model.evicted_capacity);
    EXPECT_EQ(model.dropped > 0, admission.enabled());
    EXPECT_EQ(model.evicted_ttl + model.evicted_capacity > 0, eviction.enabled());
  }
}

TEST_P(RowPolicy, AdmissionByCountDropsTheGradientsBeforeAndPullsDoNotCount) {
  const TableSpec spec = PolicySpec({.count = 3}, {});
  const auto table = home_.Make(spec);
  const std::vector<Key> keys = {7};
  const std::vector<float> initial = Initial(spec, keys);
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(MustPull(table.get(), keys), initial);
    EXPECT_EQ(MustPull(table.get(), keys, PullMode::kLook), initial);
  }
  for (uint64_t step = 5; step < 7; ++step) {
    Step(table.get(), keys, step);
    MustApply(table.get(), keys, std::vector<float>(kDim, 1.0f), step);  // Once more in the same step.
    EXPECT_EQ(MustPull(table.get(), keys), initial);
    EXPECT_EQ(table->Stats().rows, 0u);
  }
  std::vector<float> gradient(kDim, 2.0f);
  MustApply(table.get(), keys, gradient, 7);
  RowModel model(spec);
  model.Apply(keys, gradient, {.step = 7});
  EXPECT_EQ(ExportAll(table.get()).value(), model.records());
  EXPECT_EQ(table->Stats().dropped_gradients, 4u);
}

TEST_P(RowPolicy, AdmissionByChanceIsAFunctionOfSeedIdAndStep) {
  constexpr double kProbability = 0.3;
  constexpr size_t kKeys = 4'000;
  TableSpec spec = PolicySpec({.probability = kProbability}, {});
  std::vector<Key> keys(kKeys);
  for (size_t i = 0; i < kKeys; ++i) keys[i] = RandomBits(2, i);
  const auto admitted_in = [&](uint64_t step, bool split) {
    const auto table = home_.Make(spec);
    if (split) {
      for (size_t i = kKeys; i > 0; i -= 500) {
        MustApply(table.get(), {keys.begin() + i - 500, keys.begin() + i}, std::vector<float>(500 * kDim, 1.0f), step);
      }
    } else {
      MustApply(table.get(), keys, std::vector<float>(kKeys * kDim, 1.0f), step);
    }
    return ExportAll(table.get()).value();
  };
  const Records first = admitted_in(3, false);
  EXPECT_NEAR(static_cast<double>(first.size()), kKeys * kProbability,
              5 * std::sqrt(kKeys * kProbability * (1 - kProbability)));
  EXPECT_TRUE(admitted_in(3, true) == first);
  EXPECT_FALSE(admitted_in(4, false) == first);
  spec.seed += 1;
  EXPECT_FALSE(admitted_in(3, false) == first);
}

TEST_P(RowPolicy, ARowThatComesBackIsNewAndWhole) {
  const TableSpec spec = PolicySpec({}, {.ttl_steps = 2});
  const auto table = home_.Make(spec);
  std::vector<Key> keys, others;
  for (Key key = 0; key < 400; ++key) (key < 300 ? keys : others).push_back(key);
  for (uint64_t step = 0; step < 3; ++step) Step(table.get(), keys, step);
  EXPECT_NE(MustPull(table.get(), keys), Initial(spec, keys));
  for (uint64_t step = 3; step < 6; ++step) Step(table.get(), others, step);
  EXPECT_EQ(table->Stats().rows, others.size());
  EXPECT_EQ(table->Stats().evicted_ttl, keys.size());
  EXPECT_LE(table->Stats().disk_rows, others.size());
  EXPECT_EQ(MustPull(table.get(), keys, PullMode::kLook), Initial(spec, keys));
  EXPECT_EQ(MustPull(table.get(), keys), Initial(spec, keys));
  // And with fresh optimizer state: like the first update of a row ever.
  std::mt19937_64 random(3);
  const std::vector<float> gradients = RandomGradients(keys.size(), &random);
  MustApply(table.get(), keys, gradients, 6);
  RowModel model(spec);
  model.Apply(keys, gradients, {.step = 6});
  Records records = ExportAll(table.get()).value();
  for (const Key key : others) records.erase({BucketOf(key), key});
  EXPECT_TRUE(records == model.records());
}

TEST_P(RowPolicy, ALongTtlIsExceededByAnEighthAtMost) {
  constexpr uint64_t kTtl = 100;
  const TableSpec spec = PolicySpec({}, {.ttl_steps = kTtl});
  const uint64_t period = RowLedger::Period(spec.eviction);
  ASSERT_LE(period, kTtl / 8);
  const auto table = home_.Make(spec);
  std::vector<Key> keys(500);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = RandomBits(9, i);
  Step(table.get(), keys, 10);
  for (uint64_t step = 11; step < 10 + kTtl + 1 + period; ++step) {
    MustEnd(table.get(), step);
    if (step <= 10 + kTtl) {
      ASSERT_EQ(table->Stats().rows, keys.size()) << step;
    }
  }
  EXPECT_EQ(table->Stats().rows, 0u);
  EXPECT_TRUE(ExportAll(table.get()).value().empty());
}

TEST_P(RowPolicy, RowsMaxHoldsAfterEveryStepAndRowsInUseStay) {
  constexpr uint64_t kRowsMax = 5'000;  // Several parts.
  const TableSpec spec = PolicySpec({}, {.rows_max = kRowsMax});
  const auto table = home_.Make(spec);
  std::vector<Key> hot(200);
  for (size_t i = 0; i < hot.size(); ++i) hot[i] = RandomBits(1, i);
  for (uint64_t step = 0; step < 60; ++step) {
    std::vector<Key> keys = step % 4 == 0 ? hot : std::vector<Key>();
    for (uint64_t i = 0; i < 300; ++i) keys.push_back(RandomBits(2, step * 300 + i));
    Step(table.get(), keys, step);
    ASSERT_EQ(table->Stats().rows, std::min<uint64_t>(kRowsMax, 200 + (step + 1) * 300)) << step;
  }
  const Records records = ExportAll(table.get()).value();
  EXPECT_EQ(records.size(), kRowsMax);
  for (const Key key : hot) {
    const auto found = records.find({BucketOf(key), key});
    ASSERT_TRUE(found != records.end());
    ASSERT_EQ(spec.Layout().Metadata(found->second.data()).updates, 15u);  // It was there all the time.
  }
}

// The same steps, the keys of each in another order and in two calls: the same rows in every tier.
TEST_P(RowPolicy, WhatIsForgottenDependsOnTheStepsAlone) {
  const TableSpec spec = PolicySpec({.count = 2}, {.ttl_steps = 40, .rows_max = 4'500, .policy = EvictionPolicy::kLfu});
  Home plain(0);
  const auto table = home_.Make(spec);
  const auto reference = plain.Make(spec);
  std::mt19937_64 random(12);
  for (uint64_t step = 0; step < 60; ++step) {
    std::set<Key> unique;
    while (unique.size() < 500) unique.insert(RandomBits(3, random() % 20'000));
    std::vector<Key> keys(unique.begin(), unique.end());
    Step(reference.get(), keys, step);
    std::shuffle(keys.begin(), keys.end(), random);
    const size_t half = keys.size() / 2;
    for (const auto& part :
         {std::vector<Key>(keys.begin() + half, keys.end()), std::vector<Key>(keys.begin(), keys.begin() + half)}) {
      MustApply(table.get(), part, std::vector<float>(part.size() * kDim, 1.0f), step);
    }
    MustEnd(table.get(), step);
  }
  EXPECT_TRUE(ExportAll(table.get()).value() == ExportAll(reference.get()).value());
  EXPECT_GT(table->Stats().evicted_ttl, 0u);
}

TEST_P(RowPolicy, ARestoredTableForgetsAsTheSavedOne) {
  TableSpec spec = PolicySpec({.probability = 0.5}, {.ttl_steps = 30, .rows_max = 3'000});
  const auto from = home_.Make(spec);
  const auto step_of = [&](Table* table, uint64_t step) {
    std::vector<Key> keys;
    for (uint64_t i = 0; i < 200; ++i) keys.push_back(RandomBits(4, RandomBits(step, i) % 8'000));
    std::sort(keys.begin(), keys.end());
    keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
    Step(table, keys, step);
  };
  for (uint64_t step = 0; step < 50; ++step) step_of(from.get(), step);
  spec.name = "restored";
  const auto to = home_.Make(spec);
  const Records saved = ExportAll(from.get()).value();
  for (const auto& [at, record] : saved) ASSERT_TRUE(to->Import(at.second, record).ok());
  EXPECT_EQ(to->Stats().admitted, 0u);
  for (uint64_t step = 50; step < 100; ++step) {
    step_of(from.get(), step);
    step_of(to.get(), step);
  }
  EXPECT_TRUE(ExportAll(from.get()).value() == ExportAll(to.get()).value());
}

TEST_P(RowPolicy, EachDecisionMovesItsCounterAndNoOther) {
  const auto decisions = [](const TableStats& stats) {
    return std::vector<uint64_t>{stats.admitted, stats.not_admitted, stats.dropped_gradients, stats.evicted_ttl,
                                 stats.evicted_capacity};
  };
  const auto table = home_.Make(PolicySpec({.count = 2}, {.ttl_steps = 3, .rows_max = 4}));
  const auto expect = [&](std::vector<uint64_t> expected) { EXPECT_EQ(decisions(table->Stats()), expected); };
  const std::vector<Key> keys = {1, 2, 3};
  MustPull(table.get(), keys, PullMode::kLook);
  expect({0, 0, 0, 0, 0});
  MustPull(table.get(), keys);
  expect({0, 3, 0, 0, 0});
  MustApply(table.get(), keys, std::vector<float>(3 * kDim, 1.0f), 0);
  expect({0, 3, 3, 0, 0});
  MustApply(table.get(), keys, std::vector<float>(3 * kDim, 1.0f), 1);
  expect({3, 3, 3, 0, 0});
  MustPull(table.get(), keys);
  MustApply(table.get(), keys, std::vector<float>(3 * kDim, 1.0f), 2);
  MustEnd(table.get(), 5);
  expect({3, 3, 3, 0, 0});
  MustEnd(table.get(), 6);
  expect({3, 3, 3, 3, 0});
  const std::vector<Key> more = {11, 12, 13, 14, 15, 16};
  MustApply(table.get(), more, std::vector<float>(6 * kDim, 1.0f), 7);
  MustApply(table.get(), more, std::vector<float>(6 * kDim, 1.0f), 8);
  MustEnd(table.get(), 8);  // None goes in the step that used it.
  expect({9, 3, 9, 3, 0});
  MustEnd(table.get(), 9);
  expect({9, 3, 9, 3, 2});

  const auto plain = home_.Make(TestSpec("plain", kDim, SparseOptimizerKind::kSgd));
  Step(plain.get(), keys, 1);
  EXPECT_EQ(decisions(plain->Stats()), std::vector<uint64_t>(5, 0));
  EXPECT_EQ(plain->Stats().rows, 3u);
}

// Every row's weights start equal and stay so, whoever forgets it meanwhile; a torn or mixed row would not.
TEST_P(RowPolicy, ForgettingBesideReadsAndWritesTearsNothing) {
  TableSpec spec = PolicySpec({}, {.ttl_steps = 20, .rows_max = 300});
  spec.optimizer = {.kind = SparseOptimizerKind::kSgd, .learning_rate = 1};
  spec.initializer = {InitializerKind::kConstant, 0};
  const auto table = home_.Make(spec);
  std::atomic<uint64_t> step{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      for (int round = 0; round < 150 || table->Stats().evicted_capacity <= 1'000; ++round) {
        std::set<Key> unique;
        for (int i = 0; i < 40; ++i) unique.insert(random() % 1'000);
        const std::vector<Key> keys(unique.begin(), unique.end());
        const std::vector<float> rows = MustPull(table.get(), keys, t == 0 ? PullMode::kLook : PullMode::kCreate);
        for (size_t i = 0; i < rows.size(); ++i) ASSERT_EQ(rows[i], rows[i / kDim * kDim]) << "torn row";
        for (const float weight : rows) ASSERT_EQ(weight, std::floor(weight));
        if (t != 0) MustApply(table.get(), keys, std::vector<float>(keys.size() * kDim, -1.0f), ++step);
      }
    });
  }
  std::thread ender([&] {
    while (!stop) MustEnd(table.get(), step);
  });
  for (std::thread& thread : threads) thread.join();
  stop = true;
  ender.join();
  MustEnd(table.get(), step + 1);
  EXPECT_LE(table->Stats().rows, 300u);
  EXPECT_EQ(ExportAll(table.get()).value().size(), table->Stats().rows);
  EXPECT_GT(table->Stats().evicted_capacity, 1'000u);
}

TEST(RowLedger, IdsWithoutARowTakeBoundedMemory) {
  MemoryBudget budget(1);
  constexpr uint64_t kCandidates = 8'192;
  {
    RowLedger ledger(PolicySpec({.count = 2}, {}), &budget, kCandidates);
    const auto none = [](std::span<const RowLedger::Victim>) -> absl::StatusOr<uint64_t> { return 0; };
    uint64_t bytes = 0;
    for (uint64_t step = 0; step < 600; ++step) {
      std::vector<Key> keys(200);
      for (size_t i = 0; i < keys.size(); ++i) keys[i] = RandomBits(1, step * keys.size() + i);
      EXPECT_TRUE(ledger.Admit(keys, step).empty());
      ASSERT_TRUE(ledger.EndStep(step, none).ok());
      ASSERT_LE(ledger.candidates(), kCandidates + 64 * keys.size());
      if (step == 300) bytes = ledger.bytes();
    }
    EXPECT_LE(ledger.bytes(), bytes * 3 / 2);
    EXPECT_EQ(budget.used(), static_cast<int64_t>(ledger.bytes()));
    // Those seen last are remembered, those seen long ago not.
    std::vector<Key> keys = {RandomBits(1, 0), RandomBits(1, 600 * 200 - 1)};
    EXPECT_THAT(ledger.Admit(keys, 600), testing::ElementsAre(1));
  }
  EXPECT_EQ(budget.used(), 0);
}

}  // namespace
}  // namespace sparrow
