// The cold tier in RocksDB: a record a value, keys are (table, bucket, row key) in big-endian bytes, so that RocksDB's
// order is the order of exports and a range of buckets of a table is a range of keys. Tables are numbered as they are
// opened, and share one column family: with one each, dozens of tables would write dozens of small files wherever one
// large one does, and merge each of them with all that the table has.

#include <rocksdb/db.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <set>
#include <system_error>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/check.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "embedding/cold_store.h"
#include "embedding/rocks_options.h"

namespace sparrow {
namespace {

constexpr size_t kKeyBytes = 12;
constexpr size_t kRowKeyAt = 4;
using RocksKey = std::array<char, kKeyBytes>;
static_assert(kBuckets < 1 << 16);  // So that kBuckets, the end of the last one's range, has a key too.

RocksKey MakeRocksKey(uint16_t table, uint32_t bucket, Key key) {
  RocksKey bytes;
  bytes[0] = static_cast<char>(table >> 8);
  bytes[1] = static_cast<char>(table);
  bytes[2] = static_cast<char>(bucket >> 8);
  bytes[3] = static_cast<char>(bucket);
  for (int i = 0; i < 8; ++i) bytes[kRowKeyAt + i] = static_cast<char>(key >> (56 - 8 * i));
  return bytes;
}

Key RowKeyOf(const rocksdb::Slice& bytes) {
  Key key = 0;
  for (int i = 0; i < 8; ++i) key = key << 8 | static_cast<uint8_t>(bytes[kRowKeyAt + i]);
  return key;
}

rocksdb::Slice AsSlice(const RocksKey& key) { return {key.data(), key.size()}; }

// What a read of several keys needs.
constexpr size_t kReadAtOnce = 256;
struct ReadRoom {
  std::array<RocksKey, kReadAtOnce> keys;
  std::array<rocksdb::Slice, kReadAtOnce> slices;
  std::array<rocksdb::PinnableSlice, kReadAtOnce> values;
  std::array<rocksdb::Status, kReadAtOnce> statuses;
};

absl::Status FromRocks(const rocksdb::Status& status, absl::string_view verb, absl::string_view directory) {
  if (status.ok()) return absl::OkStatus();
  const std::string message = absl::StrCat("cold store ", directory, ": cannot ", verb, ": ", status.ToString(),
                                           "; is the disk full, or failing?");
  if (status.IsCorruption()) return absl::DataLossError(message);
  if (status.IsNoSpace()) return absl::ResourceExhaustedError(message);
  return absl::UnavailableError(message);
}

class RocksStore final : public ColdStore {
 public:
  RocksStore(std::string directory, std::shared_ptr<RocksShare> share, std::unique_ptr<rocksdb::DB> db)
      : directory_(std::move(directory)), share_(std::move(share)), db_(std::move(db)) {}

  ~RocksStore() override {
    {
      absl::MutexLock lock(&mu_);
      CHECK(open_.empty()) << "table " << *open_.begin() << " outlives its cold store " << directory_;
    }
    db_.reset();
    const rocksdb::Status status = rocksdb::DestroyDB(directory_, rocksdb::Options());
    if (!status.ok()) LOG(WARNING) << FromRocks(status, "remove its files", directory_);
  }

  absl::StatusOr<std::unique_ptr<ColdTable>> OpenTable(const std::string& name, uint64_t record_bytes) override;

  // `written`: whether it ever had a row.
  void Close(const std::string& name, uint16_t table, bool written) {
    if (written) {
      const RocksKey begin = MakeRocksKey(table, 0, 0), end = MakeRocksKey(table, kBuckets, 0);
      const rocksdb::Status dropped =
          db_->DeleteRange(ColdWriteOptions(), db_->DefaultColumnFamily(), AsSlice(begin), AsSlice(end));
      if (!dropped.ok()) LOG(WARNING) << FromRocks(dropped, absl::StrCat("drop table \"", name, "\""), directory_);
    }
    absl::MutexLock lock(&mu_);
    open_.erase(name);
  }

  absl::Status CheckRoom(uint64_t rows_bytes) override {
    const std::string what = "keep room for rows";
    std::error_code error;
    const std::filesystem::space_info space = std::filesystem::space(directory_, error);
    if (!error && space.available < rows_bytes + share_->write_buffers->memory_usage()) {
      return absl::ResourceExhaustedError(absl::StrCat("cold store ", directory_, ": cannot ", what, " of ", rows_bytes,
                                                       " bytes, besides ", share_->write_buffers->memory_usage(),
                                                       " on their way there: the disk is full, ", SpaceLeft()));
    }
    rocksdb::WriteBatch nothing;
    return Write(&nothing, rows_bytes, what);
  }

  // All or none. `rows_bytes` more are to be kept on disk.
  absl::Status Write(rocksdb::WriteBatch* batch, uint64_t rows_bytes, absl::string_view what) {
    RETURN_IF_ERROR(MakeRoomInBudget(rows_bytes, what));
    rocksdb::Status status = db_->Write(ColdWriteOptions(), batch);
    // After a write of files has failed RocksDB refuses until it is told to try again: perhaps there is room by now.
    if (!status.ok() && db_->Resume().ok()) status = db_->Write(ColdWriteOptions(), batch);
    if (status.ok()) return absl::OkStatus();
    const absl::Status failed = FromRocks(status, absl::StrCat(what, " of ", rows_bytes, " bytes"), directory_);
    return absl::Status(failed.code(), absl::StrCat(failed.message(), " ", SpaceLeft()));
  }

  rocksdb::DB* db() const { return db_.get(); }
  const std::string& directory() const { return directory_; }

 private:
  // What of the disk budget rows may take: see ColdStore::Options.
  uint64_t ForRows() const { return share_->disk_bytes_max / 2; }

  absl::Status MakeRoomInBudget(uint64_t rows_bytes, absl::string_view what) {
    if (share_->disk_bytes_max == 0 || share_->DiskBytes() + rows_bytes <= ForRows()) return absl::OkStatus();
    absl::MutexLock lock(&merge_mu_);
    uint64_t used = share_->DiskBytes();
    if (used + rows_bytes <= ForRows()) return absl::OkStatus();
    uint64_t newest = used;  // Of each row; RocksDB's guess.
    db_->GetIntProperty(rocksdb::DB::Properties::kEstimateLiveDataSize, &newest);
    // A merge for less than a tenth would soon be followed by the next.
    if (newest + rows_bytes <= ForRows() / 10 * 9) {
      LOG(INFO) << "cold store " << directory_ << ": merges " << used << " bytes, of which about " << newest
                << " are rows as they are now, to stay within the disk budget of " << share_->disk_bytes_max;
      const rocksdb::Status merged = db_->CompactRange(rocksdb::CompactRangeOptions(), nullptr, nullptr);
      RETURN_IF_ERROR(FromRocks(merged, "merge its files", directory_));
      used = share_->DiskBytes();
      if (used + rows_bytes <= ForRows()) return absl::OkStatus();
    }
    return absl::ResourceExhaustedError(absl::StrCat(
        "cold store ", directory_, ": cannot ", what, " of ", rows_bytes, " bytes: the disk budget of this server is ",
        share_->disk_bytes_max, " bytes, half of it for rows (", "the other half for merging them), and ", used,
        " are used; raise --disk or --memory, add servers, or evict rows"));
  }

  std::string SpaceLeft() const {
    std::error_code error;
    const std::filesystem::space_info space = std::filesystem::space(directory_, error);
    return absl::StrCat(share_->files->GetTotalSize(), " bytes are in its files, ",
                        error ? "an unknown number of" : absl::StrCat(space.available), " bytes are free on the disk");
  }

  const std::string directory_;
  const std::shared_ptr<RocksShare> share_;
  std::unique_ptr<rocksdb::DB> db_;

  absl::Mutex merge_mu_;  // Held by the call that merges to stay within the budget.

  absl::Mutex mu_;
  std::set<std::string> open_ ABSL_GUARDED_BY(mu_);
  uint32_t tables_ ABSL_GUARDED_BY(mu_) = 0;  // That were ever opened.
};

class RocksTable final : public ColdTable {
 public:
  RocksTable(RocksStore* store, std::string name, uint16_t number, uint64_t record_bytes)
      : store_(store), name_(std::move(name)), number_(number), record_bytes_(record_bytes) {}
  ~RocksTable() override { store_->Close(name_, number_, written()); }

  absl::Status Read(std::span<const Key> keys, std::span<char> records, std::span<uint8_t> found) const override {
    CHECK_EQ(records.size(), keys.size() * record_bytes_);
    CHECK_EQ(found.size(), keys.size());
    if (!written()) {
      std::fill(found.begin(), found.end(), uint8_t{0});
      return absl::OkStatus();
    }
    // In the order of the files, and so few at a time that the blocks they lie in, which stay in memory until they are
    // copied from, are few too.
    struct Wanted {
      uint32_t bucket;
      uint32_t position;
      Key key;
      bool operator<(const Wanted& other) const {  // As their RocksKeys.
        return bucket != other.bucket ? bucket < other.bucket : key < other.key;
      }
    };
    std::vector<Wanted> wanted(keys.size());
    for (uint32_t i = 0; i < keys.size(); ++i) wanted[i] = {BucketOf(keys[i]), i, keys[i]};
    std::sort(wanted.begin(), wanted.end());
    // Of the thread, because making and ending so many takes longer than a short batch.
    static thread_local ReadRoom room;
    const auto record_at = [&](uint32_t position) { return records.data() + position * record_bytes_; };
    const rocksdb::ReadOptions options = PointReadOptions();
    for (size_t begin = 0; begin < wanted.size(); begin += kReadAtOnce) {
      const std::span<const Wanted> some =
          std::span<const Wanted>(wanted).subspan(begin).first(std::min(kReadAtOnce, wanted.size() - begin));
      for (size_t i = 0; i < some.size(); ++i) {
        room.keys[i] = MakeRocksKey(number_, some[i].bucket, some[i].key);
        room.slices[i] = AsSlice(room.keys[i]);
      }
      store_->db()->MultiGet(options, store_->db()->DefaultColumnFamily(), some.size(), room.slices.data(),
                             room.values.data(), room.statuses.data(), /*sorted_input=*/true);
      absl::Status error;
      for (size_t i = 0; i < some.size(); ++i) {
        const rocksdb::Status& status = room.statuses[i];
        found[some[i].position] = status.ok() ? 1 : 0;
        if (status.ok()) {
          error.Update(CheckSize(some[i].key, room.values[i]));
          if (error.ok()) std::memcpy(record_at(some[i].position), room.values[i].data(), record_bytes_);
        } else if (!status.IsNotFound()) {
          error.Update(FromRocks(status, absl::StrCat("read key ", some[i].key), store_->directory()));
        }
        room.values[i].Reset();
      }
      RETURN_IF_ERROR(error);
    }
    return absl::OkStatus();
  }

  absl::Status Write(std::span<const Key> keys, std::span<const char* const> records) override {
    CHECK_EQ(records.size(), keys.size());
    written_.store(true, std::memory_order_relaxed);
    rocksdb::WriteBatch batch(keys.size() * (record_bytes_ + kKeyBytes + 8));
    for (size_t i = 0; i < keys.size(); ++i) {
      const RocksKey key = MakeRocksKey(number_, BucketOf(keys[i]), keys[i]);
      const rocksdb::Status put = batch.Put(AsSlice(key), rocksdb::Slice(records[i], record_bytes_));
      CHECK(put.ok()) << put.ToString();  // Into memory.
    }
    return store_->Write(&batch, keys.size() * (record_bytes_ + kKeyBytes),
                         absl::StrCat("write ", keys.size(), " rows"));
  }

  absl::Status Erase(std::span<const Key> keys) override {
    if (!written()) return absl::OkStatus();
    rocksdb::WriteBatch batch(keys.size() * (kKeyBytes + 8));
    for (const Key row_key : keys) {
      const RocksKey key = MakeRocksKey(number_, BucketOf(row_key), row_key);
      const rocksdb::Status put = batch.Delete(AsSlice(key));
      CHECK(put.ok()) << put.ToString();  // Into memory.
    }
    return store_->Write(&batch, 0, absl::StrCat("erase ", keys.size(), " rows"));
  }

  absl::Status Scan(uint32_t bucket_begin, uint32_t bucket_end,
                    absl::FunctionRef<absl::Status(Key, absl::string_view)> visit) const override {
    if (!written()) return absl::OkStatus();
    const RocksKey begin = MakeRocksKey(number_, bucket_begin, 0), end = MakeRocksKey(number_, bucket_end, 0);
    const rocksdb::Slice upper = AsSlice(end);
    rocksdb::ReadOptions options;
    options.iterate_upper_bound = &upper;
    options.fill_cache = false;  // Would push out what training reads.
    options.readahead_size = 2 << 20;
    const std::unique_ptr<rocksdb::Iterator> it(store_->db()->NewIterator(options));
    for (it->Seek(AsSlice(begin)); it->Valid(); it->Next()) {
      const Key key = RowKeyOf(it->key());
      RETURN_IF_ERROR(CheckSize(key, it->value()));
      RETURN_IF_ERROR(visit(key, absl::string_view(it->value().data(), it->value().size())));
    }
    return FromRocks(it->status(), absl::StrCat("scan table \"", name_, "\""), store_->directory());
  }

  uint64_t FileBytes() const override {
    uint64_t bytes = 0;
    if (!written()) return bytes;
    const RocksKey begin = MakeRocksKey(number_, 0, 0), end = MakeRocksKey(number_, kBuckets, 0);
    const rocksdb::Range range(AsSlice(begin), AsSlice(end));
    const rocksdb::SizeApproximationOptions options;  // Of files alone.
    const rocksdb::Status status =
        store_->db()->GetApproximateSizes(options, store_->db()->DefaultColumnFamily(), &range, 1, &bytes);
    if (!status.ok()) LOG(WARNING) << FromRocks(status, "tell the size of its files", store_->directory());
    return bytes;
  }

 private:
  absl::Status CheckSize(Key key, const rocksdb::Slice& value) const {
    if (value.size() == record_bytes_) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("cold store ", store_->directory(), ": the row of key ", key, " has ",
                                            value.size(), " bytes instead of ", record_bytes_,
                                            "; has something else written there?"));
  }

  bool written() const { return written_.load(std::memory_order_relaxed); }

  RocksStore* const store_;
  const std::string name_;
  const uint16_t number_;
  const uint64_t record_bytes_;

  // Relaxed: who looks for a row that another thread has written is ordered behind that thread by its caller.
  std::atomic<bool> written_{false};
};

absl::StatusOr<std::unique_ptr<ColdTable>> RocksStore::OpenTable(const std::string& name, uint64_t record_bytes) {
  absl::MutexLock lock(&mu_);
  if (tables_ == 1 << 16) {
    return absl::ResourceExhaustedError(absl::StrCat("cold store ", directory_, ": table \"", name,
                                                     "\" is one more than the ", tables_, " that it can number"));
  }
  if (!open_.insert(name).second) {
    return absl::AlreadyExistsError(absl::StrCat("cold store ", directory_, ": table \"", name, "\" is open already"));
  }
  return std::unique_ptr<ColdTable>(
      std::make_unique<RocksTable>(this, name, static_cast<uint16_t>(tables_++), record_bytes));
}

}  // namespace

std::shared_ptr<ColdShare> ColdStore::Share(const Options& options) { return std::make_shared<RocksShare>(options); }

absl::StatusOr<std::unique_ptr<ColdStore>> ColdStore::Create(const std::string& directory,
                                                             std::shared_ptr<ColdShare> share) {
  RETURN_IF_ERROR(MakeDirectories(directory));
  RETURN_IF_ERROR(FromRocks(rocksdb::DestroyDB(directory, rocksdb::Options()), "remove an older store", directory));
  auto rocks_share = std::static_pointer_cast<RocksShare>(std::move(share));
  const rocksdb::Options rocks = MakeRocksOptions(*rocks_share);
  rocksdb::DB* db = nullptr;
  RETURN_IF_ERROR(FromRocks(rocksdb::DB::Open(rocks, directory, &db), "open", directory));
  return std::unique_ptr<ColdStore>(
      std::make_unique<RocksStore>(directory, std::move(rocks_share), std::unique_ptr<rocksdb::DB>(db)));
}

}  // namespace sparrow
