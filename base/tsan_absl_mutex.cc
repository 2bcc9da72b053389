// Makes absl's locks known to ThreadSanitizer. Debian's libabsl is not built with TSan, and its mutexes stand on
// futexes and atomics of its own, which TSan does not see: every access under an absl::Mutex would be reported as a
// race. This file, linked into every program of a TSan build and of no other, stands in front of the library's
// functions (for us and for the libraries that lock through them, such as gRPC) and tells TSan what they order: a lock
// comes after every unlock before it. It says no more than that, so TSan's deadlock detection does not see these locks.
//
// absl evaluates the conditions of waiting threads inside Unlock and Await, on whatever thread holds the lock then.
// TSan believes the lock to be free at that time, so accesses there are not recorded.

#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>

#include <atomic>
#include <cstdlib>

#include "absl/base/options.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}

namespace absl {
ABSL_NAMESPACE_BEGIN
namespace {

class Unrecorded {
 public:
  Unrecorded() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~Unrecorded() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
};

// The library's own function. A member function is called like a free one whose first argument is `this` (Itanium ABI).
template <typename Result, typename... Arguments>
auto Library(const char* mangled) {
  void* found = dlsym(RTLD_NEXT, mangled);
  if (found == nullptr) std::abort();
  return reinterpret_cast<Result (*)(Arguments...)>(found);
}

#define SPARROW_STRING_INNER(x) #x
#define SPARROW_STRING(x) SPARROW_STRING_INNER(x)
#define SPARROW_INLINE_NAMESPACE SPARROW_STRING(ABSL_OPTION_INLINE_NAMESPACE_NAME)

// "_ZN4absl7debian3" + rest: the prefix of everything in the inline namespace, which has its length before its name.
#define SPARROW_PREFIX "_ZN4absl7debian3"
static_assert(sizeof(SPARROW_INLINE_NAMESPACE) == sizeof("debian3"), "SPARROW_PREFIX is not this absl's");

}  // namespace

// NOLINTBEGIN: the names and the thread annotations are absl's.
#define SPARROW_LIBRARY(rest, ...) static const auto library = Library<__VA_ARGS__>(SPARROW_PREFIX rest)
#define SPARROW_CONST_LIBRARY(rest, ...) static const auto library = Library<__VA_ARGS__>("_ZNK4absl7debian3" rest)

void Mutex::Lock() {
  SPARROW_LIBRARY("5Mutex4LockEv", void, Mutex*);
  {
    Unrecorded unrecorded;
    library(this);
  }
  __tsan_acquire(this);
}

void Mutex::Unlock() {
  SPARROW_LIBRARY("5Mutex6UnlockEv", void, Mutex*);
  __tsan_release(this);
  Unrecorded unrecorded;
  library(this);
}

bool Mutex::TryLock() {
  SPARROW_LIBRARY("5Mutex7TryLockEv", bool, Mutex*);
  const bool locked = library(this);
  if (locked) __tsan_acquire(this);
  return locked;
}

void Mutex::ReaderLock() {
  SPARROW_LIBRARY("5Mutex10ReaderLockEv", void, Mutex*);
  {
    Unrecorded unrecorded;
    library(this);
  }
  __tsan_acquire(this);
}

void Mutex::ReaderUnlock() {
  SPARROW_LIBRARY("5Mutex12ReaderUnlockEv", void, Mutex*);
  __tsan_release(this);
  Unrecorded unrecorded;
  library(this);
}

bool Mutex::ReaderTryLock() {
  SPARROW_LIBRARY("5Mutex13ReaderTryLockEv", bool, Mutex*);
  const bool locked = library(this);
  if (locked) __tsan_acquire(this);
  return locked;
}

void Mutex::Await(const Condition& condition) {
  SPARROW_LIBRARY("5Mutex5AwaitERKNS0_9ConditionE", void, Mutex*, const Condition&);
  __tsan_release(this);
  {
    Unrecorded unrecorded;
    library(this, condition);
  }
  __tsan_acquire(this);
}

bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  SPARROW_LIBRARY("5Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE", bool, Mutex*, const Condition&, Duration);
  __tsan_release(this);
  bool met = false;
  {
    Unrecorded unrecorded;
    met = library(this, condition, timeout);
  }
  __tsan_acquire(this);
  return met;
}

bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  SPARROW_LIBRARY("5Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE", bool, Mutex*, const Condition&, Time);
  __tsan_release(this);
  bool met = false;
  {
    Unrecorded unrecorded;
    met = library(this, condition, deadline);
  }
  __tsan_acquire(this);
  return met;
}

void Mutex::LockWhen(const Condition& condition) {
  SPARROW_LIBRARY("5Mutex8LockWhenERKNS0_9ConditionE", void, Mutex*, const Condition&);
  {
    Unrecorded unrecorded;
    library(this, condition);
  }
  __tsan_acquire(this);
}

bool Mutex::LockWhenWithTimeout(const Condition& condition, Duration timeout) {
  SPARROW_LIBRARY("5Mutex19LockWhenWithTimeoutERKNS0_9ConditionENS0_8DurationE", bool, Mutex*, const Condition&,
                  Duration);
  bool met = false;
  {
    Unrecorded unrecorded;
    met = library(this, condition, timeout);
  }
  __tsan_acquire(this);
  return met;
}

bool Mutex::LockWhenWithDeadline(const Condition& condition, Time deadline) {
  SPARROW_LIBRARY("5Mutex20LockWhenWithDeadlineERKNS0_9ConditionENS0_4TimeE", bool, Mutex*, const Condition&, Time);
  bool met = false;
  {
    Unrecorded unrecorded;
    met = library(this, condition, deadline);
  }
  __tsan_acquire(this);
  return met;
}

void Mutex::ReaderLockWhen(const Condition& condition) {
  SPARROW_LIBRARY("5Mutex14ReaderLockWhenERKNS0_9ConditionE", void, Mutex*, const Condition&);
  {
    Unrecorded unrecorded;
    library(this, condition);
  }
  __tsan_acquire(this);
}

void CondVar::Wait(Mutex* mutex) {
  SPARROW_LIBRARY("7CondVar4WaitEPNS0_5MutexE", void, CondVar*, Mutex*);
  __tsan_release(mutex);
  {
    Unrecorded unrecorded;
    library(this, mutex);
  }
  __tsan_acquire(mutex);
}

bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  SPARROW_LIBRARY("7CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE", bool, CondVar*, Mutex*, Duration);
  __tsan_release(mutex);
  bool timed_out = false;
  {
    Unrecorded unrecorded;
    timed_out = library(this, mutex, timeout);
  }
  __tsan_acquire(mutex);
  return timed_out;
}

bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  SPARROW_LIBRARY("7CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE", bool, CondVar*, Mutex*, Time);
  __tsan_release(mutex);
  bool timed_out = false;
  {
    Unrecorded unrecorded;
    timed_out = library(this, mutex, deadline);
  }
  __tsan_acquire(mutex);
  return timed_out;
}

// Of a Notification the waiting is the library's, and so is the store that HasBeenNotified, which is inline, looks at.
void Notification::Notify() {
  SPARROW_LIBRARY("12Notification6NotifyEv", void, Notification*);
  __tsan_release(&notified_yet_);
  Unrecorded unrecorded;
  library(this);
}

void Notification::WaitForNotification() const {
  SPARROW_CONST_LIBRARY("12Notification19WaitForNotificationEv", void, const Notification*);
  {
    Unrecorded unrecorded;
    library(this);
  }
  __tsan_acquire(const_cast<std::atomic<bool>*>(&notified_yet_));
}

bool Notification::WaitForNotificationWithTimeout(Duration timeout) const {
  SPARROW_CONST_LIBRARY("12Notification30WaitForNotificationWithTimeoutENS0_8DurationE", bool, const Notification*,
                        Duration);
  bool notified = false;
  {
    Unrecorded unrecorded;
    notified = library(this, timeout);
  }
  __tsan_acquire(const_cast<std::atomic<bool>*>(&notified_yet_));
  return notified;
}

bool Notification::WaitForNotificationWithDeadline(Time deadline) const {
  SPARROW_CONST_LIBRARY("12Notification31WaitForNotificationWithDeadlineENS0_4TimeE", bool, const Notification*, Time);
  bool notified = false;
  {
    Unrecorded unrecorded;
    notified = library(this, deadline);
  }
  __tsan_acquire(const_cast<std::atomic<bool>*>(&notified_yet_));
  return notified;
}
// NOLINTEND

ABSL_NAMESPACE_END
}  // namespace absl
