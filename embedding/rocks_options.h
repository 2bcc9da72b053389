#ifndef SPARROW_EMBEDDING_ROCKS_OPTIONS_H_
#define SPARROW_EMBEDDING_ROCKS_OPTIONS_H_

// How RocksDB is set up as a cold tier: every option, with its reason, in rocks_options.cc. For rocks_store.cc and the
// benchmark that compares with RocksDB itself; nobody else includes it.

#include <rocksdb/options.h>
#include <rocksdb/sst_file_manager.h>
#include <rocksdb/write_buffer_manager.h>

#include <memory>

#include "embedding/cold_store.h"

namespace sparrow {

// What the stores of one server have in common; each of them and its DB share ownership.
struct RocksShare final : ColdShare {
  explicit RocksShare(const ColdStore::Options& options);

  const uint64_t disk_bytes_max;
  const std::shared_ptr<rocksdb::Cache> block_cache;
  const std::shared_ptr<rocksdb::WriteBufferManager> write_buffers;
  const std::shared_ptr<rocksdb::SstFileManager> files;
  const uint64_t write_buffer_bytes;

  // In files, those that are about to be removed too, and on the way to files.
  uint64_t DiskBytes() const { return files->GetTotalSize() + write_buffers->memory_usage(); }
};

rocksdb::Options MakeRocksOptions(const RocksShare& share);
rocksdb::ReadOptions PointReadOptions();
rocksdb::WriteOptions ColdWriteOptions();

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_ROCKS_OPTIONS_H_
