// The twins of embedding/dedup.h: the CUDA half against the CPU half, number by number.

#include "embedding/dedup_gpu.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <tuple>
#include <vector>

#include "base/cuda/device_buffer.h"
#include "base/cuda/graph.h"
#include "base/random.h"
#include "embedding/dedup.h"
#include "tests/support/gpu.h"
#include "tests/support/stated_costs.h"

namespace sparrow {
namespace {

constexpr uint32_t kUntouched = 0xdeadbeef;

// Keys 0 to range - 1, skewed so that some repeat often, and their complements, in three tables, of which one is the
// largest number there is.
std::vector<RowName> Names(uint32_t n, uint64_t range, uint64_t seed) {
  std::vector<RowName> names(n);
  for (uint32_t i = 0; i < n; ++i) {
    const double u = RandomUniform(seed, i);
    const auto key = static_cast<uint64_t>(u * u * u * static_cast<double>(range));
    const uint64_t bits = RandomBits(seed + 1, i);
    names[i] = {bits % 2 == 0 ? key : ~key, static_cast<uint32_t>(bits >> 8) % 3 - 1,
                static_cast<uint32_t>(bits >> 32)};
  }
  return names;
}

struct Result {
  std::vector<RowName> unique;
  uint32_t count = 0;
  std::vector<uint32_t> index;
};

// Of the first `count` names.
void ExpectEqualsCpu(const std::vector<RowName>& names, uint32_t count, const Result& result) {
  std::vector<RowName> unique;
  std::vector<uint32_t> index(count);
  UniqueNamesCpu({names.data(), count}, &unique, index);
  ASSERT_EQ(result.count, unique.size());
  for (size_t i = 0; i < unique.size(); ++i) ASSERT_TRUE(result.unique[i] == unique[i]) << "unique name " << i;
  for (size_t i = 0; i < count; ++i) ASSERT_EQ(result.index[i], index[i]) << "name " << i;
  for (size_t i = count; i < names.size(); ++i) ASSERT_EQ(result.index[i], kUntouched) << "behind the last name";
}

class DedupGpu : public OnGpu<::testing::TestWithParam<std::tuple<uint32_t, uint64_t>>> {};

TEST_P(DedupGpu, EqualsTheCpuHalfInOrderOfFirstAppearance) {
  const auto [n, range] = GetParam();
  const std::vector<RowName> names = Names(n, range, 7 * n + range);
  const Stream stream;
  const auto device_names = Upload(names, stream);
  auto workspace = DeviceBuffer<char>::Allocate(UniqueWorkspaceBytes(n)).value();
  for (const uint32_t count : {n, n / 2, 0u}) {
    const auto device_count = Upload(std::vector<uint32_t>{count}, stream);
    auto unique = Upload(std::vector<RowName>(n), stream);
    auto index = Upload(std::vector<uint32_t>(n, kUntouched), stream);
    auto unique_count = Upload(std::vector<uint32_t>{kUntouched}, stream);
    workspace.Fill(0x5a, stream);
    UniqueNamesGpu({device_names.data(), n, count == n ? nullptr : device_count.data()},
                   {unique.data(), unique_count.data(), index.data()}, {workspace.data(), workspace.size()}, stream);
    const Result result{Download(unique, stream), Download(unique_count, stream)[0], Download(index, stream)};
    ExpectEqualsCpu(names, count, result);
  }
}

INSTANTIATE_TEST_SUITE_P(All, DedupGpu,
                         testing::Combine(testing::Values(0, 1, 31, 32, 33, 257, 70001),
                                          testing::Values(1, 7, 1000, uint64_t{1} << 40)));

TEST(DedupGpuCost, EveryKernelStatesIt) {
  if (GpuCount() == 0) GTEST_SKIP() << "NO GPU HERE: the CUDA half was compiled but not run";
  const Stream stream;
  const auto names = Upload(Names(500, 7, 1), stream);
  auto unique = DeviceBuffer<RowName>::Allocate(500).value();
  auto count = DeviceBuffer<uint32_t>::Allocate(1).value();
  auto index = DeviceBuffer<uint32_t>::Allocate(500).value();
  auto workspace = DeviceBuffer<char>::Allocate(UniqueWorkspaceBytes(500)).value();
  ExpectStatedCosts([&] {
    UniqueNamesGpu({names.data(), 500, nullptr}, {unique.data(), count.data(), index.data()},
                   {workspace.data(), workspace.size()}, stream);
    stream.Synchronize();
  });
}

// Every bit of a key and of a table's number tells names apart.
TEST(DedupGpuKeys, AnyKeyIsAKey) {
  if (GpuCount() == 0) GTEST_SKIP() << "NO GPU HERE: the CUDA half was compiled but not run";
  std::vector<RowName> names;
  for (const uint32_t table : {0u, 1u, 0x7fffffffu, 0x80000000u, 0xffffffffu}) {
    for (int bit = 0; bit < 64; ++bit) {
      const uint64_t one = uint64_t{1} << bit, all = ~uint64_t{0};
      for (const uint64_t key : {one, ~one, all << bit, all >> bit}) {
        names.push_back({key, table, static_cast<uint32_t>(names.size())});
      }
    }
    names.push_back({0, table, 0});
    names.push_back({~uint64_t{0}, table, 0});
  }
  for (int bit = 0; bit < 32; ++bit) names.push_back({~uint64_t{0}, 1u << bit, 0});
  // Random ones, of which some repeat.
  for (uint64_t i = 0; i < 4000; ++i) {
    const uint64_t which = RandomBits(4, i) % 2000;
    names.push_back({RandomBits(5, which), static_cast<uint32_t>(RandomBits(6, which)), 0});
  }
  const auto n = static_cast<uint32_t>(names.size());
  const Stream stream;
  const auto device_names = Upload(names, stream);
  auto workspace = DeviceBuffer<char>::Allocate(UniqueWorkspaceBytes(n)).value();
  auto unique = Upload(std::vector<RowName>(n), stream);
  auto index = Upload(std::vector<uint32_t>(n, kUntouched), stream);
  auto unique_count = Upload(std::vector<uint32_t>{kUntouched}, stream);
  UniqueNamesGpu({device_names.data(), n, nullptr}, {unique.data(), unique_count.data(), index.data()},
                 {workspace.data(), workspace.size()}, stream);
  const Result result{Download(unique, stream), Download(unique_count, stream)[0], Download(index, stream)};
  ExpectEqualsCpu(names, n, result);
}

TEST(DedupGpuGraph, AGraphServesBatchesOfSeveralSizes) {
  if (GpuCount() == 0) GTEST_SKIP() << "NO GPU HERE: the CUDA half was compiled but not run";
  constexpr uint32_t kMax = 5000;
  const Stream stream;
  auto device_names = DeviceBuffer<RowName>::Allocate(kMax).value();
  auto device_count = DeviceBuffer<uint32_t>::Allocate(1).value();
  auto unique = DeviceBuffer<RowName>::Allocate(kMax).value();
  auto unique_count = DeviceBuffer<uint32_t>::Allocate(1).value();
  auto index = DeviceBuffer<uint32_t>::Allocate(kMax).value();
  auto workspace = DeviceBuffer<char>::Allocate(UniqueWorkspaceBytes(kMax)).value();
  const Graph graph(stream, [&] {
    UniqueNamesGpu({device_names.data(), kMax, device_count.data()}, {unique.data(), unique_count.data(), index.data()},
                   {workspace.data(), workspace.size()}, stream);
  });
  for (const uint32_t count : {5000u, 1u, 0u, 3333u}) {
    const std::vector<RowName> names = Names(kMax, 900, count);
    const std::vector<uint32_t> counts = {count}, untouched(kMax, kUntouched);
    device_names.CopyFrom(names, stream);
    device_count.CopyFrom(counts, stream);
    index.CopyFrom(untouched, stream);
    graph.Replay(stream);
    const Result result{Download(unique, stream), Download(unique_count, stream)[0], Download(index, stream)};
    ExpectEqualsCpu(names, count, result);
  }
}

}  // namespace
}  // namespace sparrow
