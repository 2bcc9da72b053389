// Question: how near to the memory's limit are the flat kernels of the dense part: optimizers and gradient norm?
// Fixed: fp32 weights, gradients and state, one launch a step but for LAMB. Varies: the kind, with and without a bf16
// copy, and the number of parameters. Bounds, measured in the same run: device copy bandwidth (bytes read + written) of
// 2 GiB, and of as many bytes as the kernel moves, since a launch of a few microseconds does not reach the former
// whatever it does. Bytes moved are counted as in the kernels' comments: SGD 12 a parameter, momentum and Adagrad 20,
// Adam 28, LAMB 40 (two launches; of 16 tensors here), 2 more with a copy; the norm 4. Each time is the median of 25
// launches between events, L2 flushed before each. The checksum is the norm of the weights. usage:
// dense_optimizer_gpu_bench [PARAMETERS]    (default: 1 M, 16 M and 256 M; the last takes 5 GB)

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/cuda/device_buffer.h"
#include "base/cuda/stream.h"
#include "bench/support/gpu_timing.h"
#include "dense/dense_optimizer_gpu.h"
#include "dense/gradient_norm_gpu.h"

namespace sparrow {
namespace {

constexpr int64_t kCopyBytes = int64_t{2} << 30;

constexpr int kRuns = 25;
constexpr uint64_t kTensors = 16;

class Bench {
 public:
  Bench() {
    flush_.Fill(1, stream_);
    from_.Fill(1, stream_);
    const DenseStepOptions options{.gradient_scale = 0.5, .learning_rate_factor = 0.9};
    options_.CopyFrom({&options, 1}, stream_);
    stream_.Synchronize();
    CHECK(sums_.has_value());
    bound_ = RateOfCopy(2 * kCopyBytes);
    std::printf("%s; device copy of 2 GiB %.2f TB/s (read + written)\n\n", GpuName().c_str(), bound_ / 1e12);
    std::printf(
        "| kernel | elements | MB moved | median us (min-max) | GB/s | of the 2 GiB copy | of a copy of as many bytes "
        "| "
        "checksum |\n|---|---|---|---|---|---|---|---|\n");
  }

  void Optimizers(int64_t n) {
    DeviceBuffer<float> weights = Allocate<float>(n), gradients = Allocate<float>(n);
    DeviceBuffer<uint16_t> copy = Allocate<uint16_t>(n);
    gradients.Fill(0x3d, stream_);  // Every element 0.0464: not zero, finite.
    const std::pair<const char*, DenseRule> rules[] = {
        {"SGD", {.kind = DenseOptimizerKind::kSgd, .learning_rate = 1e-3, .weight_decay = 0.01}},
        {"momentum", {.kind = DenseOptimizerKind::kMomentum, .learning_rate = 1e-3, .momentum = 0.9}},
        {"Adagrad", {.kind = DenseOptimizerKind::kAdagrad, .learning_rate = 1e-3, .eps = 1e-8}},
        {"Adam", {.kind = DenseOptimizerKind::kAdam, .learning_rate = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8}},
        {"AdamW",
         {.kind = DenseOptimizerKind::kAdam,
          .learning_rate = 1e-3,
          .weight_decay = 0.01,
          .beta1 = 0.9,
          .beta2 = 0.999,
          .eps = 1e-8}},
        {"LAMB",
         {.kind = DenseOptimizerKind::kLamb,
          .learning_rate = 1e-3,
          .weight_decay = 0.01,
          .beta1 = 0.9,
          .beta2 = 0.999,
          .eps = 1e-6}}};
    std::vector<Slice> tensors;
    for (uint64_t t = 0, size = static_cast<uint64_t>(n); t < kTensors; ++t) {
      tensors.push_back({size * t / kTensors, size * (t + 1) / kTensors});
    }
    for (const auto& [name, rule] : rules) {
      for (const WeightCopy copy_type : {WeightCopy::kNone, WeightCopy::kBfloat16}) {
        weights.Fill(0x3e, stream_);  // 0.186
        auto optimizer = DenseOptimizerGpu::Make(rule, n, stream_, tensors);
        CHECK(optimizer.has_value()) << "no GPU memory for the state of " << n << " parameters";
        const bool copies = copy_type != WeightCopy::kNone;
        const DenseOptimizerGpu::StepArguments arguments{.weights = weights.data(),
                                                         .gradients = gradients.data(),
                                                         .copy_type = copy_type,
                                                         .copy = copies ? copy.data() : nullptr,
                                                         .options = options_.data()};
        const int64_t bytes =
            (rule.kind == DenseOptimizerKind::kLamb ? 40 : 12 + 8 * DenseStates(rule.kind)) + (copies ? 2 : 0);
        const Spread time = Timed([&] { optimizer->Step(arguments, stream_); });
        Print(std::string(name) + (copies ? " + bf16 copy" : ""), n, bytes, time, Norm(weights));
      }
    }
    GridSums* const sums = sums_->data();
    const Spread time = Timed(
        [&] { GradientNormGpu(weights.data(), n, options_.data(), {.max_norm = 1}, sums, clip_.data(), stream_); });
    Print("gradient norm", n, 4, time, Norm(weights));
  }

 private:
  Spread Timed(const std::function<void()>& work) { return Time(kRuns, nullptr, work, &flush_, stream_); }

  // Of a copy that moves `bytes`, which is reading half of them and writing the other.
  double RateOfCopy(int64_t bytes) {
    bytes = std::min(bytes, 2 * kCopyBytes);
    if (const auto known = copy_rates_.find(bytes); known != copy_rates_.end()) return known->second;
    return copy_rates_[bytes] = CopyRate(kRuns, static_cast<size_t>(bytes / 2), from_, &to_, &flush_, stream_);
  }

  double Norm(const DeviceBuffer<float>& values) {
    GradientNormGpu(values.data(), static_cast<int64_t>(values.size()), options_.data(), {}, sums_->data(),
                    clip_.data(), stream_);
    GradientClip clip;
    clip_.CopyTo({&clip, 1}, stream_);
    stream_.Synchronize();
    return clip.norm;
  }

  void Print(const std::string& name, int64_t n, int64_t bytes_per_element, const Spread& time, double checksum) {
    const int64_t bytes = n * bytes_per_element;
    const double rate = static_cast<double>(bytes) / (time.median_us * 1e-6);
    std::printf("| %s | %lld | %.1f | %.1f (%.1f-%.1f) | %.0f | %.0f %% | %.0f %% | %.9g |\n", name.c_str(),
                static_cast<long long>(n), static_cast<double>(bytes) / 1e6, time.median_us, time.min_us, time.max_us,
                rate / 1e9, 100 * rate / bound_, 100 * rate / RateOfCopy(bytes), checksum);
  }

  const Stream stream_;
  DeviceBuffer<char> flush_ = Allocate<char>(int64_t{256} << 20);
  DeviceBuffer<char> from_ = Allocate<char>(kCopyBytes);
  DeviceBuffer<char> to_ = Allocate<char>(kCopyBytes);
  DeviceBuffer<DenseStepOptions> options_ = Allocate<DenseStepOptions>(1);
  DeviceBuffer<GradientClip> clip_ = Allocate<GradientClip>(1);
  std::optional<DeviceBuffer<GridSums>> sums_ = MakeGridSums(stream_);
  double bound_ = 0;
  std::map<int64_t, double> copy_rates_;
};

int Main(int argc, char** argv) {
  const int64_t parameters = argc > 1 ? std::strtoll(argv[1], nullptr, 10) : 0;
  if (GpuCount() == 0 || (argc > 1 && parameters <= 0)) {
    std::fprintf(stderr, "dense_optimizer_gpu_bench: %s\n",
                 GpuCount() == 0 ? "no GPU here" : "PARAMETERS must be a positive number");
    return 1;
  }
  Bench bench;
  for (const int64_t n :
       parameters > 0 ? std::vector<int64_t>{parameters} : std::vector<int64_t>{1 << 20, 16 << 20, 256 << 20}) {
    bench.Optimizers(n);
  }
  return 0;
}

}  // namespace
}  // namespace sparrow

int main(int argc, char** argv) { return sparrow::Main(argc, argv); }
