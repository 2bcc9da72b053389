#include "worker/key_partition.h"

#include <algorithm>

#include "base/check.h"

namespace sparrow {

void KeyPartition::OrderByServer(TableOrder* table, const ShardAssignment& shards) {
  const uint32_t servers = shards.servers();
  const size_t n = table->keys.size();
  table->server_begin.assign(servers + 1, 0);
  if (servers == 1) {
    table->order.clear();
    table->server_begin[1] = static_cast<uint32_t>(n);
    return;
  }
  table->server_of.resize(n);
  for (size_t i = 0; i < n; ++i) {
    const uint32_t server = shards.ServerOf(table->keys[i]);
    table->server_of[i] = static_cast<uint16_t>(server);
    ++table->server_begin[server + 1];
  }
  for (uint32_t s = 0; s < servers; ++s) table->server_begin[s + 1] += table->server_begin[s];
  table->order.resize(n);
  // Fills each server's range; server_begin[s] runs from the range's begin to its end, and is then shifted back.
  for (size_t i = 0; i < n; ++i) {
    table->order[table->server_begin[table->server_of[i]]++] = static_cast<uint32_t>(i);
  }
  for (uint32_t s = servers; s > 0; --s) table->server_begin[s] = table->server_begin[s - 1];
  table->server_begin[0] = 0;
}

void KeyPartition::Build(std::span<const std::span<const Key>> keys, std::span<const uint32_t> dims,
                         const ShardAssignment& shards, uint64_t chunk_bytes) {
  static_assert(kBuckets <= 1 << 16, "server_of holds a server in 16 bits");
  CHECK_EQ(keys.size(), dims.size());
  CHECK_GT(chunk_bytes, 0u);
  tables_.resize(keys.size());
  rows_ = 0;
  for (size_t t = 0; t < keys.size(); ++t) {
    CHECK_LT(keys[t].size(), size_t{1} << 32);
    tables_[t].keys = keys[t];
    rows_ += keys[t].size();
    OrderByServer(&tables_[t], shards);
  }

  chunks_.clear();
  pieces_.clear();
  for (uint32_t server = 0; server < shards.servers(); ++server) {
    const size_t first_chunk = chunks_.size();
    const auto open_chunk = [&] {
      const uint32_t piece = static_cast<uint32_t>(pieces_.size());
      chunks_.push_back({.server = server,
                         .part = static_cast<uint32_t>(chunks_.size() - first_chunk),
                         .piece_begin = piece,
                         .piece_end = piece});
    };
    open_chunk();
    uint64_t room = chunk_bytes;
    for (uint32_t t = 0; t < tables_.size(); ++t) {
      const uint64_t key_bytes = sizeof(Key) + sizeof(float) * uint64_t{dims[t]};
      uint32_t begin = tables_[t].server_begin[server];
      const uint32_t end = tables_[t].server_begin[server + 1];
      while (begin < end) {
        uint64_t fit = room / key_bytes;
        if (fit == 0) {
          if (chunks_.back().piece_begin != chunks_.back().piece_end) {
            open_chunk();
            room = chunk_bytes;
            continue;
          }
          fit = 1;  // A single row larger than the chunk.
        }
        const uint32_t n = static_cast<uint32_t>(std::min<uint64_t>(fit, end - begin));
        pieces_.push_back({.table = t, .begin = begin, .end = begin + n});
        ++chunks_.back().piece_end;
        begin += n;
        room -= std::min(room, n * key_bytes);
      }
    }
    for (size_t c = first_chunk; c < chunks_.size(); ++c) {
      chunks_[c].parts = static_cast<uint32_t>(chunks_.size() - first_chunk);
    }
  }
}

}  // namespace sparrow
