#include "bench/support/cold_reads.h"

#include <rocksdb/db.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstring>
#include <string>
#include <unordered_set>

#include "base/check.h"
#include "base/random.h"
#include "embedding/rocks_options.h"
#include "embedding/table.h"
#include "tests/support/temporary_directory.h"

namespace sparrow {
namespace {

constexpr ColdStore::Options kColdOptions = {.block_cache_bytes = 16 << 20, .write_buffer_bytes = 16 << 20};
constexpr uint64_t kChunk = 1'000;  // Rows that are made at once.
constexpr size_t kBatches = 64;     // Different ones, used in turn.

std::array<char, 10> RocksKeyOf(Key key) {
  std::array<char, 10> bytes;
  const uint32_t bucket = BucketOf(key);
  bytes[0] = static_cast<char>(bucket >> 8);
  bytes[1] = static_cast<char>(bucket);
  for (int i = 0; i < 8; ++i) bytes[2 + i] = static_cast<char>(key >> (56 - 8 * i));
  return bytes;
}

double Seconds(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

TableSpec ColdTableSpec() {
  return {.name = "t",
          .dim = 64,
          .bounded_rows = 0,
          .optimizer = {.kind = SparseOptimizerKind::kRowwiseAdagrad, .learning_rate = 0.01, .eps = 1e-8},
          .initializer = {InitializerKind::kUniform, 0.01},
          .seed = 5};
}

std::vector<Key> ZipfKeys::Batch(size_t n) {
  std::unordered_set<uint64_t> ranks;
  std::vector<Key> keys;
  while (keys.size() < n) {
    const uint64_t rank = zipf_.Rank(RandomUniform(seed_, drawn_++));
    if (ranks.insert(rank).second) keys.push_back(KeyOf(rank));
  }
  return keys;
}

Key ZipfKeys::KeyOf(uint64_t rank) { return RandomBits(11, rank); }

struct ColdReads::Parts {
  explicit Parts(uint64_t rows)
      : budget(rows / 10 * (ColdTableSpec().Layout().slot_bytes() + 32)),
        share(std::make_shared<RocksShare>(kColdOptions)),
        cold(ColdStore::Create(directory.path() + "/table", kColdOptions).value()),
        table(MakeTieredTable(ColdTableSpec(), &budget, cold.get()).value()) {
    CHECK_EQ(rows % (10 * kChunk), 0u);
    rocksdb::DB* opened = nullptr;
    CHECK(rocksdb::DB::Open(MakeRocksOptions(*share), directory.path() + "/plain", &opened).ok());
    db.reset(opened);
    std::string record(ColdTableSpec().Layout().record_bytes(), '\0');
    for (uint64_t first = 0; first < rows; first += kChunk) {
      rocksdb::WriteBatch batch;
      for (const Key key : PullChunk(first)) {
        InitRowCpu(ColdTableSpec(), key, record.data());
        const auto bytes = RocksKeyOf(key);
        CHECK(batch.Put(rocksdb::Slice(bytes.data(), bytes.size()), record).ok());
      }
      CHECK(db->Write(ColdWriteOptions(), &batch).ok());
    }
    for (uint64_t first = 0; first < rows / 10; first += kChunk) PullChunk(first);  // The hot ones are in DRAM again.
    ZipfKeys zipf(rows, rows / 10, 3);
    for (size_t i = 0; i < kBatches; ++i) batches.push_back(zipf.Batch(std::min<size_t>(kBatch, rows / 20)));
    floats.resize(kBatch * table->dim());
  }

  std::vector<Key> PullChunk(uint64_t first) {
    std::vector<Key> keys;
    for (uint64_t rank = first; rank < first + kChunk; ++rank) keys.push_back(ZipfKeys::KeyOf(rank));
    std::vector<float> rows(kChunk * table->dim());
    CHECK(table->Pull(keys, PullMode::kCreate, rows).ok());
    return keys;
  }

  TemporaryDirectory directory;
  MemoryBudget budget;
  const std::shared_ptr<RocksShare> share;
  const std::unique_ptr<ColdStore> cold;
  const std::unique_ptr<Table> table;
  std::unique_ptr<rocksdb::DB> db;
  std::vector<std::vector<Key>> batches;
  std::vector<float> floats;
  size_t next = 0;
};

ColdReads::ColdReads(uint64_t rows) : parts_(std::make_unique<Parts>(rows)) {}
ColdReads::~ColdReads() = default;

ColdReads::Batch ColdReads::Next() {
  const std::vector<Key>& keys = parts_->batches[parts_->next++ % kBatches];
  const size_t dim = parts_->table->dim();
  const std::span<float> floats = std::span(parts_->floats).first(keys.size() * dim);
  Batch result = {.rows = keys.size()};

  const uint64_t cold_before = parts_->table->Stats().cold_reads;
  auto start = std::chrono::steady_clock::now();
  CHECK(parts_->table->Pull(keys, PullMode::kLook, floats).ok());
  result.table_seconds = Seconds(start);
  result.cold = parts_->table->Stats().cold_reads - cold_before;
  for (const float weight : floats) result.checksum = Mix64(result.checksum + std::bit_cast<uint32_t>(weight));

  start = std::chrono::steady_clock::now();
  std::vector<std::array<char, 10>> bytes(keys.size());
  std::vector<rocksdb::Slice> slices(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    bytes[i] = RocksKeyOf(keys[i]);
    slices[i] = rocksdb::Slice(bytes[i].data(), bytes[i].size());
  }
  std::vector<rocksdb::PinnableSlice> values(keys.size());
  std::vector<rocksdb::Status> statuses(keys.size());
  parts_->db->MultiGet(PointReadOptions(), parts_->db->DefaultColumnFamily(), keys.size(), slices.data(), values.data(),
                       statuses.data());
  result.multiget_seconds = Seconds(start);
  for (size_t i = 0; i < keys.size(); ++i) {
    CHECK(statuses[i].ok());
    CHECK_EQ(std::memcmp(values[i].data(), floats.data() + i * dim, dim * sizeof(float)), 0);
  }
  return result;
}

}  // namespace sparrow
