#include "dense/collective.h"

namespace sparrow {
namespace {

class LocalCollective final : public Collective {
 public:
  uint32_t rank() const override { return 0; }
  uint32_t size() const override { return 1; }
  absl::Status AllReduceSum(std::span<float>) override { return absl::OkStatus(); }
  absl::Status AllReduceSum(std::span<double>) override { return absl::OkStatus(); }
  absl::StatusOr<std::vector<std::string>> AllGather(absl::string_view bytes) override {
    return std::vector<std::string>{std::string(bytes)};
  }
  absl::Status Barrier() override { return absl::OkStatus(); }
};

}  // namespace

std::unique_ptr<Collective> MakeLocalCollective() { return std::make_unique<LocalCollective>(); }

}  // namespace sparrow
