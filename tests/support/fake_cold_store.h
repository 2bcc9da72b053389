#ifndef SPARROW_TESTS_SUPPORT_FAKE_COLD_STORE_H_
#define SPARROW_TESTS_SUPPORT_FAKE_COLD_STORE_H_

// A cold tier in memory that fails when told to: reads that fail, a disk that is full. Fast enough for millions of
// operations.

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "embedding/cold_store.h"

namespace sparrow {

// Thread-safe. One of every so many calls fails, by a fixed random sequence.
class Faults {
 public:
  explicit Faults(uint64_t seed = 0) : seed_(seed) {}

  void FailReads(double probability) { reads_ = probability; }
  void FailWrites(double probability) { writes_ = probability; }
  void Stop() { reads_ = writes_ = 0; }

  absl::Status Read() { return Draw(reads_) ? absl::UnavailableError("the cold tier cannot be read") : Ok(); }
  absl::Status Write() { return Draw(writes_) ? absl::ResourceExhaustedError("the cold tier is full") : Ok(); }
  uint64_t failures() const { return failures_; }

 private:
  static absl::Status Ok() { return absl::OkStatus(); }
  bool Draw(double probability) {
    if (probability <= 0 || RandomUniform(seed_, calls_++) >= probability) return false;
    ++failures_;
    return true;
  }

  const uint64_t seed_;
  std::atomic<double> reads_{0}, writes_{0};
  std::atomic<uint64_t> calls_{0}, failures_{0};
};

// `faults` outlives the store, the store its tables.
class FakeColdStore final : public ColdStore {
 public:
  explicit FakeColdStore(Faults* faults) : faults_(faults) {}

  absl::StatusOr<std::unique_ptr<ColdTable>> OpenTable(const std::string& /*name*/, uint64_t record_bytes) override {
    return std::make_unique<FakeTable>(faults_, record_bytes);
  }
  absl::Status CheckRoom(uint64_t /*rows_bytes*/) override { return absl::OkStatus(); }

 private:
  class FakeTable final : public ColdTable {
   public:
    FakeTable(Faults* faults, uint64_t record_bytes) : faults_(faults), record_bytes_(record_bytes) {}

    absl::Status Read(std::span<const Key> keys, std::span<char> records, std::span<uint8_t> found) const override {
      if (absl::Status fault = faults_->Read(); !fault.ok()) return fault;
      absl::ReaderMutexLock lock(&mu_);
      for (size_t i = 0; i < keys.size(); ++i) {
        const auto row = rows_.find({BucketOf(keys[i]), keys[i]});
        found[i] = row != rows_.end() ? 1 : 0;
        if (found[i] != 0) std::memcpy(records.data() + i * record_bytes_, row->second.data(), record_bytes_);
      }
      return absl::OkStatus();
    }

    absl::Status Write(std::span<const Key> keys, std::span<const char* const> records) override {
      if (absl::Status fault = faults_->Write(); !fault.ok()) return fault;
      absl::MutexLock lock(&mu_);
      for (size_t i = 0; i < keys.size(); ++i) {
        rows_[{BucketOf(keys[i]), keys[i]}].assign(records[i], record_bytes_);
      }
      return absl::OkStatus();
    }

    absl::Status Erase(std::span<const Key> keys) {
      if (absl::Status fault = faults_->Write(); !fault.ok()) return fault;
      absl::MutexLock lock(&mu_);
      for (const Key key : keys) rows_.erase({BucketOf(key), key});
      return absl::OkStatus();
    }

    absl::Status Scan(uint32_t bucket_begin, uint32_t bucket_end,
                      absl::FunctionRef<absl::Status(Key, absl::string_view)> visit) const override {
      if (absl::Status fault = faults_->Read(); !fault.ok()) return fault;
      absl::ReaderMutexLock lock(&mu_);
      for (auto row = rows_.lower_bound({bucket_begin, 0}); row != rows_.end() && row->first.first < bucket_end;
           ++row) {
        if (absl::Status status = visit(row->first.second, row->second); !status.ok()) return status;
      }
      return absl::OkStatus();
    }

    uint64_t FileBytes() const override {
      absl::ReaderMutexLock lock(&mu_);
      return rows_.size() * record_bytes_;
    }

   private:
    Faults* const faults_;
    const uint64_t record_bytes_;
    mutable absl::Mutex mu_;
    std::map<std::pair<uint32_t, Key>, std::string> rows_ ABSL_GUARDED_BY(mu_);
  };

  Faults* const faults_;
};

}  // namespace sparrow

#endif  // SPARROW_TESTS_SUPPORT_FAKE_COLD_STORE_H_
