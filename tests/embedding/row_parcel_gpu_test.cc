// The twins of embedding/row_parcel.h: the CPU half against what it says, the CUDA half against the CPU half, number by
// number and byte by byte.

#include "embedding/row_parcel_gpu.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "base/random.h"
#include "embedding/row_parcel.h"
#include "tests/support/gpu.h"

namespace sparrow {
namespace {

constexpr uint32_t kUntouched = 0xdeadbeef;
constexpr char kUntouchedByte = 0x5a;
const std::vector<uint32_t> kSizes = {0, 1, 31, 32, 33, 257, 70001};

TEST(RowParcel, KeysAreListedTableByTable) {
  const std::vector<RowName> names = {{7, 3}, {~Key{0}, 1}, {5, 3}, {9, 1}, {7, 0}};
  std::vector<uint32_t> order(5), begins(6);
  std::vector<Key> keys(5);
  OrderByTableCpu(names, 5, order);
  EXPECT_EQ(order, (std::vector<uint32_t>{4, 1, 3, 0, 2}));
  ListKeysCpu(names, order, keys, begins);
  EXPECT_EQ(keys, (std::vector<Key>{7, ~Key{0}, 9, 7, 5}));
  EXPECT_EQ(begins, (std::vector<uint32_t>{0, 1, 3, 3, 5, 5}));

  const KeysByTable rows{.keys = keys, .begins = begins};
  EXPECT_EQ(rows.size(), 5u);
  EXPECT_TRUE(rows.of(2).empty());
  EXPECT_EQ(std::vector<Key>(rows.of(3).begin(), rows.of(3).end()), (std::vector<Key>{7, 5}));
  for (uint32_t i = 0; i < 5; ++i) EXPECT_TRUE(rows.name(i) == names[order[i]]) << i;
}

TEST(RowParcel, RecordsArePackedAndUnpackedWithoutWhatPadsThem) {
  const RowLayout layout(2, SparseOptimizerKind::kSgd);
  ASSERT_LT(layout.record_bytes(), layout.slot_bytes());
  std::vector<char> records(3 * layout.slot_bytes());
  for (size_t i = 0; i < records.size(); ++i) records[i] = static_cast<char>(i);
  std::vector<char> packed(2 * layout.record_bytes());
  PackRecordsCpu(records, std::vector<uint32_t>{2, 0}, layout, packed);
  EXPECT_EQ(std::memcmp(packed.data(), records.data() + 2 * layout.slot_bytes(), layout.record_bytes()), 0);
  EXPECT_EQ(std::memcmp(packed.data() + layout.record_bytes(), records.data(), layout.record_bytes()), 0);
  std::vector<char> unpacked(2 * layout.slot_bytes(), kUntouchedByte);
  UnpackRecordsCpu(packed, std::vector<uint32_t>{1, 0}, layout, unpacked);
  EXPECT_EQ(std::memcmp(unpacked.data(), records.data(), layout.record_bytes()), 0);
  EXPECT_EQ(unpacked[layout.record_bytes()], kUntouchedByte);
}

class RowParcelGpu : public OnGpu<> {
 protected:
  void SetUp() override {
    OnGpu<>::SetUp();
    if (!IsSkipped()) stream_.emplace();
  }
  std::optional<Stream> stream_;
};

// In random tables, some of which have none; `count` of them are meant.
TEST_F(RowParcelGpu, OrderAndKeysEqualTheCpus) {
  for (const uint32_t n : kSizes) {
    for (const uint32_t tables : {1u, 2u, 26u, 300u}) {
      for (const uint32_t count : {n, n / 2, 0u}) {
        std::vector<RowName> names(n);
        for (uint32_t i = 0; i < n; ++i) {
          const uint32_t table = static_cast<uint32_t>(RandomBits(4, i) % tables);
          names[i] = {.key = RandomBits(5, i), .table = table == 1 ? 0 : table};
        }
        const auto device_names = Upload(names, *stream_);
        const auto device_count = Upload(std::vector<uint32_t>{count}, *stream_);
        auto order = Upload(std::vector<uint32_t>(n + 1, kUntouched), *stream_);
        auto keys = Upload(std::vector<uint64_t>(n + 1, kUntouched), *stream_);
        auto begins = Upload(std::vector<uint32_t>(tables + 2, kUntouched), *stream_);
        auto workspace = Upload(std::vector<char>(OrderWorkspaceBytes(n, tables)), *stream_);
        const DeviceNames meant{.data = device_names.data(), .max = n, .count = device_count.data()};
        OrderByTableGpu(meant, tables, order.data(), {.data = workspace.data(), .bytes = workspace.size()}, *stream_);
        ListKeysGpu(meant, order.data(), tables, keys.data(), begins.data(), *stream_);

        names.resize(count);
        std::vector<uint32_t> expected_order(count), expected_begins(tables + 1);
        std::vector<Key> expected_keys(count);
        OrderByTableCpu(names, tables, expected_order);
        ListKeysCpu(names, expected_order, expected_keys, expected_begins);
        std::vector<uint32_t> actual_order = Download(order, *stream_);
        EXPECT_EQ(actual_order[n], kUntouched);
        actual_order.resize(count);
        EXPECT_EQ(actual_order, expected_order) << n << " " << tables;
        expected_keys.resize(n + 1, kUntouched);
        EXPECT_EQ(Download(keys, *stream_), expected_keys) << n << " " << tables;
        expected_begins.push_back(kUntouched);
        EXPECT_EQ(Download(begins, *stream_), expected_begins) << n << " " << tables;

        // As they are, once they are in order.
        std::vector<RowName> ordered;
        for (const uint32_t i : expected_order) ordered.push_back(names[i]);
        const auto device_ordered = Upload(ordered, *stream_);
        begins = Upload(std::vector<uint32_t>(tables + 2, kUntouched), *stream_);
        ListKeysGpu({.data = device_ordered.data(), .max = count}, nullptr, tables, keys.data(), begins.data(),
                    *stream_);
        EXPECT_EQ(Download(keys, *stream_), expected_keys) << n << " " << tables;
        EXPECT_EQ(Download(begins, *stream_), expected_begins) << n << " " << tables;
      }
    }
  }
}

TEST_F(RowParcelGpu, PackedAndUnpackedRecordsEqualTheCpus) {
  for (const uint32_t dim : {1u, 2u, 7u, 64u, 129u, 4096u}) {
    for (const auto kind :
         {SparseOptimizerKind::kSgd, SparseOptimizerKind::kRowwiseAdagrad, SparseOptimizerKind::kAdam}) {
      const RowLayout layout(dim, kind);
      for (const uint32_t n : kSizes) {
        if (uint64_t{n} * dim > 20'000'000) continue;
        std::vector<char> records(n * layout.slot_bytes());
        for (size_t i = 0; i < records.size(); ++i) records[i] = static_cast<char>(RandomBits(6, i));
        std::vector<uint32_t> order(n);
        for (uint32_t i = 0; i < n; ++i) order[i] = static_cast<uint32_t>((uint64_t{i} * 7919 + 5) % n);  // All differ.
        const auto device_records = Upload(records, *stream_);
        const auto device_order = Upload(order, *stream_);
        for (const uint32_t count : {n, n / 2}) {
          const auto device_count = Upload(std::vector<uint32_t>{count}, *stream_);
          auto packed = Upload(std::vector<char>(n * layout.record_bytes() + 1, kUntouchedByte), *stream_);
          PackRecordsGpu(device_records.data(), device_order.data(), n, count == n ? nullptr : device_count.data(),
                         layout, packed.data(), *stream_);
          std::vector<char> expected(n * layout.record_bytes() + 1, kUntouchedByte);
          PackRecordsCpu(records, std::span(order).first(count), layout,
                         std::span(expected).first(count * layout.record_bytes()));
          EXPECT_TRUE(Download(packed, *stream_) == expected) << n << " of dim " << dim;
          if (count < n) continue;

          auto unpacked = Upload(std::vector<char>(n * layout.slot_bytes() + 1, kUntouchedByte), *stream_);
          UnpackRecordsGpu(packed.data(), device_order.data(), n, layout, unpacked.data(), *stream_);
          std::vector<char> slots(n * layout.slot_bytes() + 1, kUntouchedByte);
          UnpackRecordsCpu(expected, order, layout, slots);
          EXPECT_TRUE(Download(unpacked, *stream_) == slots) << n << " of dim " << dim;
        }
      }
    }
  }
}

}  // namespace
}  // namespace sparrow
