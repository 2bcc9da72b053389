#ifndef SPARROW_TESTS_SUPPORT_RENDEZVOUS_STORES_H_
#define SPARROW_TESTS_SUPPORT_RENDEZVOUS_STORES_H_

// Boards on which members of one test meet.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "dense/collective.h"

namespace sparrow {

// For members in one process.
class MapStore final : public RendezvousStore {
 public:
  absl::Status Put(const std::string& key, const std::string& value) override {
    absl::MutexLock lock(&mu_);
    values_[key] = value;
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> Get(const std::string& key, absl::Duration timeout) override {
    absl::MutexLock lock(&mu_);
    const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return values_.count(key) > 0; };
    if (!mu_.AwaitWithTimeout(absl::Condition(&there), timeout)) {
      return absl::DeadlineExceededError("nobody has put " + key);
    }
    return values_[key];
  }

 private:
  absl::Mutex mu_;
  std::map<std::string, std::string> values_ ABSL_GUARDED_BY(mu_);
};

// For members in several processes: a file for each key, in a directory that all of them see.
class FileStore final : public RendezvousStore {
 public:
  explicit FileStore(std::string directory) : directory_(std::move(directory)) {}

  absl::Status Put(const std::string& key, const std::string& value) override {
    const std::string path = Path(key);
    std::ofstream(path + ".part", std::ios::binary) << value;
    std::filesystem::rename(path + ".part", path);
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> Get(const std::string& key, absl::Duration timeout) override {
    const absl::Time deadline = absl::Now() + timeout;
    const std::string path = Path(key);
    while (!std::filesystem::exists(path)) {
      if (absl::Now() >= deadline) return absl::DeadlineExceededError("nobody has put " + key);
      absl::SleepFor(absl::Milliseconds(2));
    }
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

 private:
  std::string Path(std::string key) const {
    std::replace(key.begin(), key.end(), '/', '_');
    return absl::StrCat(directory_, "/", key);
  }

  const std::string directory_;
};

}  // namespace sparrow

#endif  // SPARROW_TESTS_SUPPORT_RENDEZVOUS_STORES_H_
