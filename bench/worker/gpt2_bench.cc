// What a training step of a GPT-2 takes on a GPU, and what of it. Fixed: contexts of 1,024 tokens, the hub's
// vocabulary, AdamW, clipping at 1, tokens that follow Zipf's law with exponent 1, a new batch for each step, CUDA
// graphs. Varies: the model and how it computes. A step goes from tokens in the host's memory to new weights. Its
// bound: the products' operations at the GPU's peak (model FLOP utilization; dense/language_model.h says what is
// counted). bench/peers/gpt2_step.py is the same step in PyTorch. With --gpus, so many workers, threads of this
// process, each with a GPU and --windows windows of its own, sum their gradients between the GPUs; tokens/s are those
// of all, and the time is rank 0's. With --host through the host instead. With --zero each holds only a
// share of the optimizer's state, or of the gradients too. GiB are what is gone of rank 0's GPU since before the model.

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "base/cuda/kernel_trace.h"
#include "base/cuda/stream.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "bench/sparrow_bench/roofline.h"
#include "bench/support/gpu_timing.h"
#include "bench/support/zipf.h"
#include "dense/collective.h"
#include "tests/support/rendezvous_stores.h"
#include "worker/language_trainer.h"

namespace sparrow {
namespace {

constexpr char kUsage[] =
    "worker_gpt2_bench [--model 124M|355M|774M|shakespeare] [--windows N] [--micro N] [--steps N] [--warm-up N]\n"
    "                  [--precision BFLOAT16|FLOAT16|TF32|FULL] [--recompute NOTHING|CHEAP|BLOCKS] [--dropout SHARE]\n"
    "                  [--deterministic] [--profile] [--plan-file FILE] [--gpus N] [--host]\n"
    "                  [--zero NONE|OPTIMIZER_STATE|GRADIENTS]\n"
    "--profile: also what each operation of a step takes, summed over the layers, against its bound.\n";

struct Size {
  const char* name;
  uint32_t layers, heads, width, context, vocabulary;
};
constexpr Size kSizes[] = {{"124M", 12, 12, 768, 1024, 50257},
                           {"355M", 24, 16, 1024, 1024, 50257},
                           {"774M", 36, 20, 1280, 1024, 50257},
                           {"shakespeare", 6, 6, 384, 256, 65}};

struct Flags {
  std::string model = "124M";
  uint64_t windows = 64;
  uint64_t micro = 0;  // 0: all at once.
  uint64_t steps = 40;
  uint64_t warm_up = 5;
  uint64_t gpus = 1;
  std::string precision = "BFLOAT16";
  std::string recompute = "NOTHING";
  double dropout = 0;
  bool deterministic = false;
  bool profile = false;
  bool host = false;
  std::string zero = "NONE";
  std::string plan_file;
};

template <typename T>
bool Parse(std::string_view text, T* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

bool ParseFlags(int argc, char** argv, Flags* flags) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (bool* const flag = name == "--deterministic" ? &flags->deterministic
                           : name == "--profile"     ? &flags->profile
                           : name == "--host"        ? &flags->host
                                                     : nullptr;
        flag != nullptr) {
      *flag = true;
      continue;
    }
    if (i + 1 == argc) return false;
    const std::string_view value = argv[++i];
    if (name == "--model") {
      flags->model = value;
    } else if (name == "--precision") {
      flags->precision = value;
    } else if (name == "--recompute") {
      flags->recompute = value;
    } else if (name == "--zero") {
      flags->zero = value;
    } else if (name == "--plan-file") {
      flags->plan_file = value;
    } else if (name == "--dropout") {
      if (!Parse(value, &flags->dropout)) return false;
    } else if (uint64_t* const number = name == "--windows"   ? &flags->windows
                                        : name == "--micro"   ? &flags->micro
                                        : name == "--steps"   ? &flags->steps
                                        : name == "--warm-up" ? &flags->warm_up
                                        : name == "--gpus"    ? &flags->gpus
                                                              : nullptr;
               number == nullptr || !Parse(value, number)) {
      return false;
    }
  }
  return flags->windows > 0 && flags->steps > 0 && flags->gpus > 0;
}

// Each token is a rank of Zipf's law, and its target the token behind it.
class Tokens {
 public:
  Tokens(uint64_t windows, const v1::Gpt2& config)
      : zipf_(config.vocabulary(), 1.0), length_(config.context()), stream_(windows * length_ + 1) {}

  Sequences Batch(uint64_t step) {
    for (size_t i = 0; i < stream_.size(); ++i) {
      stream_[i] = static_cast<uint16_t>(zipf_.Rank(RandomUniform(step, i)));
    }
    const std::span<const uint16_t> all(stream_);
    return {.tokens = all.first(all.size() - 1), .targets = all.subspan(1), .length = static_cast<int64_t>(length_)};
  }

 private:
  const Zipf zipf_;
  const uint64_t length_;
  std::vector<uint16_t> stream_;
};

// Operations of one name, of a step.
struct Total {
  size_t launches = 0;
  double us = 0, bytes = 0, flops = 0, bound_us = 0;
};

void PrintProfile(const bench::Roofline& roofline) {
  std::map<std::string, Total> totals;
  double sum = 0;
  for (const bench::RooflineRow& row : roofline.rows) {
    Total& total = totals[row.name];
    total.launches += row.launches;
    total.us += row.us;
    total.bytes += row.bytes;
    total.flops += row.flops;
    total.bound_us += row.bound_us;
    sum += row.us;
  }
  std::vector<std::pair<std::string, Total>> sorted(totals.begin(), totals.end());
  std::ranges::sort(sorted, [](const auto& a, const auto& b) { return a.second.us > b.second.us; });
  std::printf("| operation | launches | us | %% | TB/s | TFLOP/s | of the bound |\n|---|---|---|---|---|---|---|\n");
  for (const auto& [name, total] : sorted) {
    std::printf("| %s | %zu | %.0f | %.1f | %.2f | %.0f | %.0f %% |\n", name.c_str(), total.launches, total.us,
                100 * total.us / sum, total.bytes / total.us * 1e-6, total.flops / total.us * 1e-6,
                100 * total.bound_us / total.us);
  }
  std::printf("a step: %.0f us from the first to the last, %.0f us at work; %zu of %zu steps\n", roofline.step_us,
              roofline.busy_us, roofline.steps, roofline.steps_traced);
}

v1::Job JobOf(const Flags& flags, const Size& size, v1::TrainConfig::Precision precision,
              v1::TrainConfig::Recompute recompute, v1::TrainConfig::Zero zero) {
  v1::Job job;
  job.set_name("gpt2_" + flags.model);
  v1::Gpt2* const config = job.mutable_model()->mutable_gpt2();
  config->set_layers(size.layers);
  config->set_heads(size.heads);
  config->set_width(size.width);
  config->set_context(size.context);
  config->set_vocabulary(size.vocabulary);
  config->set_dropout(flags.dropout);
  v1::TrainConfig* const train = job.mutable_train();
  train->set_precision(precision);
  train->set_recompute(recompute);
  train->set_zero(zero);
  train->set_deterministic(flags.deterministic);
  train->mutable_optimizer()->set_learning_rate(3e-4);
  train->mutable_optimizer()->mutable_adamw()->set_weight_decay(0.1);
  return job;
}

// One worker, on its own thread.
absl::Status Run(const Flags& flags, const v1::Job& job, uint32_t rank, MapStore* board) {
  const uint32_t ranks = static_cast<uint32_t>(flags.gpus);
  const v1::Gpt2& config = job.model().gpt2();
  const std::unique_ptr<LanguageModel> model = MakeGpt2(config, job.train().recompute(), /*seed=*/1);
  const std::unique_ptr<DenseOptimizer> optimizer =
      MakeDenseOptimizer(job.train().optimizer(), model->weights().size(), model->decayed()).value();
  UseGpu(static_cast<int>(rank));
  const size_t free_before = GpuMemoryNow().free;
  const uint64_t micro = flags.micro == 0 ? flags.windows : flags.micro;
  ASSIGN_OR_RETURN(const std::unique_ptr<LanguageTrainer> trainer,
                   MakeGpuLanguageTrainer({.model = model.get(),
                                           .optimizer = optimizer.get(),
                                           .zero = job.train().zero(),
                                           .clip_norm = 1.0,
                                           .micro_batch_size = micro},
                                          job,
                                          {.gpu = static_cast<int>(rank),
                                           .rank = rank,
                                           .workers = ranks,
                                           .windows_max = flags.windows,
                                           .plan_file = flags.plan_file}));
  std::unique_ptr<Collective> group = MakeLocalCollective();
  if (ranks > 1) {
    ASSIGN_OR_RETURN(group, MakeGlooCollective({.rank = rank, .size = ranks, .host = "127.0.0.1"}, board));
    RETURN_IF_ERROR(trainer->Join({.collective = group.get(), .board = flags.host ? nullptr : board}));
  }
  Tokens tokens(flags.windows, config);
  uint64_t step = 0;
  double loss = 0;
  LanguageTrainer::Result parts;
  // Milliseconds.
  const auto train_step = [&]() -> absl::StatusOr<double> {
    const Sequences batch = tokens.Batch(step * ranks + rank);
    RETURN_IF_ERROR(group->Barrier());
    const absl::Time start = absl::Now();
    ASSIGN_OR_RETURN(parts, trainer->Train(batch,
                                           {.step = step++,
                                            .first_sequence = rank * flags.windows,
                                            .sequences = ranks * flags.windows,
                                            .sequences_max = flags.windows},
                                           group.get()));
    loss = parts.loss_sum / static_cast<double>(parts.targets);
    return absl::ToDoubleMilliseconds(absl::Now() - start);
  };
  std::vector<double> times, exposed;
  for (uint64_t i = 0; i < flags.warm_up + flags.steps; ++i) {
    ASSIGN_OR_RETURN(const double ms, train_step());
    if (i == 0 && rank == 0) std::printf("first step %.1f s (products choose), loss %.4f\n", ms * 1e-3, loss);
    if (i < flags.warm_up) continue;
    times.push_back(ms);
    exposed.push_back(parts.reduce_seconds * 1e3);
  }
  if (rank > 0) return absl::OkStatus();
  std::ranges::sort(times);
  std::ranges::sort(exposed);
  const double median = times[times.size() / 2];
  const double count = static_cast<double>(ranks * flags.windows * config.context());
  const double flops = Gpt2FlopsPerToken(config) * count / ranks / (median * 1e-3);
  std::printf("%s, %s, %s, ", GpuName().c_str(), flags.model.c_str(), flags.precision.c_str());
  if (ranks > 1) {
    std::printf("%u GPUs%s, zero %s, each ", ranks, flags.host ? " through the host" : "", flags.zero.c_str());
  }
  std::printf(
      "micro batches of %llu of %llu windows, dropout %g, recompute %s%s: median %.2f ms (min %.2f, max %.2f) of %zu "
      "steps, %.1f K tokens/s, %.0f TFLOP/s a GPU",
      static_cast<unsigned long long>(micro), static_cast<unsigned long long>(flags.windows), flags.dropout,
      flags.recompute.c_str(), flags.deterministic ? ", deterministic" : "", median, times.front(), times.back(),
      times.size(), count / median, flops * 1e-12);
  if (trainer->PeakFlops() > 0) std::printf(", MFU %.1f %%", 100 * flops / trainer->PeakFlops());
  std::printf("; forward %.2f, backward %.2f, update %.2f ms", parts.forward_seconds * 1e3,
              parts.backward_seconds * 1e3, parts.update_seconds * 1e3);
  if (ranks > 1) {
    std::printf(", sums that nothing hides %.2f ms, %.1f MB sent", exposed[exposed.size() / 2],
                parts.bytes_sent * 1e-6);
  }
  std::printf("; %.1f GiB; loss %.6f\n", static_cast<double>(free_before - GpuMemoryNow().free) / (1 << 30), loss);
  if (!flags.profile) return absl::OkStatus();
  if (!KernelTrace::Absence().empty()) return absl::UnavailableError(KernelTrace::Absence());
  const std::unique_ptr<KernelTrace> recorder = KernelTrace::Start();
  for (int i = 0; i < 5; ++i) RETURN_IF_ERROR(train_step().status());
  PrintProfile(bench::MakeRoofline(
      recorder->Stop(),
      {.copy_bytes_per_second = 4.3e12, .product_flops_per_second = kBfloat16ProductFlops, .kernel_us = 2}, -1));
  return absl::OkStatus();
}

int RunAll(const Flags& flags) {
  const auto* const size = std::ranges::find_if(kSizes, [&](const Size& it) { return flags.model == it.name; });
  v1::TrainConfig::Precision precision;
  v1::TrainConfig::Recompute recompute;
  v1::TrainConfig::Zero zero;
  if (size == std::end(kSizes) || !v1::TrainConfig::Precision_Parse(flags.precision, &precision) ||
      !v1::TrainConfig::Recompute_Parse(flags.recompute, &recompute) ||
      !v1::TrainConfig::Zero_Parse(flags.zero, &zero) || (flags.profile && flags.gpus > 1)) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  if (flags.gpus > static_cast<uint64_t>(GpuCount())) {
    std::fprintf(stderr, "--gpus %llu: there are %d\n", static_cast<unsigned long long>(flags.gpus), GpuCount());
    return 77;
  }
  const v1::Job job = JobOf(flags, *size, precision, recompute, zero);
  MapStore board;
  std::vector<absl::Status> outcomes(flags.gpus);
  {
    std::vector<std::jthread> threads;
    for (uint32_t rank = 0; rank < flags.gpus; ++rank) {
      threads.emplace_back([&, rank] { outcomes[rank] = Run(flags, job, rank, &board); });
    }
  }
  for (const absl::Status& outcome : outcomes) {
    if (outcome.ok()) continue;
    std::fprintf(stderr, "%s\n", std::string(outcome.message()).c_str());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace sparrow

int main(int argc, char** argv) {
  sparrow::Flags flags;
  if (!sparrow::ParseFlags(argc, argv, &flags)) {
    std::fputs(sparrow::kUsage, stderr);
    return 2;
  }
  if (sparrow::GpuCount() == 0) {
    std::fprintf(stderr, "%s\n", sparrow::GpuAbsence().c_str());
    return 77;
  }
  return sparrow::RunAll(flags);
}
