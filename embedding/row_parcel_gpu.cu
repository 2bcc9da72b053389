#include <bit>
#include <cub/device/device_radix_sort.cuh>
#include <type_traits>

#include "base/cuda/launch.cuh"
#include "base/cuda/operation.h"
#include "embedding/row_name.cuh"
#include "embedding/row_parcel_gpu.h"

namespace sparrow {
namespace {

constexpr int kBlock = 256;
constexpr uint32_t kBatch = 4;  // Words that a thread copies, under way together.

int64_t BlocksOf(uint64_t threads) { return static_cast<int64_t>((threads + kBlock - 1) / kBlock); }

// What the sort by table works on.
struct Workspace {
  uint32_t* tables_in;  // [names]: a name's table; `tables`: none.
  uint32_t* tables;     // The same, sorted.
  uint32_t* numbers;    // 0, 1, 2, ...
  char* library;
  size_t library_bytes;
  size_t bytes;  // Of all.
};

size_t SortBytes(uint32_t names, uint32_t tables) {
  uint32_t* none = nullptr;
  size_t bytes = 0;
  CHECK_CUDA(cub::DeviceRadixSort::SortPairs(nullptr, bytes, none, none, none, none, names, 0, std::bit_width(tables)));
  return bytes;
}

Workspace Divide(uint32_t names, uint32_t tables, char* memory) {
  Workspace w = {};
  const auto take = [&](auto** part, size_t items) {
    *part = reinterpret_cast<std::remove_reference_t<decltype(*part)>>(memory + w.bytes);
    w.bytes += (items * sizeof(**part) + 255) / 256 * 256;
  };
  w.library_bytes = SortBytes(names, tables);
  take(&w.tables_in, names);
  take(&w.tables, names);
  take(&w.numbers, names);
  take(&w.library, w.library_bytes);
  return w;
}

// One thread a name. Bytes moved: 16 in (of which it needs 4), 8 out. Bound by HBM.
__global__ void __launch_bounds__(kBlock) TablesKernel(DeviceNames names, uint32_t tables, Workspace w) {
  const uint32_t i = blockIdx.x * kBlock + threadIdx.x;
  if (i >= names.max) return;
  w.tables_in[i] = i < CountOf(names) ? names.data[i].table : tables;
  w.numbers[i] = i;
}

// One thread a name, which also says where the tables behind that of the name before begin. Bytes moved: 4 and twice 16
// in, the second time from L1 (where there is an order, anywhere), 8 out. Bound by HBM.
__global__ void __launch_bounds__(kBlock)
    KeysKernel(DeviceNames names, const uint32_t* order, uint32_t tables, uint64_t* keys, uint32_t* begins) {
  const uint32_t i = blockIdx.x * kBlock + threadIdx.x;
  const uint32_t count = CountOf(names);
  if (i > count) return;
  const auto name = [&](uint32_t at) { return Load(names.data + (order == nullptr ? at : order[at])); };
  const uint32_t first = i == 0 ? 0 : name(i - 1).table + 1;
  uint32_t last = tables;
  if (i < count) {
    const RowName own = name(i);
    keys[i] = own.key;
    last = own.table;
  }
  for (uint32_t t = first; t <= last; ++t) begins[t] = i;
}

// Packed records as one array of words, kBatch a thread, a block's side by side. Bytes moved: twice a record, and 4 a
// row. Bound by HBM.
template <bool kPacks>
__global__ void __launch_bounds__(kBlock)
    RecordsKernel(const uint32_t* from, uint32_t* to, const uint32_t* rows, uint32_t max, const uint32_t* count,
                  uint32_t record_words, uint32_t slot_words) {
  const uint64_t words = uint64_t{CountOf(max, count)} * record_words;
  const uint64_t first = uint64_t{blockIdx.x} * (kBlock * kBatch) + threadIdx.x;
  uint32_t values[kBatch];
  uint64_t places[kBatch];
#pragma unroll
  for (uint32_t u = 0; u < kBatch; ++u) {
    const uint64_t word = first + u * kBlock;
    if (word >= words) break;
    const uint32_t row = static_cast<uint32_t>(word / record_words);
    const uint32_t column = static_cast<uint32_t>(word - uint64_t{row} * record_words);
    const uint64_t other = rows[row];
    values[u] = __ldcs(from + (kPacks ? other * slot_words : other * record_words) + column);
    places[u] = kPacks ? word : uint64_t{row} * slot_words + column;
  }
#pragma unroll
  for (uint32_t u = 0; u < kBatch; ++u) {
    if (first + u * kBlock < words) __stcs(to + places[u], values[u]);
  }
}

template <bool kPacks>
void Copy(const char* from, char* to, const uint32_t* rows, uint32_t max, const uint32_t* count,
          const RowLayout& layout, const Stream& queue) {
  const uint32_t record_words = static_cast<uint32_t>(layout.record_bytes() / 4);
  const double row_bytes = 4 + 2.0 * static_cast<double>(layout.record_bytes());
  const Operation operation([&] {
    const char* const name = kPacks ? "pack records" : "unpack records";
    return count == nullptr ? OperationCost{.name = name, .bytes = row_bytes * max}
                            : OperationCost{.name = name, .row_bytes = row_bytes, .rows_max = 1.0 * max};
  });
  Launch(RecordsKernel<kPacks>, BlocksOf((uint64_t{max} * record_words + kBatch - 1) / kBatch), kBlock, queue,
         reinterpret_cast<const uint32_t*>(from), reinterpret_cast<uint32_t*>(to), rows, max, count, record_words,
         static_cast<uint32_t>(layout.slot_bytes() / 4));
}

}  // namespace

size_t OrderWorkspaceBytes(uint32_t names, uint32_t tables) { return Divide(names, tables, nullptr).bytes; }

void OrderByTableGpu(const DeviceNames& names, uint32_t tables, uint32_t* order, const DeviceWorkspace& workspace,
                     const Stream& queue) {
  if (names.max == 0) return;
  const Workspace w = Divide(names.max, tables, static_cast<char*>(workspace.data));
  CHECK_LE(w.bytes, workspace.bytes);
  const Operation operation(
      [&] { return OperationCost{.name = "order by table", .bytes = (24.0 + 16 + 8) * names.max}; });
  Launch(TablesKernel, BlocksOf(names.max), kBlock, queue, names, tables, w);
  size_t library_bytes = w.library_bytes;
  CHECK_CUDA(cub::DeviceRadixSort::SortPairs(w.library, library_bytes, w.tables_in, w.tables, w.numbers, order,
                                             names.max, 0, std::bit_width(tables), queue.get()));
}

void ListKeysGpu(const DeviceNames& names, const uint32_t* order, uint32_t tables, uint64_t* keys, uint32_t* begins,
                 const Stream& queue) {
  const Operation operation([&] { return OperationCost{.name = "list keys", .bytes = 28.0 * names.max}; });
  Launch(KeysKernel, BlocksOf(uint64_t{names.max} + 1), kBlock, queue, names, order, tables, keys, begins);
}

void PackRecordsGpu(const char* records, const uint32_t* order, uint32_t max, const uint32_t* count,
                    const RowLayout& layout, char* packed, const Stream& queue) {
  Copy<true>(records, packed, order, max, count, layout, queue);
}

void UnpackRecordsGpu(const char* packed, const uint32_t* positions, uint32_t n, const RowLayout& layout, char* records,
                      const Stream& queue) {
  Copy<false>(packed, records, positions, n, nullptr, layout, queue);
}

}  // namespace sparrow
