// A step that takes longer than a lease: https://github.com/dmlc/parameter_server/issues/22

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "base/metrics.h"
#include "coordinator/coordinator.h"
#include "coordinator/link.h"
#include "server/server.h"
#include "tests/support/forwarding_transport.h"
#include "tests/support/temporary_directory.h"
#include "tests/worker/training_harness.h"
#include "worker/worker.h"

namespace sparrow {
namespace {

constexpr absl::Duration kLease = absl::Milliseconds(1000);

// Keeps the training thread busy in every push.
class SlowTransport final : public ForwardingTransport {
 public:
  using ForwardingTransport::ForwardingTransport;

  void Push(const RowPush* request, v1::PushResponse* response, absl::Duration timeout, Done done) override {
    absl::SleepFor(3 * kLease);
    ForwardingTransport::Push(request, response, timeout, std::move(done));
  }
};

TEST(LongStep, OfTheWholeFileInOneBatchDoesNotHoldUpHeartbeats) {
  const TemporaryDirectory directory;
  WriteClicks(directory.File("train.tsv"), 10000, 1);
  WriteClicks(directory.File("test.tsv"), 100, 2);
  Metrics metrics;
  CoordinatorOptions of_coordinator;
  of_coordinator.listen = "127.0.0.1:0";
  of_coordinator.state = "";
  of_coordinator.lease = kLease;
  of_coordinator.heartbeat = absl::Milliseconds(50);
  const auto coordinator = Coordinator::Start(of_coordinator, &metrics);
  ASSERT_TRUE(coordinator.ok()) << coordinator.status();
  ServerOptions of_server;
  of_server.coordinator = (*coordinator)->address();
  of_server.listen = "127.0.0.1:0";
  of_server.data = directory.File("server");
  of_server.checkpoint_root = directory.File("checkpoints");
  of_server.memory_bytes = 64 << 20;
  const auto server = Server::Start(of_server, &metrics);
  ASSERT_TRUE(server.ok()) << server.status();
  WorkerOptions of_worker;
  of_worker.coordinator = (*coordinator)->address();
  of_worker.data_root = directory.path();
  of_worker.checkpoint_root = directory.File("checkpoints");
  const PsTransportFactory grpc = GrpcTransportFactory(absl::Seconds(10));
  of_worker.transport_factory = [&](const std::string& address) -> absl::StatusOr<std::unique_ptr<PsTransport>> {
    auto inner = grpc(address);
    if (!inner.ok()) return inner.status();
    return std::make_unique<SlowTransport>(*std::move(inner));
  };
  const auto worker = Worker::Start(of_worker, &metrics);
  ASSERT_TRUE(worker.ok()) << worker.status();
  const std::string member = (*worker)->member_id();

  const auto link = CoordinatorLink::Connect((*coordinator)->address(), absl::Seconds(10));
  ASSERT_TRUE(link.ok()) << link.status();
  v1::SubmitRequest request;
  *request.mutable_job() = ClickJob();
  request.mutable_job()->mutable_train()->set_batch_size(1000000);
  const absl::Time start = absl::Now();
  const auto submitted = (*link)->Submit(request);
  ASSERT_TRUE(submitted.ok()) << submitted.status();
  v1::JobStatus last;
  const absl::Status watched = (*link)->WatchJob(submitted->job_id(), [&](const v1::JobStatus& status) {
    last = status;
    return true;
  });
  ASSERT_TRUE(watched.ok()) << watched;
  EXPECT_EQ(last.state(), v1::JobStatus::SUCCEEDED) << last.message();
  EXPECT_EQ(last.summary().steps(), 1u);
  EXPECT_EQ(last.summary().rows_trained(), 10000u);
  EXPECT_GT(absl::Now() - start, 3 * kLease);
  EXPECT_EQ((*worker)->member_id(), member);  // Its lease never ran out.
}

}  // namespace
}  // namespace sparrow
