#ifndef SPARROW_WORKER_PREFETCHER_H_
#define SPARROW_WORKER_PREFETCHER_H_

#include <memory>
#include <thread>

#include "absl/status/statusor.h"
#include "base/bounded_queue.h"
#include "worker/batch_reader.h"
#include "worker/job_layout.h"
#include "worker/prepared_batch.h"
#include "worker/ps_client.h"

namespace sparrow {

// Takes batches from a reader and prepares them on a thread of its own, a few ahead of the step that uses them.
class Prefetcher {
 public:
  enum class Keys {
    kUnique,     // Made unique and cut by server: PrepareBatch.
    kPartEarly,  // And those that the batch before does not have are kept apart, to be pulled ahead.
    kAsRead,     // Checked alone: CheckBatch.
  };
  // Starts the thread. layout and client outlive the prefetcher.
  Prefetcher(std::unique_ptr<BatchReader> reader, const JobLayout* layout, const PsClient* client, Keys keys);
  ~Prefetcher();  // Stop().

  // The next batch; null after the last one. An error is the reader's, and final. One thread calls Next.
  absl::StatusOr<std::unique_ptr<PreparedBatch>> Next();
  // Whether Next would return at once.
  bool HasNext() { return ready_.HasItem(); }
  // Gives a batch back, so that its memory is used again.
  void Recycle(std::unique_ptr<PreparedBatch> batch);

  // Ends a waiting Next with Cancelled, and every later one. Thread-safe.
  void Cancel();

  const BatchReader& reader() const { return *reader_; }

 private:
  // Null with OK: the end.
  struct Item {
    absl::Status status;
    std::unique_ptr<PreparedBatch> batch;
  };

  void Run();

  const std::unique_ptr<BatchReader> reader_;
  const JobLayout* const layout_;
  const PsClient* const client_;
  const Keys keys_;
  BoundedQueue<Item> ready_;
  BoundedQueue<std::unique_ptr<PreparedBatch>> free_;
  std::thread thread_;
};

}  // namespace sparrow

#endif  // SPARROW_WORKER_PREFETCHER_H_
