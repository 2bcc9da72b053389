#ifndef SPARROW_EMBEDDING_COLD_STORE_H_
#define SPARROW_EMBEDDING_COLD_STORE_H_

// The tier below DRAM: whole records by key, on disk. Says nothing of RocksDB, which only rocks_store.cc knows.

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "embedding/background_writer.h"
#include "embedding/partition.h"

namespace sparrow {

// The cold rows of one table, all of record_bytes. Thread-safe. Errors name the store's directory. Ends (its rows are
// dropped) before its store.
class ColdTable {
 public:
  virtual ~ColdTable() = default;

  // One look-up of the whole batch. found[i] says whether keys[i] is there, and if so its record is at
  // records[i * record_bytes]. DataLoss if a record has another size.
  virtual absl::Status Read(std::span<const Key> keys /*[n]*/, std::span<char> records /*[n, record_bytes]*/,
                            std::span<uint8_t> found /*[n]*/) const = 0;

  // All or none. Replaces what is there. records[i] points to record_bytes.
  virtual absl::Status Write(std::span<const Key> keys /*[n]*/, std::span<const char* const> records /*[n]*/) = 0;

  // All or none. Keys that are not there are fine.
  virtual absl::Status Erase(std::span<const Key> keys /*[n]*/) = 0;

  // Every row whose bucket is in [bucket_begin, bucket_end), in order of (bucket, key). Stops at the first error and
  // returns it. The record is valid during the call.
  virtual absl::Status Scan(uint32_t bucket_begin, uint32_t bucket_end,
                            absl::FunctionRef<absl::Status(Key key, absl::string_view record)> visit) const = 0;

  virtual uint64_t FileBytes() const = 0;
};

// Memory and disk that several stores share: the jobs of one server. Shared by the stores and who made them.
class ColdShare {
 public:
  virtual ~ColdShare() = default;
};

// The database that the cold rows of one server's job live in. Scratch space: it starts empty, is not meant to survive
// its process (checkpoints do), and its files are removed with it. Thread-safe.
//
// A write that the disk or its budget has no room for is an error (ResourceExhausted) that names directory and bytes;
// nothing is lost by it. Before the budget refuses, older records are merged away, if they are enough to be worth it:
// that write waits. A later write succeeds once the budget has room; after a disk that was really full, RocksDB may
// refuse for as long as the store is open.
class ColdStore {
 public:
  struct Options {
    // RocksDB's own memory, on top of the tables' MemoryBudget and shared by all tables: blocks read, with index and
    // filter blocks; and rows written, until they are in files. Their sum bounds it, but for blocks in use at the
    // moment and a write buffer being flushed.
    uint64_t block_cache_bytes = 64 << 20;
    uint64_t write_buffer_bytes = 64 << 20;
    // Of files. Merging puts as much beside them as it merges until it is done, so half of this is for the rows, those
    // on their way to files and older records of the same rows included, and half for that. 0: no limit.
    uint64_t disk_bytes_max = 0;
  };

  virtual ~ColdStore() = default;

  static std::shared_ptr<ColdShare> Share(const Options& options);

  // Makes an empty store in `directory` (created; an older store in it is removed, other files are left alone). Errors
  // name the directory.
  static absl::StatusOr<std::unique_ptr<ColdStore>> Create(const std::string& directory,
                                                           std::shared_ptr<ColdShare> share);
  static absl::StatusOr<std::unique_ptr<ColdStore>> Create(const std::string& directory, const Options& options) {
    return Create(directory, Share(options));
  }
  static absl::StatusOr<std::unique_ptr<ColdStore>> Create(const std::string& directory) {
    return Create(directory, Options());
  }

  // An empty table. AlreadyExists if one of this name is open.
  virtual absl::StatusOr<std::unique_ptr<ColdTable>> OpenTable(const std::string& name, uint64_t record_bytes) = 0;

  // The error that a write of so many bytes of rows would have now. For callers that must not fail half-way.
  virtual absl::Status CheckRoom(uint64_t rows_bytes) = 0;

  // Writes for the tables of this store.
  BackgroundWriter& background_writer() { return background_writer_; }

 private:
  BackgroundWriter background_writer_;
};

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_COLD_STORE_H_
