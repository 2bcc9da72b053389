#ifndef SPARROW_EMBEDDING_BACKGROUND_WRITER_H_
#define SPARROW_EMBEDDING_BACKGROUND_WRITER_H_

#include <deque>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace sparrow {

// The thread that writes rows to a cold store for the store's tables, a batch of one table after the other. One thread
// for all of them, so that however many tables a job has, their writing takes one core from training at most, and the
// memory of one batch. It is started by the first Wake and sleeps while nobody has asked. Thread-safe.
class BackgroundWriter {
 public:
  class Source {
   public:
    virtual ~Source() = default;
    // Writes one batch and returns whether there is more to write now; after an error: not. Called by the writer's
    // thread alone, which holds no lock.
    virtual bool WriteBatch() = 0;
  };

  BackgroundWriter() = default;
  ~BackgroundWriter();  // REQUIRES: every source that woke it was removed.
  BackgroundWriter(const BackgroundWriter&) = delete;
  BackgroundWriter& operator=(const BackgroundWriter&) = delete;

  // `source` has something to write: its WriteBatch is called soon. Takes one lock, held for moments, and calls nobody,
  // so the caller may hold locks of its own.
  void Wake(Source* source);

  // Returns once `source` is not called any more. REQUIRES: nobody wakes it any more; the caller holds no lock that its
  // WriteBatch needs.
  void Remove(Source* source);

 private:
  void Run();
  void Add(Source* source) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_ || !waiting_.empty(); }

  absl::Mutex mu_;                                    // No other lock is taken with it held.
  std::deque<Source*> waiting_ ABSL_GUARDED_BY(mu_);  // Each once.
  Source* writing_ ABSL_GUARDED_BY(mu_) = nullptr;
  bool writing_is_removed_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_BACKGROUND_WRITER_H_
