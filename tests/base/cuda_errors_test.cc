// What is said when CUDA fails, and what can be gone on with.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "base/cuda/allocate.h"
#include "base/cuda/graph.h"
#include "base/cuda/management.h"
#include "tests/base/failing_kernels.h"
#include "tests/support/gpu.h"
#include "tests/support/gpu_hog.h"

namespace sparrow {
namespace {

using ::testing::MatchesRegex;

TEST(CudaErrors, PinnedMemoryThatTheSystemDoesNotHaveIsRefusedWithTheBytesThatItHas) {
  if (GpuCount() == 0) GTEST_SKIP() << "NO GPU HERE";
  const auto pinned = AllocatePinned<char>(size_t{1} << 46, "a test");
  EXPECT_EQ(pinned.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(
      std::string(pinned.status().message()),
      MatchesRegex("the system has no memory to pin: a test needs 70368744177664 bytes, [0-9]+ are available.*"));
}

class CudaErrorsOnGpu : public OnGpu<> {
 protected:
  void SetUp() override {
    OnGpu<>::SetUp();
    if (IsSkipped()) return;
    // A process of its own for each death: a CUDA context does not survive a fork.
    GTEST_FLAG_SET(death_test_style, "threadsafe");
  }
};

TEST_F(CudaErrorsOnGpu, MemoryThatTheGpuDoesNotHaveIsRefusedWithTheBytesThatItHas) {
  const auto buffer = AllocateOnDevice<char>(size_t{1} << 46, "a test");
  EXPECT_EQ(buffer.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(buffer.status().message()),
              MatchesRegex("the GPU is out of memory: a test needs 70368744177664 bytes, [0-9]+ of [0-9]+ are free"));
}

TEST_F(CudaErrorsOnGpu, AGraphWhoseWorkFailsLeavesTheStreamUsable) {
  const Stream stream, other;
  Event event;
  auto buffer = DeviceBuffer<char>::Allocate(64);
  ASSERT_TRUE(buffer.has_value());
  const std::optional<Graph> none = Graph::Record(stream, [&] {
    buffer->Fill(1, stream);
    event.Record(stream);
    other.WaitFor(event);  // Recorded too, and not joined again.
    return false;
  });
  EXPECT_FALSE(none.has_value());
  stream.Synchronize();  // CHECKs that nothing is being recorded.
  other.Synchronize();
  const std::optional<Graph> graph = Graph::Record(stream, [&] {
    buffer->Fill(7, stream);
    return true;
  });
  ASSERT_TRUE(graph.has_value());
  graph->Replay(stream);
  EXPECT_EQ(Download(*buffer, stream), std::vector<char>(64, 7));
}

// Each node takes some memory of the GPU; a graph is refused or it runs.
TEST_F(CudaErrorsOnGpu, AGraphThatFindsNoMemoryIsRefused) {
  const Stream stream;
  auto buffer = DeviceBuffer<char>::Allocate(1 << 20);
  ASSERT_TRUE(buffer.has_value());
  const auto record = [&] {
    return Graph::Record(stream, [&] {
      for (int i = 0; i < 1000; ++i) buffer->Fill(i % 128, stream);
      return true;
    });
  };
  {
    const GpuHog hog(0);
    std::vector<Graph> graphs;
    for (int i = 0; i < 300; ++i) {
      std::optional<Graph> graph = record();
      if (!graph.has_value()) break;
      graphs.push_back(*std::move(graph));
    }
    std::printf("%zu graphs of 1000 nodes were recorded on a full GPU\n", graphs.size());
    for (const Graph& graph : graphs) graph.Replay(stream);
    stream.Synchronize();
  }
  EXPECT_TRUE(record().has_value());
}

TEST_F(CudaErrorsOnGpu, TheDriverTellsAGpusMemoryWithoutUsingIt) {
  const GpuMemory mine = GpuMemoryNow();
  std::printf("%zu of %zu bytes are free\n", mine.free, mine.total);
  EXPECT_FALSE(ManagedGpuMemory("ffff:ff:1f.0").has_value());
}

TEST_F(CudaErrorsOnGpu, ACallThatFailsDiesWithItsNameAndTheGpusState) {
  EXPECT_DEATH(UseGpu(99),
               "runtime.cu:[0-9]+: CHECK failed.*cudaSetDevice\\(gpu\\): cudaErrorInvalidDevice: invalid "
               "device ordinal; [0-9]+ of [0-9]+ bytes of GPU memory are free");
}

TEST_F(CudaErrorsOnGpu, AKernelThatCannotStartDiesWithItsName) {
  const auto launch = [] {
    const Stream stream;
    LaunchWithTooManyThreads(stream);
  };
  EXPECT_DEATH(launch(),
               "launch.*StoreKernel\\(int ?\\*\\) with 1 blocks of 2048: cudaErrorInvalid.*bytes of GPU memory are "
               "free");
}

TEST_F(CudaErrorsOnGpu, AKernelThatFailsDiesWhereItIsWaitedForWithTheErrorsName) {
  const auto store = [] {
    const Stream stream;
    StoreToNowhere(stream);
    stream.Synchronize();
  };
  EXPECT_DEATH(store(), "cudaStreamSynchronize\\(stream_\\): cudaErrorIllegalAddress: ");
}

}  // namespace
}  // namespace sparrow
