#include "client/click_log.h"

#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/parallel.h"
#include "base/status_macros.h"

namespace sparrow {
namespace {

constexpr uint64_t kChunkRows = 1 << 16;

// A file under construction, plain or gzip. Not thread-safe.
class TextFile {
 public:
  static absl::StatusOr<std::unique_ptr<TextFile>> Create(const std::string& path) {
    auto file = std::unique_ptr<TextFile>(new TextFile(path));
    // Level 1: ids are random digits, and higher levels are slower than they are smaller.
    file->file_ = gzopen(file->temporary_.c_str(), absl::EndsWith(path, ".gz") ? "wb1" : "wbT");
    if (file->file_ == nullptr) return ErrnoStatus(errno, "create", path);
    gzbuffer(file->file_, 1 << 18);
    return file;
  }
  ~TextFile() {
    if (file_ == nullptr) return;
    gzclose(file_);
    unlink(temporary_.c_str());
  }

  absl::Status Append(const std::string& text) {
    errno = 0;
    if (gzwrite(file_, text.data(), static_cast<unsigned>(text.size())) == static_cast<int>(text.size())) {
      return absl::OkStatus();
    }
    return ErrnoStatus(errno, "write", path_);
  }

  absl::Status Finish() {
    errno = 0;
    const int result = gzclose(file_);
    file_ = nullptr;
    absl::Cleanup remove = [this] { unlink(temporary_.c_str()); };
    if (result != Z_OK) return ErrnoStatus(errno, "write", path_);
    if (std::rename(temporary_.c_str(), path_.c_str()) != 0) return ErrnoStatus(errno, "create", path_);
    std::move(remove).Cancel();
    return absl::OkStatus();
  }

 private:
  explicit TextFile(const std::string& path) : path_(path), temporary_(path + ".tmp") {}

  const std::string path_;
  const std::string temporary_;
  gzFile file_ = nullptr;
};

void AppendInteger(int32_t value, std::string* text) {
  char digits[16];
  const std::to_chars_result end = std::to_chars(digits, digits + sizeof(digits), value);
  text->append(digits, end.ptr);
}

void AppendHex(uint32_t id, std::string* text) {
  static constexpr char kDigits[] = "0123456789abcdef";
  char digits[8];
  for (int i = 0; i < 8; ++i) digits[i] = kDigits[(id >> (28 - 4 * i)) & 15];
  text->append(digits, 8);
}

struct Chunk {
  std::vector<ClickRow> rows;
  std::string text;
};

absl::Status WriteRows(const ClickModel& model, uint64_t first, uint64_t rows, const std::string& path,
                       const std::function<bool(uint64_t)>& on_progress, ClickTruth* truth, uint64_t* bytes) {
  ASSIGN_OR_RETURN(const std::unique_ptr<TextFile> file, TextFile::Create(path));
  std::vector<Chunk> pieces(static_cast<size_t>(std::max(1, ParallelThreads())));
  for (uint64_t done = 0; done < rows;) {
    const uint64_t n = std::min(kChunkRows, rows - done);
    // Each piece is a contiguous part of the chunk, so the file does not depend on the number of threads.
    const auto count = static_cast<int64_t>(pieces.size());
    ParallelFor(count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        Chunk& piece = pieces[static_cast<size_t>(p)];
        piece.rows.clear();
        piece.text.clear();
        const uint64_t stop = n * static_cast<uint64_t>(p + 1) / static_cast<uint64_t>(count);
        for (uint64_t i = n * static_cast<uint64_t>(p) / static_cast<uint64_t>(count); i < stop; ++i) {
          piece.rows.push_back(model.MakeRow(first + done + i));
          AppendCriteoLine(piece.rows.back(), &piece.text);
        }
      }
    });
    for (const Chunk& piece : pieces) {
      for (const ClickRow& row : piece.rows) truth->Add(row);
      RETURN_IF_ERROR(file->Append(piece.text));
      *bytes += piece.text.size();
    }
    done += n;
    if (on_progress && !on_progress(done)) {
      return absl::CancelledError(absl::StrCat(path, ": stopped after ", done, " rows; nothing is left of it"));
    }
  }
  return file->Finish();
}

void AddTruth(const ClickTruth& truth, const std::string& prefix, nlohmann::ordered_json* json) {
  (*json)[prefix + "_rows"] = truth.rows();
  (*json)[prefix + "_positives"] = truth.positives();
  const std::optional<double> auc = truth.Auc();
  (*json)[prefix + "_best_auc"] = auc.has_value() ? nlohmann::ordered_json(*auc) : nlohmann::ordered_json();
  (*json)[prefix + "_best_logloss"] = truth.Logloss();
}

}  // namespace

ClickTruth::ClickTruth() {
  for (std::vector<uint64_t>& counts : counts_) counts.resize(2 * kLogitMax * kLogitSteps + 1);
}

void ClickTruth::Add(const ClickRow& row) {
  ++rows_;
  positives_ += row.label ? 1 : 0;
  ++counts_[row.label ? 1 : 0][static_cast<size_t>(row.logit_steps + kLogitMax * kLogitSteps)];
}

double ClickTruth::Logloss() const {
  if (rows_ == 0) return 0;
  double sum = 0;
  for (size_t i = 0; i < counts_[0].size(); ++i) {
    const double logit = static_cast<double>(i) / kLogitSteps - kLogitMax;
    const double loss_of_0 = std::max(logit, 0.0) + std::log1p(std::exp(-std::abs(logit)));
    sum += static_cast<double>(counts_[0][i]) * loss_of_0 + static_cast<double>(counts_[1][i]) * (loss_of_0 - logit);
  }
  return sum / static_cast<double>(rows_);
}

std::optional<double> ClickTruth::Auc() const {
  const uint64_t negatives = rows_ - positives_;
  if (positives_ == 0 || negatives == 0) return std::nullopt;
  // Over all pairs of a positive and a negative row: how often the positive one has the higher logit.
  double wins = 0;
  double below = 0;  // Negatives of lower logits.
  for (size_t i = 0; i < counts_[0].size(); ++i) {
    const auto here = static_cast<double>(counts_[0][i]);
    wins += static_cast<double>(counts_[1][i]) * (below + here / 2);
    below += here;
  }
  return wins / static_cast<double>(positives_) / static_cast<double>(negatives);
}

void AppendCriteoLine(const ClickRow& row, std::string* text) {
  text->push_back(row.label ? '1' : '0');
  for (int c = 0; c < kClickIntegers; ++c) {
    text->push_back('\t');
    if ((row.integers_missing >> c & 1) == 0) AppendInteger(row.integers[c], text);
  }
  for (int c = 0; c < kClickCategoricals; ++c) {
    text->push_back('\t');
    if ((row.ids_missing >> c & 1) == 0) AppendHex(row.ids[c], text);
  }
  text->push_back('\n');
}

absl::StatusOr<ClickLogResult> WriteClickLog(const ClickLogOptions& options,
                                             const std::function<bool(uint64_t rows)>& on_progress) {
  const ClickModel model(options.seed);
  ClickLogResult result;
  RETURN_IF_ERROR(WriteRows(model, 0, options.rows, options.out, on_progress, &result.train, &result.bytes));
  if (options.test_rows > 0) {
    const auto on_test_progress = [&](uint64_t rows) { return !on_progress || on_progress(options.rows + rows); };
    RETURN_IF_ERROR(WriteRows(model, options.rows, options.test_rows, options.test_out, on_test_progress, &result.test,
                              &result.bytes));
  }

  nlohmann::ordered_json json;
  json["seed"] = options.seed;
  AddTruth(result.train, "train", &json);
  if (options.test_rows > 0) AddTruth(result.test, "test", &json);
  result.truth_path = options.out + ".truth.json";
  RETURN_IF_ERROR(WriteFileAtomically(result.truth_path, json.dump(2) + "\n"));
  return result;
}

}  // namespace sparrow
