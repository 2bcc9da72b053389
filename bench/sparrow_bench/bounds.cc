// The bounds that pulls and pushes are held against: bench/sparrow_bench/plane.h.

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/check.h"
#include "base/parallel.h"
#include "bench/sparrow_bench/plane.h"
#include "embedding/pages.h"
#include "sparrow/v1/parameter_server.grpc.pb.h"

namespace sparrow::bench {
namespace {

grpc::ByteBuffer Borrowed(const char* data, size_t bytes) {
  const grpc::Slice slice(
      const_cast<char*>(data), bytes, [](void*) {}, nullptr);
  return grpc::ByteBuffer(&slice, 1);
}

constexpr size_t kBatches = 64;  // Of bytes to send, used in turn.

// Answers a pull with so many bytes, not all of them in the caches, whatever was asked.
class EchoService final : public v1::ParameterServer::WithRawCallbackMethod_Pull<v1::ParameterServer::Service> {
 public:
  explicit EchoService(uint64_t answer_bytes) : answer_bytes_(answer_bytes), memory_(answer_bytes * kBatches, 'r') {}

  grpc::ServerUnaryReactor* Pull(grpc::CallbackServerContext* context, const grpc::ByteBuffer*,
                                 grpc::ByteBuffer* answer) override {
    const uint64_t turn = turn_.fetch_add(1, std::memory_order_relaxed) % kBatches;
    *answer = Borrowed(memory_.data() + turn * answer_bytes_, answer_bytes_);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  const uint64_t answer_bytes_;
  const std::string memory_;
  std::atomic<uint64_t> turn_{0};  // Relaxed: only chooses.
};

}  // namespace

double EchoRowsPerSecond(const Setup& setup, int64_t milliseconds, const CallBytes& bytes) {
  TemporaryDirectory directory;
  EchoService service(bytes.answer_bytes);
  auto server = StartGrpcServer(setup.transport == "tcp" ? "127.0.0.1:0" : "unix:" + directory.File("socket"),
                                {&service}, Traffic::kRows);
  CHECK(server.ok()) << server.status();
  using Stub = grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer>;
  std::vector<std::unique_ptr<Stub>> stubs;
  const size_t channels = static_cast<size_t>(setup.servers * kConnections);  // Of each worker, as transports have.
  for (size_t c = 0; c < channels * static_cast<size_t>(setup.workers); ++c) {
    stubs.push_back(std::make_unique<Stub>(MakeChannel(server->address, Traffic::kRows)));
  }
  const std::string memory(bytes.request_bytes * kBatches, 'k');
  const Times times = Repeat(setup.workers, milliseconds, [&](size_t worker, size_t i) {
    absl::Mutex mu;
    uint64_t left = bytes.calls;
    struct Call {
      grpc::ClientContext context;
      grpc::ByteBuffer request, answer;
    };
    std::vector<Call> all(bytes.calls);
    size_t channel = worker * channels;
    for (Call& call : all) {
      call.request = Borrowed(memory.data() + i % kBatches * bytes.request_bytes, bytes.request_bytes);
      Stub* const stub = stubs[channel].get();
      if (++channel == (worker + 1) * channels) channel = worker * channels;
      stub->UnaryCall(&call.context, "/sparrow.v1.ParameterServer/Pull", grpc::StubOptions(), &call.request,
                      &call.answer, [&](const grpc::Status& status) {
                        CHECK(status.ok()) << status.error_message();
                        absl::MutexLock lock(&mu);
                        --left;
                      });
    }
    absl::MutexLock lock(&mu);
    mu.Await(absl::Condition(
        +[](uint64_t* calls_left) { return *calls_left == 0; }, &left));
  });
  stubs.clear();
  server->server->Shutdown();
  return static_cast<double>(setup.keys) * static_cast<double>(times.each.size()) / times.all;
}

double GatherRowsPerSecond(const Setup& setup, int64_t milliseconds, const Plane& plane) {
  constexpr int64_t kRowsPerThread = 1024;  // Not more than tables give a thread (embedding/dram_tier.cc).
  const size_t row_bytes = static_cast<size_t>(setup.dim) * sizeof(float);
  // About 2 KiB on their way: more at once, of long rows, is slower.
  const int64_t ahead = std::clamp<int64_t>(2048 / static_cast<int64_t>(row_bytes), 1, 16);
  const Pages pages(static_cast<uint64_t>(setup.rows) * row_bytes);
  CHECK(pages.data() != nullptr) << "no memory for the gather bound";
  std::memset(pages.data(), 1, pages.bytes());
  std::vector<std::vector<char>> into(static_cast<size_t>(setup.workers),
                                      std::vector<char>(static_cast<size_t>(setup.keys) * row_bytes));
  const auto rate = [&](int64_t rows_per_thread) {
    const Times times = Repeat(setup.workers, milliseconds, [&](size_t worker, size_t i) {
      const std::span<const Key> keys = plane.partition(i + worker * 7).keys(0);
      ParallelFor(static_cast<int64_t>(keys.size()), rows_per_thread, [&](int64_t begin, int64_t end) {
        char* out = into[worker].data() + static_cast<size_t>(begin) * row_bytes;
        for (int64_t k = begin; k < end; ++k, out += row_bytes) {
          if (k + ahead < end) {
            const char* next = pages.data() + keys[k + ahead] * row_bytes;
            for (size_t line = 0; line < row_bytes; line += 64) __builtin_prefetch(next + line);
          }
          std::memcpy(out, pages.data() + keys[k] * row_bytes, row_bytes);
        }
      });
    });
    return static_cast<double>(setup.keys) * static_cast<double>(times.each.size()) / times.all;
  };
  return std::max(rate(setup.keys), rate(kRowsPerThread));
}

}  // namespace sparrow::bench
