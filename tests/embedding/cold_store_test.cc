#include "embedding/cold_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "tests/support/temporary_directory.h"

namespace sparrow {
namespace {

constexpr uint64_t kRecordBytes = 24;

std::string RecordOf(Key key, int version) {
  std::string record(kRecordBytes, static_cast<char>(version));
  std::memcpy(record.data(), &key, sizeof(key));
  return record;
}

void MustWrite(ColdTable* table, const std::vector<Key>& keys, int version) {
  std::vector<std::string> records;
  for (const Key key : keys) records.push_back(RecordOf(key, version));
  std::vector<const char*> pointers;
  for (const std::string& record : records) pointers.push_back(record.data());
  const absl::Status status = table->Write(keys, pointers);
  ASSERT_TRUE(status.ok()) << status;
}

class ColdStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    // Buffers so small that rows go through files and merges.
    auto store = ColdStore::Create(directory_.File("cold"), {.block_cache_bytes = 1 << 20, .write_buffer_bytes = 4096});
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = std::move(*store);
  }

  TemporaryDirectory directory_;
  std::unique_ptr<ColdStore> store_;
};

TEST_F(ColdStoreTest, ReadsWhatWasWrittenLastAndFindsNothingElse) {
  const auto table = store_->OpenTable("t", kRecordBytes).value();
  std::vector<Key> keys;
  for (uint64_t i = 0; i < 5'000; ++i) keys.push_back(RandomBits(3, i));
  MustWrite(table.get(), keys, 1);
  MustWrite(table.get(), {keys.begin(), keys.begin() + 2'000}, 2);
  for (uint64_t i = 0; i < 5'000; ++i) keys.push_back(RandomBits(4, i));  // Never written.
  std::vector<char> records(keys.size() * kRecordBytes);
  std::vector<uint8_t> found(keys.size(), 7);
  ASSERT_TRUE(table->Read(keys, records, found).ok());
  for (size_t i = 0; i < keys.size(); ++i) {
    ASSERT_EQ(found[i], i < 5'000) << i;
    if (i >= 5'000) continue;
    ASSERT_EQ(std::string(records.data() + i * kRecordBytes, kRecordBytes), RecordOf(keys[i], i < 2'000 ? 2 : 1));
  }
  EXPECT_TRUE(table->Read({}, {}, {}).ok());
}

// One of eight tables has the keys; those that have none answer so.
TEST_F(ColdStoreTest, TablesDoNotSeeEachOthersRows) {
  std::vector<std::unique_ptr<ColdTable>> tables;
  for (int t = 0; t < 8; ++t) tables.push_back(store_->OpenTable("t" + std::to_string(t), kRecordBytes).value());
  const std::vector<Key> keys = {1, 2, ~uint64_t{0}};
  MustWrite(tables[5].get(), keys, 1);
  for (int t = 0; t < 8; ++t) {
    std::vector<char> records(3 * kRecordBytes);
    std::vector<uint8_t> found(3);
    ASSERT_TRUE(tables[t]->Read(keys, records, found).ok());
    EXPECT_THAT(found, testing::Each(t == 5 ? 1 : 0)) << t;
    int visits = 0;
    ASSERT_TRUE(tables[t]
                    ->Scan(0, kBuckets,
                           [&](Key, absl::string_view) {
                             ++visits;
                             return absl::OkStatus();
                           })
                    .ok());
    EXPECT_EQ(visits, t == 5 ? 3 : 0) << t;
  }
}

TEST_F(ColdStoreTest, ErasedRowsAreGoneAndOthersStay) {
  const auto table = store_->OpenTable("t", kRecordBytes).value();
  EXPECT_TRUE(table->Erase(std::vector<Key>{1}).ok());  // Nothing was ever written.
  std::vector<Key> keys;
  for (uint64_t i = 0; i < 2'000; ++i) keys.push_back(RandomBits(3, i));
  MustWrite(table.get(), keys, 1);
  const std::span<const Key> erased = std::span<const Key>(keys).first(700);
  ASSERT_TRUE(table->Erase(erased).ok());
  ASSERT_TRUE(table->Erase(erased).ok());
  MustWrite(table.get(), {keys[5]}, 2);
  std::vector<char> records(keys.size() * kRecordBytes);
  std::vector<uint8_t> found(keys.size());
  ASSERT_TRUE(table->Read(keys, records, found).ok());
  for (size_t i = 0; i < keys.size(); ++i) ASSERT_EQ(found[i], i >= 700 || i == 5) << i;
  EXPECT_EQ(std::string(records.data() + 5 * kRecordBytes, kRecordBytes), RecordOf(keys[5], 2));
  uint64_t scanned = 0;
  ASSERT_TRUE(table
                  ->Scan(0, kBuckets,
                         [&](Key, absl::string_view) {
                           ++scanned;
                           return absl::OkStatus();
                         })
                  .ok());
  EXPECT_EQ(scanned, 1'301u);
}

// Most of what is written replaces what was, so it goes on for ever; and what lies in the directory stays within the
// budget at every moment, while files are merged, too.
TEST(ColdStoreBudget, OlderRecordsMakeRoomAndFilesStayWithinTheBudget) {
  constexpr uint64_t kLimit = 8 << 20;
  constexpr uint64_t kRows = 60'000;  // 2.9 MB in files.
  TemporaryDirectory directory;
  const auto store =
      ColdStore::Create(directory.File("a"),
                        {.block_cache_bytes = 1 << 20, .write_buffer_bytes = 512 << 10, .disk_bytes_max = kLimit})
          .value();
  const auto table = store->OpenTable("t", kRecordBytes).value();
  std::atomic<bool> enough{false};
  std::atomic<uint64_t> most{0};
  std::thread watch([&] {
    while (!enough) {
      uint64_t bytes = 0;
      std::error_code error;
      for (auto it = std::filesystem::directory_iterator(directory.File("a"), error);
           !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
        std::error_code gone;
        const uint64_t size = it->file_size(gone);
        if (!gone) bytes += size;
      }
      most = std::max(most.load(), bytes);
    }
  });
  std::vector<Key> keys(500);
  for (uint32_t round = 0; round < 12; ++round) {
    for (uint64_t first = 0; first < kRows; first += keys.size()) {
      std::vector<std::string> records;
      std::vector<const char*> pointers;
      for (size_t i = 0; i < keys.size(); ++i) keys[i] = RandomBits(11, first + i);
      for (const Key key : keys) records.push_back(RecordOf(key, round));
      for (const std::string& record : records) pointers.push_back(record.data());
      const absl::Status status = table->Write(keys, pointers);
      ASSERT_TRUE(status.ok()) << "round " << round << ": " << status;
    }
  }
  enough = true;
  watch.join();
  EXPECT_GT(most.load(), kLimit / 4);
  EXPECT_LE(most.load(), kLimit);
  std::vector<char> records(keys.size() * kRecordBytes);
  std::vector<uint8_t> found(keys.size());
  ASSERT_TRUE(table->Read(keys, records, found).ok());
  for (size_t i = 0; i < keys.size(); ++i) {
    ASSERT_TRUE(found[i]);
    ASSERT_EQ(std::string(records.data() + i * kRecordBytes, kRecordBytes), RecordOf(keys[i], 11));
  }
}

TEST(ColdStoreBudget, AWriteOverTheDiskBudgetNamesPathUseAndLimitAndChangesNothing) {
  TemporaryDirectory directory;
  constexpr uint64_t kLimit = 2 << 20;
  const auto share =
      ColdStore::Share({.block_cache_bytes = 1 << 20, .write_buffer_bytes = 256 << 10, .disk_bytes_max = kLimit});
  const auto store = ColdStore::Create(directory.File("a"), share).value();
  const auto other = ColdStore::Create(directory.File("b"), share).value();
  const auto table = store->OpenTable("t", kRecordBytes).value();
  absl::Status status;
  std::vector<Key> keys(500), written;
  for (uint64_t batch = 0; status.ok(); ++batch) {
    ASSERT_LT(batch * 500 * kRecordBytes, kLimit);
    for (size_t i = 0; i < keys.size(); ++i) keys[i] = RandomBits(7, batch * 500 + i);
    std::vector<std::string> records;
    std::vector<const char*> pointers;
    for (const Key key : keys) records.push_back(RecordOf(key, 1));
    for (const std::string& record : records) pointers.push_back(record.data());
    status = table->Write(keys, pointers);
    if (status.ok()) written.insert(written.end(), keys.begin(), keys.end());
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(
      std::string(status.message()),
      testing::AllOf(testing::HasSubstr(directory.File("a")), testing::HasSubstr("write 500 rows of 18000 bytes"),
                     testing::HasSubstr("is 2097152 bytes, half "), testing::HasSubstr("--disk")));
  EXPECT_GT(written.size() * kRecordBytes, kLimit / 8);
  // The budget is one for both: the other store gets no more than what flushing has freed meanwhile.
  const auto sibling = other->OpenTable("t", kRecordBytes).value();
  const std::string record = RecordOf(1, 1);
  const std::vector<const char*> pointers(keys.size(), record.data());
  status = absl::OkStatus();
  uint64_t sibling_bytes = 0;
  for (uint64_t batch = 0; status.ok(); ++batch) {
    ASSERT_LT(sibling_bytes, kLimit);
    std::vector<Key> more(keys.size());
    for (size_t i = 0; i < more.size(); ++i) more[i] = RandomBits(8, batch * more.size() + i);
    status = sibling->Write(more, pointers);
    if (status.ok()) sibling_bytes += more.size() * kRecordBytes;
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  // All that was written is there, the last batch is not, and erasing needs no room.
  std::vector<char> records(written.size() * kRecordBytes);
  std::vector<uint8_t> found(written.size());
  ASSERT_TRUE(table->Read(written, records, found).ok());
  EXPECT_THAT(found, testing::Each(1));
  records.resize(keys.size() * kRecordBytes);
  found.resize(keys.size());
  ASSERT_TRUE(table->Read(keys, records, found).ok());
  EXPECT_THAT(found, testing::Each(0));
  EXPECT_TRUE(table->Erase(written).ok());
}

TEST_F(ColdStoreTest, ScansABucketRangeInOrderBeforeAndAfterCompaction) {
  const auto table = store_->OpenTable("t", kRecordBytes).value();
  std::map<std::pair<uint32_t, Key>, std::string> expected;
  for (int round = 0; round < 20; ++round) {
    std::vector<Key> keys;
    for (uint64_t i = 0; i < 300; ++i) keys.push_back(RandomBits(5, round * 200 + i));  // A third of them again.
    MustWrite(table.get(), keys, round);
    for (const Key key : keys) expected[{BucketOf(key), key}] = RecordOf(key, round);
  }
  const uint32_t edges[] = {0, 1, 255, 256, 257, 2048, kBuckets - 1, kBuckets};
  auto next = expected.begin();
  for (size_t e = 0; e + 1 < std::size(edges); ++e) {
    const absl::Status status = table->Scan(edges[e], edges[e + 1], [&](Key key, absl::string_view record) {
      EXPECT_TRUE(next != expected.end());
      EXPECT_EQ(next->first, std::make_pair(BucketOf(key), key));
      EXPECT_EQ(next->second, record);
      ++next;
      return absl::OkStatus();
    });
    ASSERT_TRUE(status.ok()) << status;
  }
  EXPECT_TRUE(next == expected.end());
}

TEST_F(ColdStoreTest, AScanStopsAtTheVisitorsError) {
  const auto table = store_->OpenTable("t", kRecordBytes).value();
  MustWrite(table.get(), {1, 2, 3}, 1);
  int visits = 0;
  EXPECT_EQ(table->Scan(0, kBuckets,
                        [&](Key, absl::string_view) {
                          ++visits;
                          return absl::CancelledError("stop");
                        }),
            absl::CancelledError("stop"));
  EXPECT_EQ(visits, 1);
}

TEST_F(ColdStoreTest, ATableStartsEmptyEachTimeItIsOpened) {
  for (const std::string name : {"default", "t"}) {
    for (int round = 0; round < 2; ++round) {
      const auto table = store_->OpenTable(name, kRecordBytes).value();
      const std::vector<Key> keys = {9};
      std::vector<char> records(kRecordBytes);
      std::vector<uint8_t> found(1);
      ASSERT_TRUE(table->Read(keys, records, found).ok());
      EXPECT_EQ(found[0], 0);
      MustWrite(table.get(), keys, 1);
      EXPECT_EQ(store_->OpenTable(name, kRecordBytes).status().code(), absl::StatusCode::kAlreadyExists);
    }
  }
}

TEST_F(ColdStoreTest, ADirectoryInUseIsRefused) {
  const absl::Status status = ColdStore::Create(directory_.File("cold")).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr(directory_.File("cold")));
}

TEST(ColdStoreCreate, ReplacesAnOldStoreAndLeavesOtherFilesAlone) {
  TemporaryDirectory directory;
  std::ofstream(directory.File("mine.txt")) << "not RocksDB's";
  for (int round = 0; round < 2; ++round) {
    auto store = ColdStore::Create(directory.path());
    ASSERT_TRUE(store.ok()) << store.status();
    EXPECT_TRUE(std::filesystem::exists(directory.File("CURRENT")));
  }
  EXPECT_FALSE(std::filesystem::exists(directory.File("CURRENT")));  // The store removes its files.
  EXPECT_TRUE(std::filesystem::exists(directory.File("mine.txt")));
}

TEST(ColdStoreCreate, AFileInThePlaceOfTheDirectoryIsAnErrorThatNamesIt) {
  TemporaryDirectory directory;
  std::ofstream(directory.File("file")) << "x";
  const absl::Status status = ColdStore::Create(directory.File("file")).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr(directory.File("file")));
}

}  // namespace
}  // namespace sparrow
