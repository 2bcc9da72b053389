#include "base/cuda/launch.cuh"
#include "base/cuda/operation.h"
#include "embedding/replica.h"
#include "embedding/replica_gpu.h"
#include "embedding/row_cache.h"

namespace sparrow {
namespace {

constexpr int kBlock = 256;
constexpr uint32_t kEveryLane = 0xffffffff;

int64_t BlocksOf(uint64_t threads) { return static_cast<int64_t>((threads + kBlock - 1) / kBlock); }

// One thread a name. Bytes moved: 20 in, 17 out, each to a sector of its own. Bound by HBM's sectors.
__global__ void __launch_bounds__(kBlock)
    SeatKernel(const RowName* names, const uint32_t* slots, uint32_t n, DeviceRowIndex index) {
  const uint32_t i = blockIdx.x * kBlock + threadIdx.x;
  if (i >= n) return;
  index.digests[slots[i]] = CacheDigestOf(NameBits(names[i]));
  index.entries[slots[i]] = {names[i].key, names[i].table, FirstScore(0)};
}

// One thread a row, which finds its place if it has a slot; thread j also gives the j-th missing row its place. Bytes
// moved: 8 a row in, 8 out. Bound by HBM, or by L2 where a batch fits.
__global__ void __launch_bounds__(kBlock)
    HotFirstKernel(DeviceFound found, uint32_t none, uint32_t* order, uint32_t* slots_in_order, uint32_t* taken) {
  const uint32_t i = blockIdx.x * kBlock + threadIdx.x;
  if (i >= found.max) return;
  const uint32_t rows = min(*found.count, found.max);
  const uint32_t missing = *found.missing_count;
  const uint32_t hot = rows - missing;
  if (i >= hot) slots_in_order[i] = none;
  if (i < missing) order[found.missing[i]] = hot + i;
  if (i >= rows || found.slots[i] == kNoSlot) return;
  const uint32_t place = atomicAdd(taken, 1);  // A warp's together.
  order[i] = place;
  slots_in_order[place] = found.slots[i];
}

// One thread a number. Bytes moved: 8 each, and 4 a row. Bound by HBM.
__global__ void __launch_bounds__(kBlock) WeightsKernel(const float* packed, const uint32_t* positions, uint32_t n,
                                                        uint32_t dim, uint64_t slot_bytes, char* rows) {
  const uint64_t i = uint64_t{blockIdx.x} * kBlock + threadIdx.x;
  const uint64_t row = i / dim;
  if (row >= n) return;
  const uint64_t column = i - row * dim;
  reinterpret_cast<float*>(rows + row * slot_bytes)[column] = packed[uint64_t{positions[row]} * dim + column];
}

// One thread a word. Bytes moved: 8 each, and 9 a row. Bound by HBM.
__global__ void __launch_bounds__(kBlock)
    PutKernel(const uint32_t* packed, const uint32_t* positions, const uint32_t* slots, uint32_t n,
              uint32_t record_words, uint64_t slot_words, uint32_t* records, uint8_t* dirty) {
  const uint64_t i = uint64_t{blockIdx.x} * kBlock + threadIdx.x;
  const uint64_t row = i / record_words;
  if (row >= n) return;
  const uint64_t word = i - row * record_words;
  const uint32_t slot = slots[row];
  records[slot * slot_words + word] = packed[uint64_t{positions[row]} * record_words + word];
  if (word == 0) dirty[slot] = 0;
}

// One thread a row. Bytes moved: 4 in, 1 out. Bound by HBM's sectors.
__global__ void __launch_bounds__(kBlock) CleanKernel(const uint32_t* slots, uint32_t n, uint8_t* dirty) {
  const uint32_t i = blockIdx.x * kBlock + threadIdx.x;
  if (i < n) dirty[slots[i]] = 0;
}

// One thread a row. Bytes moved: 8 in, 4 out. Bound by HBM's sectors.
__global__ void __launch_bounds__(kBlock)
    CountUsesKernel(const uint32_t* slots, uint32_t n, uint32_t decisions, uint32_t* uses, uint32_t slots_end) {
  const uint32_t i = blockIdx.x * kBlock + threadIdx.x;
  if (i >= n || slots[i] >= slots_end) return;
  uint32_t* const word = uses + slots[i];
  *word = UsesWord(UsesNow(*word, decisions) + 1, decisions);
}

// One thread a row. Bytes moved: 8 in, 4 out. Bound by HBM's sectors.
__global__ void __launch_bounds__(kBlock)
    SetUsesKernel(const uint32_t* slots, const uint32_t* words, uint32_t n, uint32_t* uses) {
  const uint32_t i = blockIdx.x * kBlock + threadIdx.x;
  if (i < n) uses[slots[i]] = words[i];
}

// One warp a row. Bytes moved: its record, and 4. Bound by HBM.
__global__ void __launch_bounds__(kBlock)
    DigestKernel(const char* records, uint64_t slot_bytes, uint32_t record_words, const uint32_t* slots, uint32_t n,
                 uint32_t slots_end, unsigned long long* sum) {
  const uint64_t row = (uint64_t{blockIdx.x} * kBlock + threadIdx.x) / 32;
  if (row >= n || slots[row] >= slots_end) return;
  const uint32_t lane = threadIdx.x % 32;
  const auto* const record = reinterpret_cast<const uint32_t*>(records + slots[row] * slot_bytes);
  unsigned long long words = 0;
  for (uint32_t i = lane; i < record_words; i += 32) words += WordDigest(record[i], i);
  for (uint32_t other = 16; other > 0; other /= 2) words += __shfl_xor_sync(kEveryLane, words, other);
  if (lane == 0) atomicAdd(sum, static_cast<unsigned long long>(RecordDigest(words, slots[row])));
}

uint32_t RecordWords(const RowLayout& layout) { return static_cast<uint32_t>(layout.record_bytes() / 4); }

}  // namespace

void SeatNamesGpu(const RowName* names, const uint32_t* slots, uint32_t n, const DeviceRowIndex& index,
                  const Stream& queue) {
  const Operation operation([&] { return OperationCost{.name = "replica seats", .bytes = 37.0 * n}; });
  Launch(SeatKernel, BlocksOf(n), kBlock, queue, names, slots, n, index);
}

void HotFirstGpu(const DeviceFound& found, uint32_t none, uint32_t* order, uint32_t* slots_in_order, uint32_t* taken,
                 const Stream& queue) {
  const Operation operation([&] { return OperationCost{.name = "replica hot rows first", .bytes = 16.0 * found.max}; });
  internal::FillDevice(taken, 0, sizeof(*taken), queue);
  Launch(HotFirstKernel, BlocksOf(found.max), kBlock, queue, found, none, order, slots_in_order, taken);
}

void PlaceWeightsGpu(const float* packed, const uint32_t* positions, uint32_t n, uint32_t dim, uint64_t slot_bytes,
                     char* rows, const Stream& queue) {
  const Operation operation([&] { return OperationCost{.name = "replica weights", .bytes = (8.0 * dim + 4) * n}; });
  Launch(WeightsKernel, BlocksOf(uint64_t{n} * dim), kBlock, queue, packed, positions, n, dim, slot_bytes, rows);
}

void PutRecordsGpu(const char* packed, const uint32_t* positions, const uint32_t* slots, uint32_t n,
                   const DeviceRecords& records, uint8_t* dirty, const Stream& queue) {
  const uint32_t words = RecordWords(records.layout);
  const Operation operation([&] { return OperationCost{.name = "replica put", .bytes = (8.0 * words + 9) * n}; });
  Launch(PutKernel, BlocksOf(uint64_t{n} * words), kBlock, queue, reinterpret_cast<const uint32_t*>(packed), positions,
         slots, n, words, records.layout.slot_bytes() / 4, reinterpret_cast<uint32_t*>(records.data), dirty);
}

void CleanRowsGpu(const uint32_t* slots, uint32_t n, uint8_t* dirty, const Stream& queue) {
  const Operation operation([&] { return OperationCost{.name = "replica clean", .bytes = 5.0 * n}; });
  Launch(CleanKernel, BlocksOf(n), kBlock, queue, slots, n, dirty);
}

void CountUsesGpu(const uint32_t* slots, uint32_t n, uint32_t decisions, uint32_t* uses, uint32_t slots_end,
                  const Stream& queue) {
  const Operation operation([&] { return OperationCost{.name = "replica uses", .bytes = 12.0 * n}; });
  Launch(CountUsesKernel, BlocksOf(n), kBlock, queue, slots, n, decisions, uses, slots_end);
}

void SetUsesGpu(const uint32_t* slots, const uint32_t* words, uint32_t n, uint32_t* uses, const Stream& queue) {
  const Operation operation([&] { return OperationCost{.name = "replica set uses", .bytes = 12.0 * n}; });
  Launch(SetUsesKernel, BlocksOf(n), kBlock, queue, slots, words, n, uses);
}

void DigestRecordsGpu(const DeviceRecords& records, const uint32_t* slots, uint32_t n, uint32_t slots_end,
                      uint64_t* sum, const Stream& queue) {
  const uint32_t words = RecordWords(records.layout);
  const Operation operation([&] { return OperationCost{.name = "replica digest", .bytes = (4.0 * words + 4) * n}; });
  Launch(DigestKernel, BlocksOf(uint64_t{n} * 32), kBlock, queue, records.data, records.layout.slot_bytes(), words,
         slots, n, slots_end, reinterpret_cast<unsigned long long*>(sum));
}

}  // namespace sparrow
