// Gloo over TCP. All-reduce is the ring algorithm: each segment is summed in the ring's order by one member and then
// handed on, so all members hold the same bits, and the same bits from run to run. Gloo reports failures by exceptions;
// none leaves this file.
//
// The first half of an all-reduce is a ring of our own over Gloo's messages, because its reduce-scatter has another
// order than its all-reduce and cuts where it likes. In N - 1 rounds each member sends a slice to the next and gets one
// from the one before. Slice r is summed from member r + 1 on, around the ring, to member r, which keeps it.

#include <gloo/allgather.h>
#include <gloo/allgatherv.h>
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <gloo/types.h>
#include <netdb.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "dense/collective.h"

namespace sparrow {
namespace {

// Our board as Gloo's. Gloo wants failures as exceptions; MakeGlooCollective catches them.
class GlooStore final : public gloo::rendezvous::Store {
 public:
  GlooStore(RendezvousStore* store, absl::Duration timeout) : store_(store), timeout_(timeout) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    Throw(store_->Put(key, std::string(data.begin(), data.end())));
  }
  std::vector<char> get(const std::string& key) override {
    absl::StatusOr<std::string> value = store_->Get(key, timeout_);
    Throw(value.status());
    return {value->begin(), value->end()};
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) Throw(store_->Get(key, timeout_).status());
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    for (const std::string& key : keys) Throw(store_->Get(key, absl::FromChrono(timeout)).status());
  }

 private:
  static void Throw(const absl::Status& status) {
    if (!status.ok()) throw std::runtime_error(std::string(status.message()));
  }

  RendezvousStore* const store_;
  const absl::Duration timeout_;
};

template <typename T>
void Sum(void* out, const void* a, const void* b, size_t n) {
  // `out` may be `a` or `b`.
  const T* x = static_cast<const T*>(a);
  const T* y = static_cast<const T*>(b);
  T* z = static_cast<T*>(out);
  for (size_t i = 0; i < n; ++i) z[i] = x[i] + y[i];
}

// Whether `host` has an address that a socket of this machine can be bound to. Asked before Gloo is, because this
// version of it frees an uninitialised pointer where a name has no address.
absl::Status CheckHost(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* addresses = nullptr;
  const int error = getaddrinfo(host.c_str(), nullptr, &hints, &addresses);
  if (error != 0) {
    return absl::UnavailableError(absl::StrCat("it has no address: ", gai_strerror(error)));
  }
  absl::Status status = absl::UnavailableError("it has no address of this machine");
  for (const addrinfo* address = addresses; address != nullptr; address = address->ai_next) {
    const int fd = socket(address->ai_family, address->ai_socktype, address->ai_protocol);
    if (fd < 0) continue;
    if (bind(fd, address->ai_addr, address->ai_addrlen) == 0) status = absl::OkStatus();
    close(fd);
    if (status.ok()) break;
  }
  freeaddrinfo(addresses);
  return status;
}

class GlooCollective final : public Collective {
 public:
  GlooCollective(std::shared_ptr<gloo::Context> context, absl::Duration timeout)
      : context_(std::move(context)), timeout_(absl::ToChronoMilliseconds(timeout)) {}

  uint32_t rank() const override { return static_cast<uint32_t>(context_->rank); }
  uint32_t size() const override { return static_cast<uint32_t>(context_->size); }

  absl::Status AllReduceSum(std::span<float> values) override { return AllReduce("AllReduceSum", values); }
  absl::Status AllReduceSum(std::span<double> values) override { return AllReduce("AllReduceSum", values); }

  absl::Status ReduceScatterSum(std::span<float> values, const SliceEnds& ends) override {
    return Run("ReduceScatterSum", [&] { SumAroundRing(values, ends); });
  }
  absl::Status AllGatherSlices(std::span<float> values, const SliceEnds& ends) override {
    return Run("AllGatherSlices", [&] {
      CHECK(ends.size() == size() && ends.back() == values.size());
      if (values.empty()) return;
      std::vector<size_t> lengths;
      for (uint32_t r = 0; r < size(); ++r) lengths.push_back(SliceOf(ends, r).size());
      gloo::AllgathervOptions gather(context_);  // In place, around the ring.
      gather.setOutput(values.data(), lengths);
      gather.setTimeout(timeout_);
      gather.setTag(NextTag());
      gloo::allgatherv(gather);
      if (size() > 1) slice_bytes_sent_ += (values.size() - lengths[(rank() + 1) % size()]) * sizeof(float);
    });
  }
  uint64_t slice_bytes_sent() const override { return slice_bytes_sent_; }

  absl::StatusOr<std::vector<std::string>> AllGather(absl::string_view bytes) override {
    std::vector<std::string> parts(size());
    const absl::Status status = Run("AllGather", [&] {
      std::vector<uint64_t> lengths(size());
      uint64_t length = bytes.size();
      gloo::AllgatherOptions exchange(context_);
      exchange.setInput(&length, 1);
      exchange.setOutput(lengths.data(), lengths.size());
      exchange.setTimeout(timeout_);
      exchange.setTag(NextTag());
      gloo::allgather(exchange);
      const uint64_t total = std::accumulate(lengths.begin(), lengths.end(), uint64_t{0});
      if (total == 0) return;
      std::string input(bytes);
      std::string output(total, '\0');
      gloo::AllgathervOptions gather(context_);
      gather.setInput(input.data(), input.size());
      gather.setOutput(output.data(), std::vector<size_t>(lengths.begin(), lengths.end()));
      gather.setTimeout(timeout_);
      gather.setTag(NextTag());
      gloo::allgatherv(gather);
      size_t offset = 0;
      for (uint32_t r = 0; r < size(); ++r) {
        parts[r] = output.substr(offset, lengths[r]);
        offset += lengths[r];
      }
    });
    if (!status.ok()) return status;
    return parts;
  }

  absl::Status Barrier() override {
    return Run("Barrier", [&] {
      gloo::BarrierOptions options(context_);
      options.setTimeout(timeout_);
      options.setTag(NextTag());
      gloo::barrier(options);
    });
  }

  void Abort() override {
    aborted_ = true;
    // A wait that times out ends all waits of its context. Nobody sends what this one waits for.
    try {
      char byte;
      const auto never = context_->createUnboundBuffer(&byte, sizeof(byte));
      never->recv(static_cast<int>((rank() + 1) % size()), gloo::Slot::build(kAbortSlotPrefix, 0));
      never->waitRecv(std::chrono::milliseconds(1));
    } catch (const std::exception&) {  // So it ends; or the connections are closed.
    }
  }

 private:
  template <typename T>
  absl::Status AllReduce(absl::string_view operation, std::span<T> values) {
    return Run(operation, [&] {
      if (values.empty()) return;
      gloo::AllreduceOptions options(context_);
      options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
      options.setOutput(values.data(), values.size());
      options.setReduceFunction(&Sum<T>);
      options.setTimeout(timeout_);
      options.setTag(NextTag());
      gloo::allreduce(options);
    });
  }

  // A slice travels in pieces, so that one is added while the next is on its way.
  static constexpr uint64_t kPieceFloats = uint64_t{1} << 18;
  static constexpr uint64_t kPiecesAhead = 4;       // That are expected at a time.
  static constexpr uint8_t kRingSlotPrefix = 0x20;  // None of Gloo's own, as the other one.
  static constexpr uint8_t kAbortSlotPrefix = 0x21;

  void SumAroundRing(std::span<float> values, const SliceEnds& ends) {
    CHECK(ends.size() == size() && ends.back() == values.size());
    if (values.empty()) return;
    const uint32_t n = size();
    const int next = static_cast<int>((rank() + 1) % n), previous = static_cast<int>((rank() + n - 1) % n);
    uint64_t longest = 0;
    for (uint32_t r = 0; r < n; ++r) longest = std::max(longest, SliceOf(ends, r).size());
    const uint64_t pieces =
        (longest + kPieceFloats - 1) / kPieceFloats;  // Of each round; shorter slices have empty ones.
    const auto piece_of = [&](uint32_t slice, uint64_t i) {
      const Slice whole = SliceOf(ends, slice % n);
      const uint64_t begin = std::min(whole.end, whole.begin + i % pieces * kPieceFloats);
      return Slice{begin, std::min(whole.end, begin + kPieceFloats)};
    };
    // Piece i of all rounds. The slice that comes last is the own one.
    const uint32_t first = rank() + n - 1;
    const auto sent = [&](uint64_t i) { return piece_of(first + n - static_cast<uint32_t>(i / pieces), i); };
    const auto received = [&](uint64_t i) { return piece_of(first + n - 1 - static_cast<uint32_t>(i / pieces), i); };

    const gloo::Slot slot = gloo::Slot::build(kRingSlotPrefix, NextTag());
    const auto whole = context_->createUnboundBuffer(values.data(), values.size_bytes());
    pieces_.resize(kPiecesAhead * std::min(longest, kPieceFloats));
    const auto landing = context_->createUnboundBuffer(pieces_.data(), pieces_.size() * sizeof(float));
    const auto place_of = [&](uint64_t i) { return i % kPiecesAhead * std::min(longest, kPieceFloats); };
    const auto expect = [&](uint64_t i) {
      if (received(i).size() == 0) return;
      landing->recv(previous, slot, place_of(i) * sizeof(float), received(i).size() * sizeof(float));
    };
    const uint64_t all = pieces * (n - 1);
    uint64_t sends = 0;
    for (uint64_t i = 0; i < std::min(all, kPiecesAhead); ++i) expect(i);
    for (uint64_t i = 0; i < all; ++i) {
      // What is sent in a round came in the round before.
      const Slice out = sent(i), in = received(i);
      if (out.size() > 0) {
        whole->send(next, slot, out.begin * sizeof(float), out.size() * sizeof(float));
        slice_bytes_sent_ += out.size() * sizeof(float);
        ++sends;
      }
      if (in.size() > 0) {
        if (!landing->waitRecv(timeout_)) throw std::runtime_error("the wait for a message was aborted");
        Sum<float>(&values[in.begin], &pieces_[place_of(i)], &values[in.begin], in.size());
      }
      if (i + kPiecesAhead < all) expect(i + kPiecesAhead);
    }
    for (; sends > 0; --sends) {
      if (!whole->waitSend(timeout_)) throw std::runtime_error("the wait for a message to be sent was aborted");
    }
  }

  // Runs one operation; its failure, or an earlier one's, as a Status.
  absl::Status Run(absl::string_view operation, const std::function<void()>& body) {
    if (!failure_.ok()) return failure_;
    const auto aborted = [&] {
      return failure_ = absl::CancelledError(absl::StrCat(operation, " of rank ", rank(), " was aborted"));
    };
    if (aborted_) return aborted();
    try {
      body();
    } catch (const std::exception& error) {
      if (aborted_) return aborted();
      failure_ =
          absl::UnavailableError(absl::StrCat(operation, " of rank ", rank(), " of ", size(),
                                              " failed; another member has left or is slower than the timeout of ",
                                              absl::FormatDuration(absl::FromChrono(timeout_)), ": ", error.what()));
      // The others learn at once, instead of by their timeouts.
      try {
        context_->closeConnections();
      } catch (const std::exception&) {  // Already closed.
      }
    }
    return failure_;
  }

  // Each operation's messages are apart from the last one's.
  uint32_t NextTag() { return next_tag_++; }

  const std::shared_ptr<gloo::Context> context_;  // Shared with Gloo's options objects during an operation.
  const std::chrono::milliseconds timeout_;

  std::atomic<bool> aborted_{false};  // Written before the waits are ended, under whose locks an operation learns it.
  uint32_t next_tag_ = 0;
  uint64_t slice_bytes_sent_ = 0;
  std::vector<float> pieces_;  // Where they come in.
  absl::Status failure_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Collective>> MakeGlooCollective(const GlooOptions& options, RendezvousStore* store) {
  CHECK_LT(options.rank, options.size);
  if (options.size == 1) return MakeLocalCollective();
  // Gloo writes to sockets whose other end may have gone: that is an error of the call, and not the process's end.
  struct sigaction action;
  if (sigaction(SIGPIPE, nullptr, &action) == 0 && action.sa_handler == SIG_DFL) signal(SIGPIPE, SIG_IGN);
  const std::string who = absl::StrCat("rank ", options.rank, " of ", options.size, " at host \"", options.host, "\"");
  RETURN_IF_ERROR(Annotate(CheckHost(options.host), absl::StrCat(who, " could not join the group of workers")));
  try {
    gloo::transport::tcp::attr attr;
    attr.hostname = options.host;
    std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice(attr);
    auto context = std::make_shared<gloo::rendezvous::Context>(options.rank, options.size);
    context->setTimeout(absl::ToChronoMilliseconds(options.connect_timeout));
    GlooStore gloo_store(store, options.connect_timeout);
    context->connectFullMesh(gloo_store, device);
    return std::make_unique<GlooCollective>(std::move(context), options.timeout);
  } catch (const std::exception& error) {
    return absl::UnavailableError(absl::StrCat(who, " could not join the group of workers: ", error.what()));
  }
}

}  // namespace sparrow
