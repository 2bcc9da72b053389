#ifndef SPARROW_WORKER_HOT_MESSAGE_H_
#define SPARROW_WORKER_HOT_MESSAGE_H_

// What a worker tells all others in a step about the rows that they hold together (worker/replicated_rows.h). Little-
// endian: a head; for each table the number of slots, the slots, and a gradient for each; the number of proposals, and
// for each its key (8 bytes), table and uses (4 bytes each); and the number of shares, and for each how many of its
// rows have gradients in GPU memory, where these are exchanged between GPUs and not here; 0 shares: they are not. It
// goes between programs of one build only.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "embedding/table_spec.h"
#include "worker/hot_set.h"

namespace sparrow {

// The head. What is equal on all workers tells whether they are still of one mind.
struct HotHead {
  uint64_t magic = 0x31736d6877726170;
  uint64_t rank = 0;
  uint64_t step = 0;     // Equal on all.
  uint64_t set = 0;      // A digest of which rows are held where; equal on all.
  uint64_t records = 0;  // A digest of rows as they were lately; equal on all.
  uint64_t samples = 0;  // Of this worker's batch.
};

// Of the rows that the batch of one worker uses. Views.
struct HotGradients {
  std::span<const uint32_t> slots;   // [n], unique.
  std::span<const float> gradients;  // [n, dim]: sums over the worker's samples.
};

struct HotMessage {
  HotHead head;
  std::vector<HotGradients> tables;
  std::vector<RowUses> proposals;
  std::vector<uint32_t> rows_on_gpu;  // [shares], or empty.
};

// In a buffer of the caller's.
void AppendHotMessage(const HotMessage& message, std::string* bytes);

// Of whom it comes, and what is known of it: rank, step, set, records. `bytes` outlive the result, whose slots are
// those of rows of their table, and whose proposals are rows of the job that are not held, each with at least one use.
// Slots may repeat. FailedPrecondition names the rank and what differs.
absl::StatusOr<HotMessage> ParseHotMessage(absl::string_view bytes, const HotHead& expected,
                                           std::span<const TableSpec> tables, std::span<const HotSet> sets,
                                           std::span<const size_t> set_of_table);

}  // namespace sparrow

#endif  // SPARROW_WORKER_HOT_MESSAGE_H_
