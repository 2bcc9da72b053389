#ifndef SPARROW_WORKER_DEVICE_H_
#define SPARROW_WORKER_DEVICE_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace sparrow {

// What trains: the CPU, or one GPU of this machine.
struct Device {
  std::optional<int> gpu;  // Its number; nullopt: the CPU.
};

// From "cpu" or "cuda:N". InvalidArgument: another word. FailedPrecondition: there is no such GPU, with how many there
// are, or the driver's reason why there is none. The message begins with --device.
absl::StatusOr<Device> ParseDevice(const std::string& flag);

}  // namespace sparrow

#endif  // SPARROW_WORKER_DEVICE_H_
