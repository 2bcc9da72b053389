#ifndef SPARROW_TESTS_SUPPORT_FORWARDING_TRANSPORT_H_
#define SPARROW_TESTS_SUPPORT_FORWARDING_TRANSPORT_H_

#include <memory>
#include <utility>

#include "worker/ps_transport.h"

namespace sparrow {

// Hands every call to `inner`: a base for transports that do something else with one of them.
class ForwardingTransport : public PsTransport {
 public:
  explicit ForwardingTransport(std::unique_ptr<PsTransport> inner) : inner_(std::move(inner)) {}

  void Pull(const RowPull* request, v1::PullResponse* response, absl::Duration timeout, Done done) override {
    inner_->Pull(request, response, timeout, std::move(done));
  }
  void Push(const RowPush* request, v1::PushResponse* response, absl::Duration timeout, Done done) override {
    inner_->Push(request, response, timeout, std::move(done));
  }
  void OpenJob(const v1::OpenJobRequest* request, v1::OpenJobResponse* response, absl::Duration timeout,
               Done done) override {
    inner_->OpenJob(request, response, timeout, std::move(done));
  }
  void SaveTables(const v1::SaveTablesRequest* request, v1::SaveTablesResponse* response, absl::Duration timeout,
                  Done done) override {
    inner_->SaveTables(request, response, timeout, std::move(done));
  }
  void CloseJob(const v1::CloseJobRequest* request, v1::CloseJobResponse* response, absl::Duration timeout,
                Done done) override {
    inner_->CloseJob(request, response, timeout, std::move(done));
  }
  void Cancel() override { inner_->Cancel(); }
  uint64_t ChunkBytes() const override { return inner_->ChunkBytes(); }

 private:
  std::unique_ptr<PsTransport> inner_;
};

}  // namespace sparrow

#endif  // SPARROW_TESTS_SUPPORT_FORWARDING_TRANSPORT_H_
