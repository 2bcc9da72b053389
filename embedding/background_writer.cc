#include "embedding/background_writer.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace sparrow {

BackgroundWriter::~BackgroundWriter() {
  std::thread thread;
  {
    absl::MutexLock lock(&mu_);
    CHECK(waiting_.empty() && writing_ == nullptr) << "a table outlives its cold store";
    stopping_ = true;
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
}

void BackgroundWriter::Wake(Source* source) {
  absl::MutexLock lock(&mu_);
  Add(source);
  if (!thread_.joinable()) thread_ = std::thread(&BackgroundWriter::Run, this);
}

void BackgroundWriter::Remove(Source* source) {
  absl::MutexLock lock(&mu_);
  waiting_.erase(std::remove(waiting_.begin(), waiting_.end(), source), waiting_.end());
  if (writing_ != source) return;
  writing_is_removed_ = true;
  const auto is_done = [this, source]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return writing_ != source; };
  mu_.Await(absl::Condition(&is_done));
}

void BackgroundWriter::Add(Source* source) {
  if (std::find(waiting_.begin(), waiting_.end(), source) == waiting_.end()) waiting_.push_back(source);
}

void BackgroundWriter::Run() {
  absl::MutexLock lock(&mu_);
  while (true) {
    mu_.Await(absl::Condition(this, &BackgroundWriter::HasWork));
    if (stopping_) return;
    Source* const source = writing_ = waiting_.front();
    waiting_.pop_front();
    mu_.Unlock();
    const bool has_more = source->WriteBatch();
    mu_.Lock();
    if (has_more && !writing_is_removed_) Add(source);
    writing_ = nullptr;
    writing_is_removed_ = false;
  }
}

}  // namespace sparrow
