// A file of tokens is an error of one line, or tokens below the vocabulary, which windows of any size and order cover.

#include <algorithm>

#include "base/check.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/support/temp_files.h"
#include "tests/worker/token_files.h"
#include "worker/token_batches.h"

namespace sparrow {
namespace {

void ExpectOneLine(const absl::Status& status) {
  CHECK(status.message().find('\n') == absl::string_view::npos) << status;
}

}  // namespace

// In front: the vocabulary's and the context's size, and how the windows are taken.
std::vector<std::string> FuzzCorpus() {
  std::vector<std::string> corpus;
  for (const std::string& options : {std::string("\x3f\x04\x01", 3), std::string("\xff\x01\x06", 3)}) {
    corpus.push_back(options + HeadedTokens(CountUp(0, 60)));
    corpus.push_back(options + PlainTokens(CountUp(0, 60)));
    corpus.push_back(options + TokenHeader(1, 7, 20240801) + "abcd");
    corpus.push_back(options + "First Citizen:\nBefore we proceed any further, hear me speak.");
  }
  return corpus;
}

}  // namespace sparrow

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sparrow;
  if (size < 3) return 0;
  static const TempFiles files;
  files.Write("a.bin", absl::string_view(reinterpret_cast<const char*>(data) + 3, size - 3));
  static const bool other_written = (files.Write("b.bin", PlainTokens({0, 0, 0})), true);
  CHECK(other_written);
  TokenBatchesOptions options;
  options.data_root = files.root();
  options.source.add_path("a.bin");
  options.source.add_path("b.bin");
  options.vocabulary = 1 + 256 * data[0];
  options.context = 1 + data[1] % 16;
  options.shuffle = data[2] % 2 == 1;
  options.full_batches = false;
  options.batch_size = 1 + data[2] / 2;
  const auto batches = TokenBatches::Open(options);
  if (!batches.ok()) {
    ExpectOneLine(batches.status());
    return 0;
  }
  // All but a header of the file, and the other one.
  const uint64_t bytes = size - 3;
  CHECK((*batches)->tokens() == bytes / 2 + 3 || (*batches)->tokens() == (bytes - kTokenFileHeaderBytes) / 2 + 3);
  TokenBatch batch;
  uint64_t windows = 0;
  for (;;) {
    const absl::StatusOr<bool> more = (*batches)->Next(&batch);
    CHECK(more.ok()) << more.status();
    if (!*more) break;
    windows += batch.windows;
    CHECK_EQ(batch.windows_in_epoch, windows);
    CHECK_EQ(batch.tokens.size(), batch.windows * uint64_t{options.context});
    CHECK_EQ(batch.targets.size(), batch.tokens.size());
    for (const uint16_t token : batch.tokens) CHECK_LT(token, options.vocabulary);
    for (const uint16_t token : batch.targets) CHECK_LT(token, options.vocabulary);
  }
  CHECK(batch.last_in_epoch);
  CHECK_EQ(windows * options.context + 1 + (*batches)->UnusedTokens(0), (*batches)->tokens());
  return 0;
}
