// Rows that a worker holds and updates itself: lent as records by pulls, returned or written back by pushes.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <thread>

#include "base/file.h"
#include "embedding/apply.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/metrics.h"
#include "server/shard.h"
#include "tests/server/shard_fixture.h"

namespace sparrow {
namespace {

using ::testing::HasSubstr;

v1::TableConfig AdagradTable(const std::string& name, uint32_t dim) {
  v1::TableConfig table = SgdTable(name, dim);
  table.mutable_optimizer()->mutable_adagrad()->set_initial_accumulator(0.25);
  return table;
}

class LoansTest : public ::testing::Test {
 protected:
  LoansTest() {
    job_.tables = {AdagradTable("user", 4), SgdTable("item", 3, 1000)};
    spec_ = *ParseTableConfig(job_.tables[0], job_.seed);
  }

  void Open() { ASSERT_TRUE(server_.Open(job_).ok()); }

  v1::PullRequest Borrow(uint64_t step, const std::vector<TestJob::KeysOfTable>& keys) const {
    v1::PullRequest request = job_.Pull(step, keys);
    request.set_records(true);
    return request;
  }
  // The records of an answer, one after the other.
  std::string MustBorrow(uint64_t step, const std::vector<Key>& keys) {
    const auto answer = server_.Pull(Borrow(step, {{0, keys}}));
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() ? answer->tables(0).rows() : "";
  }

  // A part of a step without gradients.
  v1::PushRequest Return(uint64_t step, const std::vector<Key>& keys, const std::string& records,
                         bool keep = false) const {
    v1::PushRequest request = job_.Push(step, {});
    Add(keys, records, keep, &request);
    return request;
  }
  v1::PushRequest WriteBack(uint64_t step, const std::vector<Key>& keys, const std::string& records) const {
    v1::PushRequest request = Return(step, keys, records, /*keep=*/true);
    request.set_parts(0);
    return request;
  }
  static void Add(const std::vector<Key>& keys, const std::string& records, bool keep, v1::PushRequest* request) {
    v1::TableRecords* table = request->add_records();
    table->set_table(0);
    table->set_keys(std::string(AsBytes(std::span<const Key>(keys))));
    table->set_records(records);
    table->set_keep(keep);
  }

  // What the worker makes of records: an update of each by a gradient of ones.
  std::string Updated(std::string records, uint64_t step) const {
    const RowUpdate update(spec_, {.step = step});
    const std::vector<float> ones(spec_.dim, 1.0f);
    for (size_t at = 0; at < records.size(); at += spec_.Layout().record_bytes()) {
      update(0, ones.data(), records.data() + at);
    }
    return records;
  }

  absl::StatusOr<v1::PullResponse> Look(uint64_t step, const std::vector<Key>& keys) {
    return server_.Pull(job_.Pull(step, {{0, keys}}, 0, /*create=*/false));
  }
  absl::Status Save(uint64_t step) {
    EXPECT_TRUE(MakeDirectories(server_.directory.File("checkpoint")).ok());
    v1::SaveTablesRequest save;
    *save.mutable_context() = job_.Context();
    save.set_directory("checkpoint");
    save.set_step(step);
    v1::SaveTablesResponse saved;
    return server_.shard->SaveTables(save, &saved);
  }
  void ExpectRefused(const absl::Status& status, absl::StatusCode code, const std::vector<std::string>& parts) {
    EXPECT_EQ(status.code(), code) << status;
    for (const std::string& part : parts) EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }
  uint64_t Lent() {
    return static_cast<uint64_t>(ServerMetrics(&server_.metrics).lent_rows.Value());  // Goes by name.
  }

  TestJob job_;
  TableSpec spec_;
  TestShard server_;
};

TEST_F(LoansTest, ARowThatWasUpdatedByTheWorkerIsTheOneThatTheServerWouldHave) {
  Open();
  TestShard other;
  ASSERT_TRUE(other.Open(job_).ok());
  const std::vector<Key> keys = {3, ~Key{0}, 0};
  ASSERT_TRUE(other.Pull(job_.Pull(0, {{0, keys}})).ok());
  std::string records = MustBorrow(0, keys);
  ASSERT_EQ(records.size(), 3 * spec_.Layout().record_bytes());
  EXPECT_EQ(Lent(), 3u);
  for (uint64_t step = 0; step < 3; ++step) {
    ASSERT_TRUE(other.Push(job_.Push(step, {{0, keys, std::vector<float>(12, 1)}})).ok());
    records = Updated(records, step);
    const absl::Status pushed = server_.Push(step < 2 ? job_.Push(step, {}) : Return(step, keys, records));
    ASSERT_TRUE(pushed.ok()) << pushed;
  }
  EXPECT_EQ(Lent(), 0u);
  EXPECT_EQ(MustBorrow(3, keys), records);
  v1::PullRequest borrow = job_.Pull(3, {{0, keys}});
  borrow.set_records(true);
  EXPECT_EQ(other.Pull(borrow)->tables(0).rows(), records) << "state and metadata too";
}

TEST_F(LoansTest, ALentRowIsReadAsOfItsStepOnly) {
  Open();
  const std::string records = MustBorrow(0, {1, 2});
  EXPECT_EQ(MustBorrow(0, {1, 2}), records) << "a repeated pull";
  EXPECT_TRUE(Look(0, {1, 2, 3}).ok());
  ASSERT_TRUE(server_.Push(job_.Push(0, {})).ok());
  for (const auto& pull :
       {job_.Pull(1, {{0, {7, 2}}}), job_.Pull(1, {{0, {7, 2}}}, 0, /*create=*/false), Borrow(1, {{0, {7, 2}}})}) {
    ExpectRefused(server_.Pull(pull).status(), absl::StatusCode::kFailedPrecondition,
                  {"worker 0, step 1", "table \"user\": id 2 is lent", "after 1 steps"});
  }
  EXPECT_TRUE(Look(1, {3, 7}).ok()) << "others may be read";
}

TEST_F(LoansTest, ACheckpointWaitsForWhatIsLent) {
  Open();
  const std::string records = MustBorrow(0, {1, 2, 9});
  EXPECT_TRUE(Save(0).ok()) << "nothing has changed yet";
  std::filesystem::remove_all(server_.directory.File("checkpoint"));
  const std::string updated = Updated(records, 0);
  const uint64_t bytes = spec_.Layout().record_bytes();
  ASSERT_TRUE(server_.Push(Return(0, {9}, updated.substr(2 * bytes))).ok());
  ExpectRefused(Save(1), absl::StatusCode::kFailedPrecondition, {"job job-1", "of step 1", "2 rows of table \"user\""});
  // Written back: by a push of its own,
  const v1::PushRequest write_back = WriteBack(1, {1}, updated.substr(0, bytes));
  ASSERT_TRUE(server_.Push(write_back).ok());
  ASSERT_TRUE(server_.Push(write_back).ok()) << "again";
  EXPECT_TRUE(Look(1, {1, 9}).ok());
  ExpectRefused(Look(1, {1, 2}).status(), absl::StatusCode::kFailedPrecondition, {"id 2 is lent"});
  ExpectRefused(Save(1), absl::StatusCode::kFailedPrecondition, {"1 rows of table \"user\""});
  // and by the word of the worker that the rest has not changed.
  v1::PushRequest complete = job_.Push(1, {});
  complete.set_parts(0);
  complete.set_complete(true);
  ASSERT_TRUE(server_.Push(complete).ok());
  EXPECT_TRUE(Look(1, {1, 2}).ok());
  EXPECT_TRUE(Save(1).ok());
  EXPECT_EQ(Lent(), 2u) << "they stay lent";
  // The next step makes them old again.
  ASSERT_TRUE(server_.Push(job_.Push(1, {})).ok());
  ExpectRefused(Look(2, {1}).status(), absl::StatusCode::kFailedPrecondition, {"id 1 is lent"});
  ExpectRefused(Save(2), absl::StatusCode::kFailedPrecondition, {"2 rows"});
  // A step's push may keep them as well.
  ASSERT_TRUE(server_.Push(Return(2, {1, 2}, Updated(updated.substr(0, 2 * bytes), 2), /*keep=*/true)).ok());
  std::filesystem::remove_all(server_.directory.File("checkpoint"));
  EXPECT_TRUE(Save(3).ok());
  EXPECT_EQ(Lent(), 2u);
}

TEST_F(LoansTest, ARepeatedPartIsAppliedOnce) {
  Open();
  const uint64_t bytes = spec_.Layout().record_bytes();
  const std::string records = MustBorrow(0, {1, 2});
  const std::string updated = Updated(records, 0);
  v1::PushRequest first = Return(0, {1}, updated.substr(0, bytes));
  v1::PushRequest second = Return(0, {2}, updated.substr(bytes));
  for (v1::PushRequest* part : {&first, &second}) part->set_parts(2);
  second.set_part(1);
  v1::PushResponse response;
  ASSERT_TRUE(server_.shard->Push(first, &response).ok());
  EXPECT_FALSE(response.duplicate());
  ASSERT_TRUE(server_.shard->Push(first, &response).ok());  // Within the step ...
  EXPECT_TRUE(response.duplicate());
  ASSERT_TRUE(server_.shard->Push(second, &response).ok());
  EXPECT_FALSE(response.duplicate());
  const std::string again = MustBorrow(1, {1, 2});
  EXPECT_EQ(again, updated);
  ASSERT_TRUE(server_.shard->Push(first, &response).ok());  // ... and after it, when the row is lent anew.
  EXPECT_TRUE(response.duplicate());
  ASSERT_TRUE(server_.Push(Return(1, {1, 2}, Updated(again, 1))).ok());
  EXPECT_EQ(MustBorrow(2, {1, 2}), Updated(again, 1));
}

TEST_F(LoansTest, ABadReturnIsRefusedWholeAndByName) {
  Open();
  const uint64_t bytes = spec_.Layout().record_bytes();
  const std::string records = MustBorrow(0, {1, 2});
  const auto with_float = [&](size_t index, float value) {
    std::string bad = records;
    std::memcpy(bad.data() + bytes + index * sizeof(float), &value, sizeof(value));
    return bad;
  };
  const auto refused = [&](const v1::PushRequest& push, const std::vector<std::string>& parts) {
    ExpectRefused(server_.Push(push), absl::StatusCode::kInvalidArgument, parts);
    EXPECT_EQ(MustBorrow(0, {1, 2}), records);
    EXPECT_EQ(Lent(), 2u);
  };
  refused(Return(0, {1, 3}, records), {"push of worker 0 for step 0", "table \"user\": id 3", "was not lent"});
  refused(Return(0, {1}, records), {"table \"user\": 96 bytes of records for 1 keys, expected 48 bytes for each"});
  refused(Return(0, {1, 2}, records.substr(1)), {"95 bytes of records for 2 keys"});
  refused(Return(0, {1, 2}, with_float(1, std::nanf(""))), {"id 2: number 1 of its record is nan"});
  refused(Return(0, {1, 2}, with_float(7, INFINITY)), {"id 2: number 7 of its record is inf"});
  refused(Return(0, {1, 1}, records), {"id 1 is given twice"});
  v1::PushRequest push = job_.Push(0, {{0, {1}, {1, 1, 1, 1}}});
  refused(push, {"table \"user\": id 1 is lent to the worker"});
  push = Return(0, {1}, records.substr(0, bytes));
  Add({2}, records.substr(bytes), true, &push);
  refused(push, {"table \"user\" is given twice"});
  push = WriteBack(0, {1, 2}, records);
  push.mutable_records(0)->set_keep(false);
  refused(push, {"a write-back (parts is 0) has rows that are not kept"});
  push = WriteBack(0, {1, 2}, records);
  *push.add_tables() = job_.Push(0, {{0, {5}, {1, 1, 1, 1}}}).tables(0);
  refused(push, {"gradients of a write-back"});
  push = Return(0, {1, 2}, records);
  push.set_complete(true);
  refused(push, {"complete is set in a part of a step"});
  push = WriteBack(0, {3}, records.substr(bytes));
  refused(push, {"id 3 is returned, but was not lent"});
  // A key of two parts.
  push = Return(0, {1}, Updated(records, 0).substr(0, bytes));
  push.set_parts(2);
  ASSERT_TRUE(server_.Push(push).ok());
  push.set_part(1);
  ExpectRefused(server_.Push(push), absl::StatusCode::kInvalidArgument, {"id 1"});
}

TEST_F(LoansTest, AWriteBackIsOfTheStepsThatAreApplied) {
  Open();
  const std::string records = MustBorrow(0, {1});
  ExpectRefused(server_.Push(WriteBack(1, {1}, records)), absl::StatusCode::kFailedPrecondition,
                {"a write-back is of step 1, but 0 steps have been applied"});
  ASSERT_TRUE(server_.Push(job_.Push(0, {})).ok());
  ExpectRefused(server_.Push(WriteBack(0, {1}, records)), absl::StatusCode::kFailedPrecondition, {"of step 0"});
}

TEST_F(LoansTest, OnlyTablesThatNobodyElseChangesAreLent) {
  const auto refused = [&](const v1::PullRequest& pull, const std::string& what) {
    ExpectRefused(server_.Pull(pull).status(), absl::StatusCode::kInvalidArgument, {what});
  };
  job_.tables[1].mutable_admission()->set_count(2);
  job_.tables.push_back(SgdTable("old", 2));
  job_.tables[2].mutable_eviction()->set_ttl_steps(3);
  job_.tables.push_back(SgdTable("half", 2));
  job_.tables[3].set_storage(v1::FLOAT16);
  job_.tables[1].clear_bounded_rows();
  job_.tables[1].mutable_hashed();
  Open();
  refused(Borrow(0, {{1, {1}}}), "table \"item\": rows of a table with admission cannot be lent");
  refused(Borrow(0, {{2, {1}}}), "table \"old\": rows of a table with eviction cannot be lent");
  refused(Borrow(0, {{3, {1}}}), "table \"half\": rows of a table that does not store FLOAT32 cannot be lent");
  v1::PullRequest pull = Borrow(0, {{0, {1}}});
  pull.set_create(false);
  refused(pull, "records are for training");
  pull.set_create(true);
  pull.set_row_type(v1::BFLOAT16);
  refused(pull, "of FLOAT32");
}

TEST_F(LoansTest, AnAnswerAheadLeavesOutWhatThePushMayReturn) {
  job_.prefetch = true;
  Open();
  const std::string records = MustBorrow(0, {1, 2, 3});
  ASSERT_TRUE(server_.Push(job_.Push(0, {})).ok());  // Keeps them.
  // Step 1 needs 1 and 4, and its push returns 2: of what step 2 needs, 2 is lent still, and 5 is there.
  MustBorrow(1, {4});
  v1::PullRequest ahead = Borrow(2, {{0, {2, 5}}});
  ahead.set_ahead(true);
  PullInFlight early(server_.shard.get(), ahead);
  ASSERT_TRUE(early.done());
  ASSERT_TRUE(early.Wait().ok()) << early.Wait();
  EXPECT_EQ(early.response().tables(0).pending(), std::string("\0\0\0\0", 4));
  EXPECT_EQ(Lent(), 5u) << "1 to 5";
  v1::PullRequest again = Borrow(2, {{0, {2}}});
  again.set_parts(0);
  PullInFlight late(server_.shard.get(), again);
  EXPECT_FALSE(late.done());
  // A row that was lent for the next step is not this one's to return.
  const uint64_t bytes = spec_.Layout().record_bytes();
  const std::string fifth = early.response().tables(0).rows().substr(bytes);
  ExpectRefused(server_.Push(Return(1, {5}, fifth)), absl::StatusCode::kInvalidArgument, {"id 5 is returned, but was"});
  const std::string updated = Updated(Updated(records.substr(bytes, bytes), 0), 1);
  ASSERT_TRUE(server_.Push(Return(1, {2}, updated)).ok());
  ASSERT_TRUE(late.Wait().ok()) << late.Wait();
  EXPECT_EQ(late.response().tables(0).rows(), updated);
}

// Rows go and come in parts, from several threads and each part twice, while those of the next step are pulled.
TEST_F(LoansTest, PartsFromManyThreadsAndPullsBesideThemLoseNoRow) {
  constexpr uint32_t kParts = 8;
  constexpr uint64_t kSteps = 60;
  job_.prefetch = true;
  Open();
  const uint64_t bytes = spec_.Layout().record_bytes();
  std::mt19937_64 random(53);
  std::map<Key, std::string> held;      // By the worker.
  std::map<Key, std::string> returned;  // As the server must have them.
  const auto draw = [&] {
    std::set<Key> keys;
    while (keys.size() < 100) keys.insert(random() % 400);
    return keys;
  };
  // Takes what has been answered; returns the keys that were pending.
  const auto take = [&](const v1::PullResponse& answer, const std::vector<Key>& keys) {
    const std::string& positions = answer.tables(0).pending();
    std::vector<uint32_t> pending(positions.size() / sizeof(uint32_t));
    CopyBytes(absl::string_view(positions), std::span<uint32_t>(pending));
    std::vector<Key> again;
    for (uint32_t i = 0; i < keys.size(); ++i) {
      if (std::find(pending.begin(), pending.end(), i) != pending.end()) {
        again.push_back(keys[i]);
        continue;
      }
      const std::string record = answer.tables(0).rows().substr(i * bytes, bytes);
      const auto known = returned.find(keys[i]);
      EXPECT_EQ(record, known == returned.end() ? record : known->second) << keys[i];
      held[keys[i]] = record;
    }
    return again;
  };
  const auto in_threads = [&](const std::vector<v1::PushRequest>& pushes) {
    std::atomic<uint32_t> duplicates{0};
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (size_t i = 0; i < pushes.size(); ++i) {
          v1::PushResponse response;
          const absl::Status status = server_.shard->Push(pushes[(i + 2 * t) % pushes.size()], &response);
          EXPECT_TRUE(status.ok()) << status;
          if (response.duplicate()) ++duplicates;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return duplicates.load();
  };

  std::set<Key> need = draw();
  std::vector<Key> first(need.begin(), need.end());
  take(*server_.Pull(Borrow(0, {{0, first}})), first);
  for (uint64_t step = 0; step < kSteps; ++step) {
    for (const Key key : need) held[key] = Updated(held.at(key), step);
    const std::set<Key> next = draw();
    std::vector<Key> early, late, back;
    for (const auto& [key, record] : held) {
      if (random() % 3 == 0) back.push_back(key);
    }
    for (const Key key : next) {
      if (std::find(back.begin(), back.end(), key) != back.end()) {
        late.push_back(key);
      } else if (!held.contains(key)) {
        early.push_back(key);
      }
    }
    std::vector<v1::PushRequest> parts(kParts, job_.Push(step, {}));
    for (uint32_t part = 0; part < kParts; ++part) {
      std::vector<Key> keys;
      std::string records;
      for (size_t i = part; i < back.size(); i += kParts) {
        keys.push_back(back[i]);
        records += held.at(back[i]);
      }
      parts[part].set_part(part);
      parts[part].set_parts(kParts);
      Add(keys, records, /*keep=*/false, &parts[part]);
    }
    for (const Key key : back) {
      returned[key] = held.at(key);
      held.erase(key);
    }
    v1::PullRequest ahead = Borrow(step + 1, {{0, early}});
    ahead.set_ahead(true);
    ahead.set_parts(2);
    v1::PullRequest behind = Borrow(step + 1, {{0, late}});
    behind.set_part(1);
    behind.set_parts(2);
    PullInFlight late_rows(server_.shard.get(), behind);
    std::unique_ptr<PullInFlight> early_rows;
    std::thread puller([&] { early_rows = std::make_unique<PullInFlight>(server_.shard.get(), ahead); });
    EXPECT_EQ(in_threads(parts), 3 * kParts);
    puller.join();
    ASSERT_TRUE(late_rows.Wait().ok()) << late_rows.Wait();
    EXPECT_TRUE(take(late_rows.response(), late).empty());
    ASSERT_TRUE(early_rows->Wait().ok()) << early_rows->Wait();
    if (const std::vector<Key> again = take(early_rows->response(), early); !again.empty()) {
      v1::PullRequest rest = Borrow(step + 1, {{0, again}});
      rest.set_parts(0);
      const auto rows = server_.Pull(rest);
      ASSERT_TRUE(rows.ok()) << rows.status();
      EXPECT_TRUE(take(*rows, again).empty());
    }
    ASSERT_EQ(Lent(), held.size());
    need = next;
    if (step % 10 != 9) continue;
    std::vector<v1::PushRequest> pieces;
    for (const auto& [key, record] : held) pieces.push_back(WriteBack(step + 1, {key}, record));
    in_threads(pieces);
    pieces.resize(1);
    pieces[0].set_complete(true);
    in_threads(pieces);
    EXPECT_TRUE(Save(step + 1).ok());
    std::filesystem::remove_all(server_.directory.File("checkpoint"));
  }
}

TEST_F(LoansTest, WhatIsLentIsForgottenWithItsJob) {
  Open();
  MustBorrow(0, {1, 2});
  job_.epoch = 2;
  Open();
  EXPECT_EQ(Lent(), 0u);
  EXPECT_TRUE(Save(0).ok());
}

// Rows that are lent leave DRAM like others, and what comes back takes the place of what the disk has.
TEST_F(LoansTest, RowsComeBackToATableThatDoesNotFitInMemory) {
  TestShard small(uint64_t{64} << 20, uint64_t{1} << 20);
  job_.tables = {AdagradTable("user", 64)};
  spec_ = *ParseTableConfig(job_.tables[0], job_.seed);
  ASSERT_TRUE(small.Open(job_).ok());
  constexpr uint64_t kKeys = 8000;  // Of 528 bytes each.
  constexpr uint64_t kStep = 500;
  std::vector<std::string> lent;
  uint64_t step = 0;
  for (Key first = 0; first < kKeys; first += kStep, ++step) {
    std::vector<Key> keys(kStep);
    for (uint64_t i = 0; i < kStep; ++i) keys[i] = first + i;
    const auto answer = small.Pull(Borrow(step, {{0, keys}}));
    ASSERT_TRUE(answer.ok()) << answer.status();
    lent.push_back(answer->tables(0).rows());
    ASSERT_TRUE(small.Push(job_.Push(step, {})).ok());
  }
  EXPECT_GT(small.shard->GetUsage().evictions, kKeys / 4);
  for (size_t piece = 0; piece < lent.size(); ++piece, ++step) {
    std::vector<Key> keys(kStep);
    for (uint64_t i = 0; i < kStep; ++i) keys[i] = piece * kStep + i;
    lent[piece] = Updated(lent[piece], step);
    const absl::Status returned = small.Push(Return(step, keys, lent[piece]));
    ASSERT_TRUE(returned.ok()) << returned;
  }
  for (size_t piece = 0; piece < lent.size(); ++piece) {
    std::vector<Key> keys(kStep);
    for (uint64_t i = 0; i < kStep; ++i) keys[i] = piece * kStep + i;
    const auto answer = small.Pull(Borrow(step, {{0, keys}}));
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_TRUE(answer->tables(0).rows() == lent[piece]) << piece;
  }
  EXPECT_EQ(small.shard->GetUsage().rows, kKeys);
}

}  // namespace
}  // namespace sparrow
