#ifndef SPARROW_SERVER_PARALLEL_TABLES_H_
#define SPARROW_SERVER_PARALLEL_TABLES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "base/parallel.h"
#include "embedding/partition.h"

namespace sparrow {

// Below this many rows, starting threads costs more than it saves.
inline constexpr int64_t kParallelRowsMin = 16384;

// The rows of each of a request's entries, one a table.
template <typename Entries>
std::vector<int64_t> RowsOfTables(const Entries& entries) {
  std::vector<int64_t> rows;
  for (const auto& entry : entries) rows.push_back(static_cast<int64_t>(entry.keys().size() / sizeof(Key)));
  return rows;
}

// Calls body(i) for each table i, which has rows[i] rows to work on. Tables that have more than a core's share of all
// rows come one after the other, and a ParallelFor inside body has all cores; the others go side by side if they have
// rows enough between them, each thread taking the next one when it is free. For much of what is done with a table's
// rows is one thread's work.
inline void ForEachTable(std::span<const int64_t> rows, absl::FunctionRef<void(size_t table)> body) {
  const int64_t all_rows = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  const auto is_large = [&, threads = ParallelThreads()](size_t table) {
    return rows[table] >= kParallelRowsMin && rows[table] * threads > all_rows;
  };
  int64_t small_rows = 0;
  for (size_t table = 0; table < rows.size(); ++table) {
    if (is_large(table)) {
      body(table);
    } else {
      small_rows += rows[table];
    }
  }
  std::atomic<size_t> next{0};  // Relaxed: only hands out numbers.
  const auto work = [&](int64_t, int64_t) {
    for (size_t table; (table = next.fetch_add(1, std::memory_order_relaxed)) < rows.size();) {
      if (!is_large(table)) body(table);
    }
  };
  if (small_rows < kParallelRowsMin) {
    work(0, 1);
  } else {
    ParallelFor(ParallelThreads(), 1, work);
  }
}

}  // namespace sparrow

#endif  // SPARROW_SERVER_PARALLEL_TABLES_H_
