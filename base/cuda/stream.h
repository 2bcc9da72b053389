#ifndef SPARROW_BASE_CUDA_STREAM_H_
#define SPARROW_BASE_CUDA_STREAM_H_

// CUDA's streams and events behind owners, without CUDA's headers: only .cu files include those.

#include <cstddef>
#include <string>

struct CUstream_st;
struct CUevent_st;

namespace sparrow {

// GPUs that this process can use; 0 where there is no driver, no GPU, or no CUDA in the build.
int GpuCount();
// Why there are none: no driver, one that is older than this build (with both versions), or what the driver says. ""
// where GpuCount() > 0.
std::string GpuAbsence();
// Makes `gpu` the current one of the calling thread. REQUIRES: 0 <= gpu < GpuCount(), and that it can be used.
void UseGpu(int gpu);
// The same; returns why it cannot be used: its memory is full (with the bytes that are free, where the driver tells),
// it is another process's alone, or older than what the kernels are compiled for. "" if it can.
std::string TryGpu(int gpu);
// "NVIDIA H200, compute capability 9.0". REQUIRES: GpuCount() > 0.
std::string GpuName();
// Of the current GPU: 32 hexadecimal digits that no other GPU has. REQUIRES: GpuCount() > 0.
std::string GpuUuid();
// Bytes of the current GPU's memory, and those that nobody has.
struct GpuMemory {
  size_t total = 0;
  size_t free = 0;
};
GpuMemory GpuMemoryNow();

class Event;

// An ordered queue of work on the current GPU. Not thread-safe.
class Stream {
 public:
  // kFirst: where blocks of this stream's kernels and of another's wait for room, these start first.
  enum class Turn { kEqual, kFirst };
  Stream() : Stream(Turn::kEqual) {}
  explicit Stream(Turn turn);  // REQUIRES: GpuCount() > 0.
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  CUstream_st* get() const { return stream_; }
  // Waits for everything queued so far.
  void Synchronize() const;
  // What is queued from now on waits, on the GPU, until the stream in which `event` was recorded last has come there.
  void WaitFor(const Event& event) const;
  // The same. In a graph that is being recorded (base/cuda/graph.h) it becomes a part of it: each replay waits for what
  // has recorded the event last, outside of that graph.
  void WaitForOutside(const Event& event) const;

 private:
  CUstream_st* stream_ = nullptr;
};

// A moment in a stream, to be timed or waited for.
class Event {
 public:
  Event();
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  CUevent_st* get() const { return event_; }
  void Record(const Stream& stream);
  // The same. In a graph that is being recorded it becomes a part of it: each replay records the event anew, for
  // streams and graphs outside of it.
  void RecordForOutside(const Stream& stream);
  // Whether the stream has come to it; true for an event that was never recorded.
  bool Passed() const;
  // Waits, on the host, until the stream has come to it.
  void Synchronize() const;
  // Milliseconds on the device from `start` to this; waits for this event.
  float MillisecondsSince(const Event& start) const;

 private:
  CUevent_st* event_ = nullptr;
};

}  // namespace sparrow

#endif  // SPARROW_BASE_CUDA_STREAM_H_
