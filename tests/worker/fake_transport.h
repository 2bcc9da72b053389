#ifndef SPARROW_TESTS_WORKER_FAKE_TRANSPORT_H_
#define SPARROW_TESTS_WORKER_FAKE_TRANSPORT_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/bytes.h"
#include "worker/ps_transport.h"

namespace sparrow {

// A parameter server of one process's memory: a row's value is what gradients have been added to it, from a start that
// is a function of table, key and column. Applies each (worker, step, part) once. Faults on demand. Thread-safe.
class FakeServer {
 public:
  explicit FakeServer(std::vector<uint32_t> dims) : dims_(std::move(dims)) {}

  static float InitialValue(uint32_t table, uint64_t key, uint32_t column) {
    return static_cast<float>(table * 1000) + static_cast<float>(key % 997) + static_cast<float>(column) / 16;
  }

  absl::Status Pull(const v1::PullRequest& request, v1::PullResponse* response) {
    absl::MutexLock lock(&mu_);
    ++pulls_;
    largest_message_ = std::max<uint64_t>(largest_message_, request.ByteSizeLong());
    if (!pull_error_.ok()) return pull_error_;
    if (fail_pulls_ > 0) {
      --fail_pulls_;
      return absl::UnavailableError("not there yet");
    }
    if (request.ahead()) ++pulls_ahead_;
    for (const v1::TableKeys& asked : request.tables()) {
      v1::TableRows* rows = response->add_tables();
      const uint32_t dim = dims_[asked.table()];
      rows->set_table(asked.table());
      rows->set_dim(dim);
      const std::vector<uint64_t> keys = Keys(asked.keys());
      for (uint32_t i = 0; i < keys.size(); ++i) {
        keys_.insert({asked.table(), keys[i]});
        std::vector<float> row = Row(asked.table(), keys[i]);
        // Some of the rows that are asked for ahead have no value yet.
        if (request.ahead() && keys[i] % 3 == 0) {
          rows->mutable_pending()->append(reinterpret_cast<const char*>(&i), sizeof(i));
          std::fill(row.begin(), row.end(), -999.0f);
        }
        rows->mutable_rows()->append(reinterpret_cast<const char*>(row.data()), row.size() * sizeof(float));
      }
    }
    largest_message_ = std::max<uint64_t>(largest_message_, response->ByteSizeLong());
    return absl::OkStatus();
  }

  absl::Status Push(const v1::PushRequest& request, v1::PushResponse* response) {
    absl::MutexLock lock(&mu_);
    ++pushes_;
    largest_message_ = std::max<uint64_t>(largest_message_, request.ByteSizeLong());
    const bool first = parts_.insert({request.context().worker(), request.step(), request.part()}).second;
    response->set_duplicate(!first);
    parts_expected_[request.step()] = request.parts();
    samples_[request.step()] = request.samples();
    if (first) {
      for (const v1::TableGradients& table : request.tables()) {
        const uint32_t dim = dims_[table.table()];
        const std::vector<uint64_t> keys = Keys(table.keys());
        for (size_t i = 0; i < keys.size(); ++i) {
          keys_.insert({table.table(), keys[i]});
          std::vector<float>& row = Row(table.table(), keys[i]);
          for (uint32_t d = 0; d < dim; ++d) {
            float gradient = 0;
            std::memcpy(&gradient, table.gradients().data() + (i * dim + d) * sizeof(float), sizeof(float));
            row[d] += gradient;
          }
        }
      }
    }
    if (drop_acknowledgements_ > 0) {  // Applied, but the worker does not hear of it.
      --drop_acknowledgements_;
      return absl::UnavailableError("the connection was lost");
    }
    return absl::OkStatus();
  }

  void FailPulls(int n) {
    absl::MutexLock lock(&mu_);
    fail_pulls_ = n;
  }
  void SetPullError(absl::Status error) {
    absl::MutexLock lock(&mu_);
    pull_error_ = std::move(error);
  }
  void DropAcknowledgements(int n) {
    absl::MutexLock lock(&mu_);
    drop_acknowledgements_ = n;
  }

  int pulls() const {
    absl::MutexLock lock(&mu_);
    return pulls_;
  }
  int pushes() const {
    absl::MutexLock lock(&mu_);
    return pushes_;
  }
  // Parts received for a step, and how many they say there are.
  std::pair<uint32_t, uint32_t> parts(uint64_t step) const {
    absl::MutexLock lock(&mu_);
    uint32_t received = 0;
    for (const auto& part : parts_) received += std::get<1>(part) == step ? 1 : 0;
    const auto expected = parts_expected_.find(step);
    return {received, expected == parts_expected_.end() ? 0 : expected->second};
  }
  int pulls_ahead() const {
    absl::MutexLock lock(&mu_);
    return pulls_ahead_;
  }
  // Every (table, key) it has been asked about.
  std::set<std::pair<uint32_t, uint64_t>> keys() const {
    absl::MutexLock lock(&mu_);
    return keys_;
  }
  uint64_t largest_message() const {
    absl::MutexLock lock(&mu_);
    return largest_message_;
  }

 private:
  static std::vector<uint64_t> Keys(const std::string& bytes) {
    std::vector<uint64_t> keys(bytes.size() / sizeof(uint64_t));
    CopyBytes(bytes, std::span<uint64_t>(keys));
    return keys;
  }
  std::vector<float>& Row(uint32_t table, uint64_t key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    std::vector<float>& row = rows_[{table, key}];
    if (row.empty()) {
      for (uint32_t d = 0; d < dims_[table]; ++d) row.push_back(InitialValue(table, key, d));
    }
    return row;
  }

  const std::vector<uint32_t> dims_;

  mutable absl::Mutex mu_;
  std::map<std::pair<uint32_t, uint64_t>, std::vector<float>> rows_ ABSL_GUARDED_BY(mu_);
  std::set<std::pair<uint32_t, uint64_t>> keys_ ABSL_GUARDED_BY(mu_);
  std::set<std::tuple<uint32_t, uint64_t, uint32_t>> parts_ ABSL_GUARDED_BY(mu_);
  std::map<uint64_t, uint32_t> parts_expected_ ABSL_GUARDED_BY(mu_);
  std::map<uint64_t, uint64_t> samples_ ABSL_GUARDED_BY(mu_);
  int pulls_ ABSL_GUARDED_BY(mu_) = 0;
  int pulls_ahead_ ABSL_GUARDED_BY(mu_) = 0;
  int pushes_ ABSL_GUARDED_BY(mu_) = 0;
  int fail_pulls_ ABSL_GUARDED_BY(mu_) = 0;
  int drop_acknowledgements_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status pull_error_ ABSL_GUARDED_BY(mu_);
  uint64_t largest_message_ ABSL_GUARDED_BY(mu_) = 0;
};

// Calls a FakeServer on threads of its own, so that ends come in any order. `hold`: pulls are never answered until
// Cancel.
class FakeTransport final : public PsTransport {
 public:
  explicit FakeTransport(FakeServer* server, bool hold = false) : server_(server), hold_(hold) {}
  ~FakeTransport() override {
    Cancel();
    std::vector<std::thread> threads;
    {
      absl::MutexLock lock(&mu_);
      threads.swap(threads_);
    }
    for (std::thread& thread : threads) thread.join();
  }

  void Pull(const RowPull* request, v1::PullResponse* response, absl::Duration, Done done) override {
    Run(
        [=, this] {
          const absl::Status status = server_->Pull(request->message, response);
          for (int i = 0; i < response->tables_size(); ++i) {
            CopyBytes(response->tables(i).rows(), request->rows[static_cast<size_t>(i)]);
            response->mutable_tables(i)->clear_rows();
          }
          return status;
        },
        hold_, std::move(done));
  }
  void Push(const RowPush* request, v1::PushResponse* response, absl::Duration, Done done) override {
    Run(
        [=, this] {
          v1::PushRequest message = request->message;
          for (int i = 0; i < message.tables_size(); ++i) {
            const std::span<const char> gradients = request->beside[static_cast<size_t>(i)];
            message.mutable_tables(i)->set_gradients(gradients.data(), gradients.size());
          }
          return server_->Push(message, response);
        },
        false, std::move(done));
  }
  void OpenJob(const v1::OpenJobRequest*, v1::OpenJobResponse*, absl::Duration, Done done) override {
    done(absl::UnimplementedError("not part of this fake"));
  }
  void SaveTables(const v1::SaveTablesRequest*, v1::SaveTablesResponse*, absl::Duration, Done done) override {
    done(absl::UnimplementedError("not part of this fake"));
  }
  void CloseJob(const v1::CloseJobRequest*, v1::CloseJobResponse*, absl::Duration, Done done) override {
    done(absl::UnimplementedError("not part of this fake"));
  }
  void Cancel() override {
    absl::MutexLock lock(&mu_);
    cancelled_ = true;
  }

 private:
  void Run(std::function<absl::Status()> body, bool hold, Done done) {
    absl::MutexLock lock(&mu_);
    if (cancelled_) {
      threads_.emplace_back([done = std::move(done)] { done(absl::CancelledError("cancelled")); });
      return;
    }
    threads_.emplace_back([this, hold, body = std::move(body), done = std::move(done)] {
      if (hold) {
        {
          absl::MutexLock wait(&mu_);
          mu_.Await(absl::Condition(&cancelled_));
        }
        done(absl::CancelledError("cancelled"));
        return;
      }
      done(body());
    });
  }
  FakeServer* const server_;
  const bool hold_;
  absl::Mutex mu_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sparrow

#endif  // SPARROW_TESTS_WORKER_FAKE_TRANSPORT_H_
