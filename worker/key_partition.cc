#include "worker/key_partition.h"

#include <algorithm>

#include "base/check.h"

namespace sparrow {

void KeyPartition::OrderByServer(std::span<const Key> keys, const ShardAssignment& shards, TableOrder* table) {
  const uint32_t servers = shards.servers();
  const size_t n = keys.size();
  table->server_begin.assign(servers + 1, 0);
  if (servers == 1) {
    table->keys.assign(keys.begin(), keys.end());
    table->position.clear();
    table->server_begin[1] = static_cast<uint32_t>(n);
    return;
  }
  table->position.resize(n);
  for (size_t i = 0; i < n; ++i) {
    const uint32_t server = shards.ServerOf(keys[i]);
    table->position[i] = server;  // For now.
    ++table->server_begin[server + 1];
  }
  for (uint32_t s = 0; s < servers; ++s) table->server_begin[s + 1] += table->server_begin[s];
  table->keys.resize(n);
  // Fills each server's range; server_begin[s] runs from the range's begin to its end, and is then shifted back.
  for (size_t i = 0; i < n; ++i) {
    const uint32_t to = table->server_begin[table->position[i]]++;
    table->keys[to] = keys[i];
    table->position[i] = to;
  }
  for (uint32_t s = servers; s > 0; --s) table->server_begin[s] = table->server_begin[s - 1];
  table->server_begin[0] = 0;
}

void KeyPartition::Build(std::span<const std::span<const Key>> keys, std::span<const uint32_t> dims,
                         const ShardAssignment& shards, const ChunkBytes& chunk_bytes) {
  CHECK_EQ(keys.size(), dims.size());
  CHECK_GT(chunk_bytes.pull, 0u);
  CHECK_GT(chunk_bytes.push, 0u);
  tables_.resize(keys.size());
  rows_ = 0;
  for (size_t t = 0; t < keys.size(); ++t) {
    CHECK_LT(keys[t].size(), size_t{1} << 32);
    rows_ += keys[t].size();
    OrderByServer(keys[t], shards, &tables_[t]);
  }
  MakeCut(dims, shards.servers(), chunk_bytes.pull, &pulls_);
  MakeCut(dims, shards.servers(), chunk_bytes.push, &pushes_);
}

void KeyPartition::MakeCut(std::span<const uint32_t> dims, uint32_t servers, uint64_t chunk_bytes, Cut* cut) const {
  cut->chunks.clear();
  cut->pieces.clear();
  for (uint32_t server = 0; server < servers; ++server) {
    const size_t first_chunk = cut->chunks.size();
    const auto open_chunk = [&] {
      const uint32_t piece = static_cast<uint32_t>(cut->pieces.size());
      cut->chunks.push_back({.server = server,
                             .part = static_cast<uint32_t>(cut->chunks.size() - first_chunk),
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
          if (cut->chunks.back().piece_begin != cut->chunks.back().piece_end) {
            open_chunk();
            room = chunk_bytes;
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
    for (size_t c = first_chunk; c < cut->chunks.size(); ++c) {
      cut->chunks[c].parts = static_cast<uint32_t>(cut->chunks.size() - first_chunk);
    }
  }
}

}  // namespace sparrow
