#include "server/parallel_tables.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <vector>

namespace sparrow {
namespace {

TEST(ForEachTable, EachOnceWhateverItsSize) {
  const ScopedThreads many(4);
  TaskPool pool(3);
  for (const std::vector<int64_t>& rows :
       {std::vector<int64_t>{}, {0}, {5, 0, 7}, {100'000, 3, 1500, 1500}, std::vector<int64_t>(26, 400)}) {
    std::vector<std::atomic<int>> visits(rows.size());
    ForEachTable(&pool, rows, [&](size_t table) { ++visits[table]; });
    EXPECT_EQ(std::count(visits.begin(), visits.end(), 1), static_cast<int64_t>(rows.size()));
  }
}

TEST(PlannedTables, PartsHaveEachKeyOfEachTableOnce) {
  const ScopedThreads many(4);
  TaskPool pool(3);
  std::mt19937_64 random(11);
  PlannedTables plans;  // Used again, with more tables and with fewer.
  for (int round = 0; round < 30; ++round) {
    std::vector<std::vector<Key>> keys(1 + random() % 9);
    std::vector<int64_t> rows;
    for (std::vector<Key>& of_table : keys) {
      of_table.resize(random() % 3 == 0 ? 0 : random() % (round % 2 == 0 ? 40 : 9000));
      for (Key& key : of_table) key = random();
      rows.push_back(static_cast<int64_t>(of_table.size()));
    }
    plans.Start(rows);
    for (size_t t = 0; t < keys.size(); ++t) plans.plan(t).Build(keys[t], 16u << t % 5);
    std::vector<std::vector<std::atomic<int>>> visits;
    for (const std::vector<Key>& of_table : keys) visits.emplace_back(of_table.size());
    plans.ForEachPart(&pool, [&](size_t t, const PlannedStripes& part) {
      EXPECT_FALSE(keys[t].empty());
      for (uint32_t s = part.begin(); s < part.end(); ++s) {
        for (const uint32_t position : part.plan().Group(s)) ++visits[t][position];
      }
      if (keys[t].size() > 8000) {
        EXPECT_LE(part.end() - part.begin(), part.plan().stripes() / 8) << "a large table is cut";
      }
    });
    for (const std::vector<std::atomic<int>>& of_table : visits) {
      EXPECT_EQ(std::count(of_table.begin(), of_table.end(), 1), static_cast<int64_t>(of_table.size()));
    }
  }
}

}  // namespace
}  // namespace sparrow
