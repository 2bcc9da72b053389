// What dense/device_collective.h says where a build has no NCCL.

#include "dense/device_collective.h"

namespace sparrow {

uint64_t NcclVersion() { return 0; }

absl::StatusOr<std::unique_ptr<DeviceCollective>> MakeNcclCollective(const NcclOptions&, RendezvousStore*) {
  return absl::UnimplementedError("this build of Sparrow has no NCCL");
}

}  // namespace sparrow
