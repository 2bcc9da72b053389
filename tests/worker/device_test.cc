#include "worker/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/cuda/stream.h"

namespace sparrow {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Device, TheCpuIsAWord) {
  const auto device = ParseDevice("cpu");
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_FALSE(device->gpu.has_value());
}

TEST(Device, AGpuIsWrittenInOneWayOnly) {
  for (const char* flag : {"", "CPU", "cpu ", "cuda", "cuda:", "cuda: 0", "cuda:0 ", " cuda:0", "cuda:+0", "cuda:-1",
                           "cuda:00", "cuda:01", "cuda:0x1", "cuda:1.0", "cuda:x", "cuda:99999999999", "gpu:0", "0"}) {
    const auto device = ParseDevice(flag);
    EXPECT_EQ(device.status().code(), absl::StatusCode::kInvalidArgument) << '"' << flag << '"';
    EXPECT_THAT(std::string(device.status().message()),
                HasSubstr(std::string("--device=\"") + flag + "\" is not a device; expected cpu, or cuda:N"));
  }
}

TEST(Device, AGpuThatIsNotThereIsNamedWithTheReason) {
  for (const char* flag : {"cuda:10", "cuda:99"}) {
    const auto device = ParseDevice(flag);
    EXPECT_EQ(device.status().code(), absl::StatusCode::kFailedPrecondition) << flag;
    EXPECT_THAT(std::string(device.status().message()), HasSubstr(std::string("--device=") + flag + ": "));
  }
}

TEST(Device, AMachineWithoutADriverIsToldSo) {
  if (GpuCount() > 0) GTEST_SKIP() << "A GPU IS HERE: what is said without one was not looked at";
  const std::string message(ParseDevice("cuda:0").status().message());
  EXPECT_THAT(message, Not(HasSubstr("insufficient")));
  // As the build, the driver and the machine are.
  EXPECT_THAT(message, AnyOf(HasSubstr("no NVIDIA driver is installed"), HasSubstr("this build of Sparrow has no CUDA"),
                             HasSubstr("the NVIDIA driver is too old: it knows CUDA up to "), HasSubstr("device"),
                             HasSubstr("no GPU")));
}

TEST(Device, EachGpuThatIsThereIsTaken) {
  if (GpuCount() == 0) GTEST_SKIP() << "NO GPU HERE";
  for (int gpu = 0; gpu < GpuCount(); ++gpu) {
    const auto device = ParseDevice("cuda:" + std::to_string(gpu));
    ASSERT_TRUE(device.ok()) << device.status();
    EXPECT_EQ(device->gpu, gpu);
  }
}

}  // namespace
}  // namespace sparrow
