#include "worker/prefetcher.h"

#include <optional>
#include <utility>

#include "base/status_macros.h"

namespace sparrow {
namespace {

// One in use by the step, one being pulled for the next, and one being prepared.
constexpr size_t kBatches = 3;

}  // namespace

Prefetcher::Prefetcher(std::unique_ptr<BatchReader> reader, const JobLayout* layout, const PsClient* client, Keys keys)
    : reader_(std::move(reader)), layout_(layout), client_(client), keys_(keys), ready_(kBatches + 1), free_(kBatches) {
  for (size_t i = 0; i < kBatches; ++i) free_.Push(std::make_unique<PreparedBatch>());
  thread_ = std::thread(&Prefetcher::Run, this);
}

Prefetcher::~Prefetcher() {
  Cancel();
  thread_.join();
}

void Prefetcher::Cancel() {
  ready_.Close();
  free_.Close();
}

absl::StatusOr<std::unique_ptr<PreparedBatch>> Prefetcher::Next() {
  std::optional<Item> item = ready_.Pop();
  if (!item.has_value()) return absl::CancelledError("reading was stopped");
  if (!item->status.ok()) return item->status;
  return std::move(item->batch);
}

void Prefetcher::Recycle(std::unique_ptr<PreparedBatch> batch) {
  if (batch != nullptr) free_.Push(std::move(batch));
}

void Prefetcher::Run() {
  std::optional<KeyFilter> before;  // Of the batch before.
  for (;;) {
    std::optional<std::unique_ptr<PreparedBatch>> batch = free_.Pop();
    if (!batch.has_value()) return;
    absl::StatusOr<bool> more = reader_->Next(&(*batch)->batch);
    if (more.ok() && *more) {
      const absl::Status prepared =
          keys_ == Keys::kAsRead
              ? CheckBatch(*layout_, (*batch)->batch)
              : PrepareBatch(*layout_, *client_, before.has_value() ? &*before : nullptr, batch->get());
      if (!prepared.ok()) more = prepared;
      if (keys_ == Keys::kPartEarly && prepared.ok()) {
        const KeyPartition& keys = (*batch)->partition;
        before.emplace(keys.rows());
        for (uint32_t t = 0; t < keys.tables(); ++t) before->Add(t, keys.keys(t));
      }
    }
    if (!more.ok()) {
      ready_.Push({.status = more.status(), .batch = nullptr});
      return;
    }
    if (!*more) {
      ready_.Push({.status = absl::OkStatus(), .batch = nullptr});
      return;
    }
    if (!ready_.Push({.status = absl::OkStatus(), .batch = std::move(*batch)})) return;
  }
}

}  // namespace sparrow
