#ifndef SPARROW_TESTS_SERVER_SHARD_FIXTURE_H_
#define SPARROW_TESTS_SERVER_SHARD_FIXTURE_H_

// A job as its workers would describe it, a shard to send it to, and requests in few words.

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/bytes.h"
#include "base/metrics.h"
#include "embedding/partition.h"
#include "embedding/table_config.h"
#include "server/shard.h"
#include "tests/support/temporary_directory.h"

namespace sparrow {

inline v1::TableConfig SgdTable(const std::string& name, uint32_t dim, uint64_t bounded_rows = 0,
                                double learning_rate = 0.5) {
  v1::TableConfig config;
  config.set_name(name);
  config.set_dim(dim);
  if (bounded_rows != 0) {
    config.set_bounded_rows(bounded_rows);
  } else {
    config.mutable_hashed();
  }
  config.mutable_optimizer()->set_learning_rate(learning_rate);
  config.mutable_optimizer()->mutable_sgd();
  config.mutable_initializer()->set_uniform_bound(0.25);
  return config;
}

struct TestJob {
  std::string id = "job-1";
  uint64_t epoch = 1;
  uint32_t workers = 1;
  uint64_t seed = 7;
  std::vector<v1::TableConfig> tables = {SgdTable("user", 4), SgdTable("item", 3, 1000)};
  ShardAssignment shards = ShardAssignment::RowWise(1);
  uint32_t server = 0;
  uint64_t first_step = 0;
  std::string restore_from;
  bool prefetch = false;

  v1::CallContext Context(uint32_t worker = 0) const {
    v1::CallContext context;
    context.set_job_id(id);
    context.set_epoch(epoch);
    context.set_worker(worker);
    context.set_fingerprint(ConfigFingerprint(tables, seed, shards));
    return context;
  }
  v1::OpenJobRequest Open(uint32_t worker = 0) const {
    v1::OpenJobRequest request;
    *request.mutable_context() = Context(worker);
    request.set_workers(workers);
    request.set_seed(seed);
    for (const v1::TableConfig& table : tables) *request.add_tables() = table;
    for (const uint32_t owner : shards.owner()) request.mutable_shard_map()->add_owner(owner);
    request.set_server(server);
    request.set_first_step(first_step);
    request.set_restore_from(restore_from);
    request.set_prefetch(prefetch);
    return request;
  }

  struct KeysOfTable {
    uint32_t table = 0;
    std::vector<Key> keys;
  };
  v1::PullRequest Pull(uint64_t step, const std::vector<KeysOfTable>& tables_keys, uint32_t worker = 0,
                       bool create = true) const {
    v1::PullRequest request;
    *request.mutable_context() = Context(worker);
    request.set_step(step);
    request.set_create(create);
    request.set_parts(1);
    for (const KeysOfTable& entry : tables_keys) {
      v1::TableKeys* table = request.add_tables();
      table->set_table(entry.table);
      table->set_keys(std::string(AsBytes(std::span<const Key>(entry.keys))));
    }
    return request;
  }

  struct Gradients {
    uint32_t table = 0;
    std::vector<Key> keys;
    std::vector<float> values;
  };
  v1::PushRequest Push(uint64_t step, const std::vector<Gradients>& gradients, uint32_t worker = 0,
                       uint64_t samples = 1) const {
    v1::PushRequest request;
    *request.mutable_context() = Context(worker);
    request.set_step(step);
    request.set_parts(1);
    request.set_samples(samples);
    request.set_learning_rate_factor(1);
    for (const Gradients& entry : gradients) {
      v1::TableGradients* table = request.add_tables();
      table->set_table(entry.table);
      table->set_keys(std::string(AsBytes(std::span<const Key>(entry.keys))));
      table->set_gradients(std::string(AsBytes(std::span<const float>(entry.values))));
    }
    return request;
  }
};

inline std::vector<float> RowsOf(const v1::PullResponse& response, int entry = 0) {
  std::vector<float> rows(response.tables(entry).rows().size() / sizeof(float));
  CopyBytes(absl::string_view(response.tables(entry).rows()), std::span<float>(rows));
  return rows;
}

// A pull that may wait. It must have ended before this goes.
class PullInFlight {
 public:
  PullInFlight(Shard* shard, v1::PullRequest request) : request_(std::move(request)) {
    id_ = shard->Pull(&request_, &response_, [this](absl::Status status) {
      status_ = std::move(status);
      done_.Notify();
    });
  }
  ~PullInFlight() { done_.WaitForNotification(); }

  uint64_t id() const { return id_; }
  bool done() const { return done_.HasBeenNotified(); }
  absl::Status Wait() {
    done_.WaitForNotification();
    return status_;
  }
  const v1::PullResponse& response() const { return response_; }

 private:
  const v1::PullRequest request_;
  v1::PullResponse response_;
  absl::Status status_;
  absl::Notification done_;
  uint64_t id_ = 0;
};

// One shard in a directory of its own.
struct TestShard {
  explicit TestShard(uint64_t message_bytes_max = uint64_t{64} << 20, uint64_t memory_bytes = uint64_t{256} << 20,
                     uint64_t disk_bytes = 0) {
    auto made = Shard::Create({.data = directory.File("data"),
                               .checkpoint_root = directory.path(),
                               .memory_bytes = memory_bytes,
                               .disk_bytes = disk_bytes,
                               .message_bytes_max = message_bytes_max},
                              &metrics);
    CHECK(made.ok()) << made.status();
    shard = *std::move(made);
  }

  absl::Status Open(const TestJob& job, uint32_t worker = 0) {
    v1::OpenJobResponse response;
    return shard->OpenJob(job.Open(worker), &response);
  }
  absl::StatusOr<v1::PullResponse> Pull(const v1::PullRequest& request) {
    PullInFlight pull(shard.get(), request);
    if (!pull.done()) {
      shard->CancelPull(pull.id());
      return absl::DeadlineExceededError("the pull waits");
    }
    if (absl::Status status = pull.Wait(); !status.ok()) return status;
    return pull.response();
  }
  absl::Status Push(const v1::PushRequest& request) {
    v1::PushResponse response;
    return shard->Push(request, &response);
  }

  TemporaryDirectory directory;
  Metrics metrics;
  std::unique_ptr<Shard> shard;
};

}  // namespace sparrow

#endif  // SPARROW_TESTS_SERVER_SHARD_FIXTURE_H_
