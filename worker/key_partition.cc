#include "worker/key_partition.h"

#include <algorithm>
#include <atomic>

#include "base/check.h"
#include "base/parallel.h"

namespace sparrow {
namespace {

// What a key and its row take in a message.
uint64_t KeyBytes(uint32_t dim) { return sizeof(Key) + sizeof(float) * uint64_t{dim}; }

}  // namespace

void KeyPartition::Order(uint32_t table, std::span<const Key> keys, const ShardAssignment& shards,
                         const KeyFilter* before, TableOrder* order) {
  const uint32_t servers = shards.servers();
  const size_t n = keys.size();
  std::vector<uint32_t>& begin = order->group_begin;
  begin.assign(2 * size_t{servers} + 1, 0);
  if (servers == 1 && before == nullptr) {
    order->keys.assign(keys.begin(), keys.end());
    order->position.clear();
    begin[2] = static_cast<uint32_t>(n);
    return;
  }
  order->position.resize(n);
  for (size_t i = 0; i < n; ++i) {
    const bool late = before == nullptr || before->MayHave(table, keys[i]);
    const uint32_t group = 2 * shards.ServerOf(keys[i]) + (late ? 1 : 0);
    order->position[i] = group;  // For now.
    ++begin[group + 1];
  }
  for (size_t g = 1; g < begin.size(); ++g) begin[g] += begin[g - 1];
  order->keys.resize(n);
  // Fills each group's range; begin[g] runs from the range's begin to its end, and is then shifted back.
  for (size_t i = 0; i < n; ++i) {
    const uint32_t to = begin[order->position[i]]++;
    order->keys[to] = keys[i];
    order->position[i] = to;
  }
  for (size_t g = begin.size() - 1; g > 0; --g) begin[g] = begin[g - 1];
  begin[0] = 0;
}

void KeyPartition::Build(std::span<const std::span<const Key>> keys, std::span<const TableShape> tables,
                         const ShardAssignment& shards, const ChunkBytes& chunk_bytes, const KeyFilter* before) {
  CHECK_EQ(keys.size(), tables.size());
  CHECK_GT(chunk_bytes.pull, 0u);
  CHECK_GT(chunk_bytes.push, 0u);
  tables_.resize(keys.size());
  rows_ = 0;
  for (const std::span<const Key> of_table : keys) {
    CHECK_LT(of_table.size(), size_t{1} << 32);
    rows_ += of_table.size();
  }
  // Fewer keys are ordered sooner than threads wake up.
  constexpr uint64_t kParallelKeysMin = 32768;
  std::atomic<size_t> next{0};  // Relaxed: only hands out numbers.
  const auto order = [&](int64_t, int64_t) {
    for (size_t t; (t = next.fetch_add(1, std::memory_order_relaxed)) < keys.size();) {
      Order(static_cast<uint32_t>(t), keys[t], shards, tables[t].evicts ? nullptr : before, &tables_[t]);
    }
  };
  if (rows_ < kParallelKeysMin) {
    order(0, 1);
  } else {
    ParallelFor(std::min<int64_t>(ParallelThreads(), static_cast<int64_t>(keys.size())), 1, order);
  }
  for (Cut* cut : {&pulls_, &pushes_}) {
    cut->chunks.clear();
    cut->pieces.clear();
  }
  for (uint32_t server = 0; server < shards.servers(); ++server) {
    const uint32_t early = 2 * server;
    CutGroups(tables, server, early, early + 1, chunk_bytes.pull, /*always=*/false, &pulls_);
    CutGroups(tables, server, early + 1, early + 2, chunk_bytes.pull, /*always=*/true, &pulls_);
    CutGroups(tables, server, early, early + 2, chunk_bytes.push, /*always=*/true, &pushes_);
  }
  NumberParts(&pulls_);
  NumberParts(&pushes_);
}

void KeyPartition::CutGroups(std::span<const TableShape> tables, uint32_t server, uint32_t group_begin,
                             uint32_t group_end, uint64_t chunk_bytes, bool always, Cut* cut) const {
  const size_t first_chunk = cut->chunks.size();
  const auto open_chunk = [&] {
    const uint32_t piece = static_cast<uint32_t>(cut->pieces.size());
    cut->chunks.push_back(
        {.server = server, .late = group_end == 2 * server + 2, .piece_begin = piece, .piece_end = piece});
  };
  if (always) open_chunk();
  // Chunks of about one size: they travel side by side, and the step waits for the last.
  uint64_t total = 0;
  uint64_t largest = 0;
  for (uint32_t t = 0; t < tables_.size(); ++t) {
    total += KeyBytes(tables[t].dim) * (tables_[t].group_begin[group_end] - tables_[t].group_begin[group_begin]);
    largest = std::max(largest, KeyBytes(tables[t].dim));
  }
  const uint64_t chunks = std::max<uint64_t>(1, (total + chunk_bytes - 1) / chunk_bytes);
  const uint64_t even = std::min(chunk_bytes, total / chunks + largest);
  uint64_t room = even;
  for (uint32_t t = 0; t < tables_.size(); ++t) {
    const uint64_t key_bytes = KeyBytes(tables[t].dim);
    uint32_t begin = tables_[t].group_begin[group_begin];
    const uint32_t end = tables_[t].group_begin[group_end];
    while (begin < end) {
      if (cut->chunks.size() == first_chunk) open_chunk();
      uint64_t fit = room / key_bytes;
      if (fit == 0) {
        if (cut->chunks.back().piece_begin != cut->chunks.back().piece_end) {
          open_chunk();
          room = even;
          continue;
        }
        fit = 1;  // A single row larger than the chunk.
      }
      const uint32_t n = static_cast<uint32_t>(std::min<uint64_t>(fit, end - begin));
      cut->pieces.push_back({.table = t, .begin = begin, .end = begin + n});
      ++cut->chunks.back().piece_end;
      begin += n;
      room -= std::min(room, n * key_bytes);
    }
  }
}

void KeyPartition::NumberParts(Cut* cut) {
  for (size_t first = 0; first < cut->chunks.size();) {
    size_t end = first;
    while (end < cut->chunks.size() && cut->chunks[end].server == cut->chunks[first].server) ++end;
    for (size_t c = first; c < end; ++c) {
      cut->chunks[c].part = static_cast<uint32_t>(c - first);
      cut->chunks[c].parts = static_cast<uint32_t>(end - first);
    }
    first = end;
  }
}

}  // namespace sparrow
