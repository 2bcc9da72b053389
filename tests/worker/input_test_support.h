#ifndef SPARROW_TESTS_WORKER_INPUT_TEST_SUPPORT_H_
#define SPARROW_TESTS_WORKER_INPUT_TEST_SUPPORT_H_

// Files for the tests of the input, and rows in a form that can be compared.

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tests/support/temp_files.h"
#include "worker/batch_reader.h"

namespace sparrow {

// `bytes` as one gzip member, with `header` unless it is null.
inline std::string Gzip(absl::string_view bytes, gz_header* header = nullptr) {
  z_stream stream = {};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  if (header != nullptr) {
    EXPECT_EQ(deflateSetHeader(&stream, header), Z_OK);
  }
  std::string zipped(deflateBound(&stream, bytes.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(zipped.data());
  stream.avail_out = static_cast<uInt>(zipped.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  zipped.resize(stream.total_out);
  deflateEnd(&stream);
  return zipped;
}

template <typename Message>
Message FromText(const std::string& text) {
  Message message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message)) << text;
  return message;
}

// One row of a batch by value.
struct Row {
  float label = 0;
  std::vector<float> dense;
  std::vector<std::vector<uint64_t>> ids;   // For each feature.
  std::vector<std::vector<float>> weights;  // For each feature; empty where it has none.

  bool operator==(const Row&) const = default;
  friend std::ostream& operator<<(std::ostream& out, const Row& row) {
    return out << "label " << row.label << " dense " << testing::PrintToString(row.dense) << " ids "
               << testing::PrintToString(row.ids);
  }
};

inline std::vector<Row> RowsOf(const Batch& batch) {
  std::vector<Row> rows(batch.rows);
  const size_t dense = batch.rows == 0 ? 0 : batch.dense.size() / batch.rows;
  EXPECT_EQ(batch.labels.size(), batch.rows);
  for (const SparseFeature& feature : batch.features) {
    EXPECT_EQ(feature.offsets.size(), batch.rows + 1u);
    if (feature.offsets.empty()) return rows;
    EXPECT_EQ(feature.offsets.front(), 0u);
    EXPECT_EQ(feature.offsets.back(), feature.ids.size());
    EXPECT_TRUE(feature.weights.empty() || feature.weights.size() == feature.ids.size());
  }
  for (size_t i = 0; i < batch.rows; ++i) {
    Row& row = rows[i];
    row.label = batch.labels[i];
    row.dense.assign(batch.dense.begin() + i * dense, batch.dense.begin() + (i + 1) * dense);
    for (const SparseFeature& feature : batch.features) {
      row.ids.emplace_back(feature.ids.begin() + feature.offsets[i], feature.ids.begin() + feature.offsets[i + 1]);
      row.weights.emplace_back();
      if (feature.weights.empty()) continue;
      row.weights.back().assign(feature.weights.begin() + feature.offsets[i],
                                feature.weights.begin() + feature.offsets[i + 1]);
    }
  }
  return rows;
}

// Everything that a reader gives, batch by batch.
struct ReadBatch {
  uint64_t step = 0;
  uint64_t epoch = 0;
  bool last_in_epoch = false;
  uint64_t rows_in_epoch = 0;
  uint64_t global_rows = 0;
  uint64_t rows_read = 0;
  std::vector<Row> rows;

  bool operator==(const ReadBatch&) const = default;
};

struct ReadAllResult {
  std::vector<ReadBatch> batches;
  absl::Status status;  // Of Open or Next.
  BatchReaderStats stats;

  std::vector<Row> Rows() const {
    std::vector<Row> rows;
    for (const ReadBatch& batch : batches) rows.insert(rows.end(), batch.rows.begin(), batch.rows.end());
    return rows;
  }
};

inline ReadAllResult ReadAll(const BatchReaderOptions& options) {
  ReadAllResult result;
  auto reader = BatchReader::Open(options);
  if (!reader.ok()) {
    result.status = reader.status();
    return result;
  }
  Batch batch;
  for (;;) {
    const absl::StatusOr<bool> more = (*reader)->Next(&batch);
    result.stats = (*reader)->Stats();
    result.status = more.status();
    if (!more.ok() || !*more) return result;
    result.batches.push_back({batch.step, batch.epoch, batch.last_in_epoch, batch.rows_in_epoch, batch.global_rows,
                              batch.rows_read, RowsOf(batch)});
  }
}

// Options for `data` (text of a DataConfig without sources) over the files, with one feature for each name.
inline BatchReaderOptions OptionsFor(const TempFiles& files, const std::string& data,
                                     const std::vector<std::string>& paths, const std::vector<std::string>& features) {
  BatchReaderOptions options;
  options.data_root = files.root();
  options.data = FromText<v1::DataConfig>(data);
  for (const std::string& path : paths) options.source.add_path(path);
  for (const std::string& name : features) options.features.emplace_back().set_name(name);
  options.batch_size = 4;
  return options;
}

inline std::vector<std::string> CriteoFeatures() {
  std::vector<std::string> names;
  for (int i = 1; i <= 26; ++i) names.push_back(absl::StrCat("C", i));
  return names;
}

// Row `n` of a Criteo log without line end; every field depends on n.
inline std::string CriteoLine(uint64_t n, char delimiter = '\t') {
  std::string line = n % 3 == 0 ? "1" : "0";
  for (uint64_t i = 0; i < 13; ++i) {
    line += delimiter;
    if ((n + i) % 7 != 0) absl::StrAppend(&line, static_cast<int64_t>(n * (i + 1)) - 2);
  }
  for (uint64_t i = 0; i < 26; ++i) {
    line += delimiter;
    const uint32_t id = static_cast<uint32_t>((n * 31 + i + 1) * 2654435761u);
    if ((n + i) % 11 != 0) absl::StrAppend(&line, absl::Hex(id, absl::kZeroPad8));
  }
  return line;
}

// The line of the message that a status must have: all parts, in any order.
#define EXPECT_ERROR(status, code_, ...)                                     \
  do {                                                                       \
    const absl::Status error = (status);                                     \
    EXPECT_EQ(error.code(), absl::StatusCode::code_) << error;               \
    for (const std::string& part : std::vector<std::string>{__VA_ARGS__}) {  \
      EXPECT_THAT(std::string(error.message()), testing::HasSubstr(part));   \
    }                                                                        \
    EXPECT_EQ(error.message().find('\n'), absl::string_view::npos) << error; \
  } while (false)

}  // namespace sparrow

#endif  // SPARROW_TESTS_WORKER_INPUT_TEST_SUPPORT_H_
