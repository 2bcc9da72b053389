#include "worker/token_check.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/parallel.h"
#include "base/status_macros.h"
#include "worker/token_batches.h"
#include "worker/token_shards.h"

namespace sparrow {
namespace {

constexpr uint64_t kBlockTokens = 1 << 20;

absl::StatusOr<TokenReport> CheckSource(const std::string& name, TokenBatchesOptions options) {
  TokenReport report;
  report.name = name;
  report.vocabulary = options.vocabulary;
  ASSIGN_OR_RETURN(const std::unique_ptr<TokenBatches> batches, TokenBatches::Open(options));
  report.files = batches->files();
  report.tokenizer = batches->shards().tokenizer();
  report.windows = batches->Describe();
  report.steps = batches->EpochSteps(0);
  report.tokens = batches->tokens();

  std::vector<uint64_t> times(options.vocabulary);
  std::vector<uint16_t> block;
  for (uint64_t first = 0; first < report.tokens; first += kBlockTokens) {
    if (options.stop && options.stop()) return absl::CancelledError("reading was stopped");
    block.resize(std::min(kBlockTokens, report.tokens - first));
    RETURN_IF_ERROR(batches->shards().Read(first, block));
    for (const uint16_t token : block) ++times[token];
  }
  const auto total = static_cast<double>(report.tokens);
  for (uint32_t token = 0; token < options.vocabulary; ++token) {
    if (times[token] == 0) continue;
    ++report.distinct;
    const double share = static_cast<double>(times[token]) / total;
    report.entropy -= share * std::log(share);
    if (times[token] <= report.most_times) continue;
    report.most = static_cast<uint16_t>(token);
    report.most_times = times[token];
  }
  return report;
}

}  // namespace

absl::StatusOr<std::vector<TokenReport>> CheckTokens(const v1::Job& job, const std::string& data_root, StopCheck stop) {
  std::vector<TokenReport> reports;
  const auto add = [&](const char* name, TokenBatchesOptions options) -> absl::Status {
    options.data_root = data_root;
    options.threads = Cores();
    options.stop = stop;
    absl::StatusOr<TokenReport> report = CheckSource(name, options);
    if (!report.ok()) return Annotate(report.status(), absl::StrCat("data.", name));
    reports.push_back(*std::move(report));
    return absl::OkStatus();
  };
  if (job.data().has_train()) RETURN_IF_ERROR(add("train", TrainingTokens(job)));
  if (job.data().has_test()) RETURN_IF_ERROR(add("test", EvaluationTokens(job)));
  if (reports.size() == 2) RETURN_IF_ERROR(CheckSameTokenizer(reports[0].tokenizer, reports[1].tokenizer));
  return reports;
}

std::string FormatTokenReports(const std::vector<TokenReport>& reports) {
  std::string text;
  for (const TokenReport& report : reports) {
    absl::StrAppend(&text, report.name, ": ", report.windows, "; ", report.steps, " steps a pass; ",
                    report.files.size(), report.files.size() == 1 ? " file" : " files", "\n");
    for (const std::string& file : report.files) absl::StrAppend(&text, "  ", file, "\n");
    absl::StrAppendFormat(&text, "  %d of the vocabulary's %d tokens occur; most often %d (%.1f %%)\n", report.distinct,
                          report.vocabulary, report.most,
                          100 * static_cast<double>(report.most_times) / static_cast<double>(report.tokens));
    absl::StrAppendFormat(
        &text, "  entropy of single tokens %.4f nats: a model that has learnt more has a lower loss\n", report.entropy);
  }
  return text;
}

}  // namespace sparrow
