#include <algorithm>

#include "dense/collective.h"

namespace sparrow {
namespace {

class LocalCollective final : public Collective {
 public:
  uint32_t rank() const override { return 0; }
  uint32_t size() const override { return 1; }
  absl::Status AllReduceSum(std::span<float>) override { return absl::OkStatus(); }
  absl::Status AllReduceSum(std::span<double>) override { return absl::OkStatus(); }
  absl::Status ReduceScatterSum(std::span<float>, const SliceEnds&) override { return absl::OkStatus(); }
  absl::Status AllGatherSlices(std::span<float>, const SliceEnds&) override { return absl::OkStatus(); }
  uint64_t slice_bytes_sent() const override { return 0; }
  absl::StatusOr<std::vector<std::string>> AllGather(absl::string_view bytes) override {
    return std::vector<std::string>{std::string(bytes)};
  }
  absl::Status Barrier() override { return absl::OkStatus(); }
};

}  // namespace

SliceEnds EvenSlices(uint64_t size, uint32_t members) {
  SliceEnds ends(members);
  // Each of size / members elements, the first size % members of one more.
  for (uint64_t r = 0; r < members; ++r) ends[r] = (r + 1) * (size / members) + std::min(r + 1, size % members);
  return ends;
}

Slice SliceOf(const SliceEnds& ends, uint32_t rank) { return {rank == 0 ? 0 : ends[rank - 1], ends[rank]}; }

SliceEnds SlicesWithin(const SliceEnds& ends, const Slice& part) {
  SliceEnds within = ends;
  for (uint64_t& end : within) end = std::clamp(end, part.begin, part.end) - part.begin;
  return within;
}

std::unique_ptr<Collective> MakeLocalCollective() { return std::make_unique<LocalCollective>(); }

}  // namespace sparrow
