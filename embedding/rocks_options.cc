#include "embedding/rocks_options.h"

#include <rocksdb/cache.h>
#include <rocksdb/env.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/table.h>

#include <algorithm>

namespace sparrow {

RocksShare::RocksShare(const ColdStore::Options& options)
    : disk_bytes_max(options.disk_bytes_max),
      block_cache(rocksdb::NewLRUCache(options.block_cache_bytes)),
      // Counts the buffers of all tables, and has the largest written out when they are used up.
      write_buffers(std::make_shared<rocksdb::WriteBufferManager>(options.write_buffer_bytes)),
      files(rocksdb::NewSstFileManager(rocksdb::Env::Default())),
      write_buffer_bytes(options.write_buffer_bytes) {}

rocksdb::Options MakeRocksOptions(const RocksShare& share) {
  rocksdb::BlockBasedTableOptions table;

  // Memory: everything that grows with the number of rows goes through the one block cache.
  table.block_cache = share.block_cache;
  table.cache_index_and_filter_blocks = true;
  // A row that was read moves to DRAM and is not read again soon, but each read needs a filter and an index block:
  // these stay when data goes.
  table.cache_index_and_filter_blocks_with_high_priority = true;
  table.pin_l0_filter_and_index_blocks_in_cache = true;  // Asked by every read.
  // In partitions: a read of one key needs one block of the filter, not all of it, so a cache much smaller than the
  // filters still works.
  table.index_type = rocksdb::BlockBasedTableOptions::kTwoLevelIndexSearch;
  table.partition_filters = true;
  table.optimize_filters_for_memory = true;  // Fit to what the allocator gives.

  // 10 bits a row: one read in a hundred of an absent id looks at a block. Bloom and not ribbon: ribbon saves 3 bits a
  // row and costs three times the time of a check. (None in the last level: below.)
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  table.whole_key_filtering = true;  // There is no prefix to filter by.

  // A read costs the device a page whatever it wants, and a page holds a dozen rows of 64 floats. Smaller blocks make
  // the index larger, larger ones copy and check what nobody wants.
  table.block_size = 4 << 10;
  // A hash in each block spares the binary search in it.
  table.data_block_index_type = rocksdb::BlockBasedTableOptions::kDataBlockBinaryAndHash;
  table.data_block_hash_table_util_ratio = 0.75;
  table.checksum = rocksdb::kXXH3;  // Faster than CRC-32C; reads do check it.
  table.format_version = 5;

  rocksdb::Options rocks;
  rocks.create_if_missing = true;
  rocks.error_if_exists = true;
  rocks.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  rocks.compression = rocksdb::kNoCompression;  // Trained weights have nothing to give.

  // Rows wait in buffers, then go out in large files.
  rocks.write_buffer_manager = share.write_buffers;
  rocks.write_buffer_size = std::max<uint64_t>(1 << 20, share.write_buffer_bytes / 4);
  rocks.arena_block_size = 64 << 10;
  // Every read asks the buffers first; a filter there spares a search through a skip list, most of a read's time.
  rocks.memtable_whole_key_filtering = true;
  rocks.memtable_prefix_bloom_size_ratio = 0.05;
  // Rows that come are spread over all keys, so a merge by levels would rewrite a whole level for each few files. To
  // merge files of about one size instead costs a training step far beyond its budget about a fifth less processor
  // time. The price: older records may take as much disk as the newest ones before they go.
  rocks.compaction_style = rocksdb::kCompactionStyleUniversal;
  rocks.compaction_options_universal.size_ratio = 10;
  rocks.compaction_options_universal.max_size_amplification_percent = 100;
  // Eight files wait before they are merged, not four: a read asks a filter or two more, and a step far beyond its
  // budget costs about a quarter less processor time of what it costs beyond one in memory.
  rocks.level0_file_num_compaction_trigger = 8;
  // No filter where most rows are: a row that has left memory is there, and the filters would be the larger part of
  // what the block cache holds. A new id pays with the look at a block, once.
  rocks.optimize_filters_for_hits = true;

  rocks.sst_file_manager = share.files;  // Counts bytes on disk.
  rocks.allow_fallocate = false;  // A file takes what is in it, not what it might grow to: the budget counts that.
  rocks.max_background_jobs = 2;
  rocks.max_open_files = 512;
  rocks.keep_log_file_num = 1;
  rocks.avoid_flush_during_shutdown = true;  // Nothing of it is needed again.
  rocks.info_log_level = rocksdb::WARN_LEVEL;
  // Buffered, not direct: the system's page cache keeps what the block cache has no room for, in memory that nobody
  // else wants. Without readahead, because the next read is elsewhere.
  rocks.use_direct_reads = false;
  rocks.advise_random_on_open = true;
  return rocks;
}

rocksdb::ReadOptions PointReadOptions() {
  rocksdb::ReadOptions options;
  options.async_io = false;  // In 7.8 it helps iterators; MultiGet of many levels only, at the price of more copies.
  return options;
}

rocksdb::WriteOptions ColdWriteOptions() {
  rocksdb::WriteOptions options;
  options.disableWAL = true;  // The store does not outlive its process; checkpoints do.
  return options;
}

}  // namespace sparrow
