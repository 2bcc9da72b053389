#ifndef SPARROW_SERVER_PARALLEL_TABLES_H_
#define SPARROW_SERVER_PARALLEL_TABLES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "base/parallel.h"
#include "base/task_pool.h"
#include "embedding/batch_plan.h"

namespace sparrow {

// Below this many rows, waking threads costs more than it saves.
inline constexpr int64_t kParallelRowsMin = 2048;
// From so many on a table is worked on by all threads, if the others' rows are few beside.
inline constexpr int64_t kLargeTableRows = 16384;
// That a thread takes at a time, where a table's rows are cut.
inline constexpr int64_t kPartRows = 256;

// The rows of each of a request's entries, one a table.
template <typename Entries>
std::vector<int64_t> RowsOfTables(const Entries& entries) {
  std::vector<int64_t> rows;
  for (const auto& entry : entries) rows.push_back(static_cast<int64_t>(entry.keys().size() / sizeof(Key)));
  return rows;
}

// How many threads work on so many rows.
inline int ThreadsForRows(int64_t rows) { return rows < kParallelRowsMin ? 1 : UsableThreads(); }

// Calls body(i) for each table i, which has rows[i] rows to work on. Tables that have more than a core's share of all
// rows come one after the other, and a ParallelFor inside body has all cores; the others go side by side if they have
// rows enough between them, each thread taking the next one when it is free. For much of what is done with a table's
// rows is one thread's work.
inline void ForEachTable(TaskPool* pool, std::span<const int64_t> rows, absl::FunctionRef<void(size_t table)> body) {
  const int64_t all_rows = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  const int threads = ParallelThreads();
  std::vector<size_t> small;
  int64_t small_rows = 0;
  for (size_t table = 0; table < rows.size(); ++table) {
    if (rows[table] >= kLargeTableRows && rows[table] * threads > all_rows) {
      body(table);
    } else {
      small.push_back(table);
      small_rows += rows[table];
    }
  }
  pool->Run(small.size(), ThreadsForRows(small_rows), [&](size_t i) { body(small[i]); });
}

// Calls body(i, begin, end) for ranges that are all rows of table i together.
inline void ForEachRange(TaskPool* pool, std::span<const int64_t> rows,
                         absl::FunctionRef<void(size_t table, size_t begin, size_t end)> body) {
  constexpr int64_t kRangeRows = 4 * kPartRows;
  std::vector<std::pair<size_t, int64_t>> ranges;  // Table, first row.
  int64_t all_rows = 0;
  for (size_t t = 0; t < rows.size(); ++t) {
    for (int64_t first = 0; first < rows[t]; first += kRangeRows) ranges.emplace_back(t, first);
    all_rows += rows[t];
  }
  pool->Run(ranges.size(), ThreadsForRows(all_rows), [&](size_t i) {
    const auto [table, first] = ranges[i];
    body(table, static_cast<size_t>(first), static_cast<size_t>(std::min(rows[table], first + kRangeRows)));
  });
}

// The keys of each of a request's tables, cut so that threads share a table: grouped by stripe, and the stripes in
// parts. Reusable: keeps its memory from call to call. Not thread-safe.
class PlannedTables {
 public:
  // Makes room for so many tables; the plan of each that has rows is to be built.
  void Start(std::span<const int64_t> rows) {
    if (plans_.size() < rows.size()) plans_.resize(rows.size());
    rows_.assign(rows.begin(), rows.end());
    all_rows_ = std::accumulate(rows_.begin(), rows_.end(), int64_t{0});
  }
  BatchPlan& plan(size_t table) { return plans_[table]; }
  int64_t rows() const { return all_rows_; }

  // Calls body(i, stripes) for parts of table i that are all its stripes together, for each table that has rows.
  // REQUIRES: their plans are built.
  void ForEachPart(TaskPool* pool, absl::FunctionRef<void(size_t table, const PlannedStripes& stripes)> body) {
    struct Part {
      size_t table;
      uint32_t begin, end;
    };
    std::vector<Part> parts;
    for (size_t t = 0; t < rows_.size(); ++t) {
      if (rows_[t] == 0) continue;
      const int64_t stripes = plans_[t].stripes();
      const int64_t n = std::clamp<int64_t>(rows_[t] / kPartRows, 1, stripes);
      for (int64_t i = 0; i < n; ++i) {
        parts.push_back({t, static_cast<uint32_t>(stripes * i / n), static_cast<uint32_t>(stripes * (i + 1) / n)});
      }
    }
    pool->Run(parts.size(), ThreadsForRows(all_rows_), [&](size_t i) {
      body(parts[i].table, PlannedStripes(&plans_[parts[i].table], parts[i].begin, parts[i].end));
    });
  }

 private:
  std::vector<BatchPlan> plans_;  // Of the first rows_.size(): those of this call.
  std::vector<int64_t> rows_;
  int64_t all_rows_ = 0;
};

}  // namespace sparrow

#endif  // SPARROW_SERVER_PARALLEL_TABLES_H_
