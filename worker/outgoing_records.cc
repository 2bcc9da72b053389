#include "worker/outgoing_records.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/parallel.h"
#include "base/room.h"
#include "base/status_macros.h"

namespace sparrow {
namespace {

constexpr uint64_t kPieceBytes = 16 << 20;
constexpr int64_t kGrainRows = 256;  // Of a thread, at least.

}  // namespace

OutgoingRecords::OutgoingRecords(PsClient* client, std::span<const TableSpec> tables)
    : client_(client),
      keys_(tables.size()),
      records_(tables.size()),
      packed_(tables.size()),
      bytes_(tables.size()),
      views_(tables.size()) {
  for (const TableSpec& table : tables) layouts_.push_back(table.Layout());
}

void OutgoingRecords::Clear() {
  for (std::vector<Key>& keys : keys_) keys.clear();
  for (std::vector<const char*>& records : records_) records.clear();
  for (Packed& packed : packed_) packed = {};
}

void OutgoingRecords::Add(const RowName& name, const char* record) {
  keys_[name.table].push_back(name.key);
  records_[name.table].push_back(record);
}

void OutgoingRecords::AddAll(uint32_t table, std::span<const Key> keys, std::span<const char> records) {
  CHECK(packed_[table].keys.empty());
  packed_[table] = {.keys = keys, .records = records};
}

void OutgoingRecords::Pack() {
  std::vector<std::span<const Key>> all_keys;
  for (uint32_t t = 0; t < keys_.size(); ++t) {
    const Packed& packed = packed_[t];
    if (!keys_[t].empty()) {  // Beside those of Add.
      for (size_t i = 0; i < packed.keys.size(); ++i) {
        Add({.key = packed.keys[i], .table = t}, packed.records.data() + i * layouts_[t].record_bytes());
      }
      packed_[t] = {};
    }
    all_keys.push_back(packed.keys.empty() ? std::span<const Key>(keys_[t]) : packed.keys);
  }
  client_->PartitionRecords(all_keys, nullptr, &partition_);
  for (uint32_t t = 0; t < keys_.size(); ++t) {
    const uint64_t record_bytes = layouts_[t].record_bytes();
    const Packed& packed = packed_[t];
    const std::span<const uint32_t> position = partition_.position(t);
    if (!packed.keys.empty() && position.empty()) {
      views_[t] = packed.records;
      continue;
    }
    std::vector<const char*>& records = records_[t];
    for (size_t i = 0; i < packed.keys.size(); ++i) records.push_back(packed.records.data() + i * record_bytes);
    const std::span<char> bytes = Room(&bytes_[t], records.size() * record_bytes);
    ParallelFor(static_cast<int64_t>(records.size()), kGrainRows, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const size_t to = position.empty() ? static_cast<size_t>(i) : position[i];
        std::memcpy(bytes.data() + to * record_bytes, records[i], record_bytes);
      }
    });
    views_[t] = bytes;
  }
}

absl::Status InPieces(uint32_t slots, uint64_t slot_bytes,
                      absl::FunctionRef<absl::Status(uint32_t first, uint32_t n)> write) {
  const uint32_t piece = static_cast<uint32_t>(std::max<uint64_t>(1, kPieceBytes / slot_bytes));
  for (uint32_t first = 0, n = 0; first < slots; first += n) {
    n = std::min(piece, slots - first);
    RETURN_IF_ERROR(write(first, n));
  }
  return absl::OkStatus();
}

}  // namespace sparrow
