#include "worker/npy_source.h"

#include <limits>
#include <span>

#include "base/bytes.h"
#include "base/npy.h"
#include "base/random.h"
#include "tests/worker/input_test_support.h"
#include "worker/batch_builder.h"

namespace sparrow {
namespace {

template <typename T>
void WriteNpy(const std::string& path, NpyType type, const std::vector<uint64_t>& shape, const std::vector<T>& values) {
  auto writer = NpyWriter::Create(path, type, shape);
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE((*writer)->Append(AsBytes(std::span<const T>(values))).ok());
  ASSERT_TRUE((*writer)->Close().ok());
}

// Rows first to last - 1 as a set: dense {n, -n, n / 2}, ids {n} for the first feature, {n + 1, n + 2} for the second.
template <typename Id>
void WriteSet(const TempFiles& files, const std::string& prefix, uint64_t first, uint64_t last, NpyType id_type) {
  std::vector<int32_t> labels;
  std::vector<float> dense;
  std::vector<Id> sparse;
  for (uint64_t n = first; n < last; ++n) {
    labels.push_back(n % 3 == 0);
    for (const float value : {1.0f * n, -1.0f * n, 0.5f * n}) dense.push_back(value);
    for (const uint64_t id : {n, n + 1, n + 2}) sparse.push_back(static_cast<Id>(id));
  }
  const uint64_t rows = last - first;
  WriteNpy(files.Path(prefix + "_labels.npy"), NpyType::kInt32,
           first == 0 ? std::vector<uint64_t>{rows} : std::vector<uint64_t>{rows, 1}, labels);
  WriteNpy(files.Path(prefix + "_dense.npy"), NpyType::kFloat32, {rows, 3}, dense);
  WriteNpy(files.Path(prefix + "_sparse.npy"), id_type, {rows, 3}, sparse);
}

std::vector<Row> ExpectedRows(uint64_t first, uint64_t last) {
  std::vector<Row> rows;
  for (uint64_t n = first; n < last; ++n) {
    rows.push_back({n % 3 == 0 ? 1.0f : 0.0f, {1.0f * n, -1.0f * n, 0.5f * n}, {{n}, {n + 1, n + 2}}, {{}, {}}});
  }
  return rows;
}

BatchReaderOptions NpyOptions(const TempFiles& files, const std::vector<std::string>& prefixes) {
  BatchReaderOptions options =
      OptionsFor(files, "dense_transform: IDENTITY dlrm_npy { dense_columns: 3 }", prefixes, {"a", "b"});
  options.features[1].set_bag_size(2);
  return options;
}

TEST(NpySource, SetsAreOneSequenceSplitOverWorkers) {
  const TempFiles files;
  WriteSet<int32_t>(files, "day_0", 0, 11, NpyType::kInt32);
  WriteSet<int64_t>(files, "day_1", 11, 11, NpyType::kInt64);
  WriteSet<int64_t>(files, "day_2", 11, 30, NpyType::kInt64);
  BatchReaderOptions options = NpyOptions(files, {"day_*"});
  options.epochs = 2;
  options.batch_size = 7;
  const ReadAllResult whole = ReadAll(options);
  ASSERT_TRUE(whole.status.ok()) << whole.status;
  std::vector<Row> expected = ExpectedRows(0, 30);
  const std::vector<Row> once = expected;
  expected.insert(expected.end(), once.begin(), once.end());
  EXPECT_EQ(whole.Rows(), expected);
  options.workers = 3;
  std::vector<ReadAllResult> parts;
  for (options.rank = 0; options.rank < 3; ++options.rank) parts.push_back(ReadAll(options));
  uint64_t bytes = 0;
  for (const ReadAllResult& part : parts) bytes += part.stats.bytes_read;
  EXPECT_EQ(bytes, whole.stats.bytes_read);  // Each row is read by its worker alone.
  for (size_t step = 0; step < whole.batches.size(); ++step) {
    std::vector<Row> joined;
    for (const ReadAllResult& part : parts) {
      ASSERT_EQ(part.batches.size(), whole.batches.size());
      EXPECT_EQ(part.batches[step].last_in_epoch, whole.batches[step].last_in_epoch);
      joined.insert(joined.end(), part.batches[step].rows.begin(), part.batches[step].rows.end());
    }
    EXPECT_EQ(joined, whole.batches[step].rows);
  }
}

TEST(NpySource, RangesResumeAndEpochRows) {
  const TempFiles files;
  WriteSet<int32_t>(files, "d", 0, 5000, NpyType::kInt32);
  BatchReaderOptions options = NpyOptions(files, {"d"});
  options.batch_size = 512;
  options.source.mutable_rows()->set_skip_share(0.1);
  options.source.mutable_rows()->set_take_share(0.5);
  auto reader = BatchReader::Open(options);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ((*reader)->EpochRows(), 2500u);
  EXPECT_EQ(ReadAll(options).Rows(), ExpectedRows(500, 3000));
  options.first_row_in_epoch = 1024;
  options.first_step = 2;
  EXPECT_EQ(ReadAll(options).Rows(), ExpectedRows(1524, 3000));
}

TEST(NpySource, IdsPassAllSixtyFourBits) {
  const TempFiles files;
  WriteNpy<int32_t>(files.Path("d_labels.npy"), NpyType::kInt32, {1}, {1});
  WriteNpy<float>(files.Path("d_dense.npy"), NpyType::kFloat32, {1, 3}, {0, 0, 0});
  WriteNpy<int64_t>(files.Path("d_sparse.npy"), NpyType::kInt64, {1, 3},
                    {-1, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()});
  const ReadAllResult read = ReadAll(NpyOptions(files, {"d"}));
  ASSERT_TRUE(read.status.ok()) << read.status;
  EXPECT_EQ(read.Rows()[0].ids,
            (std::vector<std::vector<uint64_t>>{{~uint64_t{0}}, {uint64_t{1} << 63, (uint64_t{1} << 63) - 1}}));
}

TEST(NpySource, SetsThatDoNotFitAreRefusedByFile) {
  const TempFiles files;
  WriteSet<int32_t>(files, "d", 0, 4, NpyType::kInt32);
  const auto status = [&](auto change) {
    BatchReaderOptions options = NpyOptions(files, {"d"});
    change(&options);
    return ReadAll(options).status;
  };
  EXPECT_TRUE(status([](auto*) {}).ok());
  EXPECT_ERROR(status([](auto* o) { o->source.set_path(0, "absent"); }), kNotFound, "absent_labels.npy", "--data-root");
  EXPECT_ERROR(status([](auto* o) { o->data.mutable_dlrm_npy()->set_dense_columns(13); }), kInvalidArgument,
               "d_dense.npy", "float32 [4, 3]", "[n, 13]");
  EXPECT_ERROR(status([](auto* o) { o->features[1].set_bag_size(3); }), kInvalidArgument, "d_sparse.npy",
               "int32 [4, 3]", "[n, 4]", "bag_size");
  EXPECT_ERROR(status([](auto* o) { o->features[1].set_bag_size(0); }), kInvalidArgument, "\"b\"", "bag_size 0");
  EXPECT_ERROR(status([](auto* o) { o->features[1].set_column("x"); }), kInvalidArgument, "\"b\"", "column \"x\"");
  EXPECT_ERROR(status([](auto* o) {
                 o->bounded_rows = {0, 5};
               }),
               kInvalidArgument, "d_sparse.npy: row 3, column 2", "id 5 ", "\"b\"", "5 rows");
  WriteNpy<float>(files.Path("d_dense.npy"), NpyType::kFloat32, {3, 3}, std::vector<float>(9));
  EXPECT_ERROR(status([](auto*) {}), kInvalidArgument, "d_dense.npy: 3 rows", "d_labels.npy has 4");
  WriteNpy<double>(files.Path("d_dense.npy"), NpyType::kFloat64, {4, 3}, std::vector<double>(12));
  EXPECT_ERROR(status([](auto*) {}), kInvalidArgument, "d_dense.npy: float64 [4, 3]", "expected float32");
  WriteNpy<float>(files.Path("d_dense.npy"), NpyType::kFloat32, {4, 3},
                  {0, 0, 0, 0, 0, std::numeric_limits<float>::quiet_NaN(), 0, 0, 0, 0, 0, 0});
  EXPECT_ERROR(status([](auto*) {}), kInvalidArgument, "d_dense.npy: row 1, column 2", "finite", "nan");
  const ReadAllResult skipped = [&] {
    BatchReaderOptions options = NpyOptions(files, {"d"});
    options.data.set_on_bad_row(v1::DataConfig::SKIP);
    return ReadAll(options);
  }();
  EXPECT_TRUE(skipped.status.ok()) << skipped.status;
  EXPECT_EQ(skipped.Rows().size(), 3u);
  EXPECT_EQ(skipped.stats.rows_skipped, 1u);
  WriteNpy<int32_t>(files.Path("d_labels.npy"), NpyType::kInt32, {4}, {0, 2, 0, 0});
  EXPECT_ERROR(status([](auto*) {}), kInvalidArgument, "d_labels.npy: row 1, column 0", "found 2");
  WriteSet<int32_t>(files, "none", 0, 0, NpyType::kInt32);
  EXPECT_ERROR(status([](auto* o) { o->source.set_path(0, "none"); }), kInvalidArgument, "none_labels.npy", "no rows");
}

// Rows of many blocks, some of which do not fit: by their label, a number, or an id outside its table.
class NpyThreads : public testing::Test {
 protected:
  static constexpr uint64_t kRows = 30'000;
  static constexpr uint64_t kTableRows = 1000;

  static bool IsBad(uint64_t n) { return RandomBits(3, n) % 4000 == 0; }

  NpyThreads() {
    std::vector<int32_t> labels;
    std::vector<float> dense;
    std::vector<int64_t> sparse;
    for (uint64_t n = 0; n < kRows; ++n) {
      const uint64_t why = IsBad(n) ? 1 + n % 3 : 0;
      labels.push_back(why == 1 ? 2 : n % 3 == 0);
      for (const float value : {1.0f * static_cast<float>(n % 1500), -1.5f, 0.25f * static_cast<float>(n)}) {
        dense.push_back(value);
      }
      if (why == 2) dense.back() = std::numeric_limits<float>::infinity();
      for (uint64_t k = 0; k < 3; ++k) sparse.push_back(static_cast<int64_t>(RandomBits(n, k) % kTableRows));
      if (why == 3) sparse.back() = n % 2 == 0 ? -1 : int64_t{kTableRows};
    }
    WriteNpy(files_.Path("d_labels.npy"), NpyType::kInt32, {kRows}, labels);
    WriteNpy(files_.Path("d_dense.npy"), NpyType::kFloat32, {kRows, 3}, dense);
    WriteNpy(files_.Path("d_sparse.npy"), NpyType::kInt64, {kRows, 3}, sparse);
    options_ = NpyOptions(files_, {"d"});
    options_.data.set_dense_transform(v1::DataConfig::LOG1P);
    options_.data.set_on_bad_row(v1::DataConfig::SKIP);
    options_.bounded_rows = {kTableRows, kTableRows};
    options_.features[0].set_modulo(77);
  }

  void ExpectEqualForAllThreads(uint64_t batch_size) {
    options_.batch_size = batch_size;
    options_.threads = 1;
    const ReadAllResult one = ReadAll(options_);
    for (const int threads : {2, 5}) {
      options_.threads = threads;
      const ReadAllResult several = ReadAll(options_);
      EXPECT_EQ(several.status, one.status);
      EXPECT_TRUE(several.batches == one.batches) << batch_size << ", " << threads;
      EXPECT_EQ(several.stats.rows_skipped, one.stats.rows_skipped);
      EXPECT_EQ(several.stats.bytes_read, one.stats.bytes_read);
      EXPECT_EQ(several.stats.first_skipped, one.stats.first_skipped);
    }
  }

  const TempFiles files_;
  BatchReaderOptions options_;
};

TEST_F(NpyThreads, GiveTheBatchesOfOne) {
  for (const uint64_t batch_size : {1000u, 9999u, 65536u}) ExpectEqualForAllThreads(batch_size);
}

TEST_F(NpyThreads, LeaveOutTheRowsThatDoNotFitAndNoOthers) {
  options_.batch_size = 7000;
  options_.threads = 3;
  const ReadAllResult read = ReadAll(options_);
  ASSERT_TRUE(read.status.ok()) << read.status;
  const std::vector<Row> rows = read.Rows();
  size_t at = 0;
  for (uint64_t n = 0; n < kRows; ++n) {
    if (IsBad(n)) continue;
    ASSERT_LT(at, rows.size());
    const Row& row = rows[at++];
    ASSERT_EQ(row.label, n % 3 == 0 ? 1.0f : 0.0f);
    ASSERT_EQ(row.dense[0], Log1pOf(static_cast<double>(n % 1500)));
    ASSERT_EQ(row.dense[1], 0.0f);
    ASSERT_EQ(row.dense[2], Log1pOf(0.25 * static_cast<double>(n)));
    ASSERT_EQ(row.ids[0][0], FoldId(RandomBits(n, 0) % kTableRows, 77));
    ASSERT_EQ(row.ids[1], (std::vector<uint64_t>{RandomBits(n, 1) % kTableRows, RandomBits(n, 2) % kTableRows}));
  }
  EXPECT_EQ(at, rows.size());
  EXPECT_GT(read.stats.rows_skipped, 0u);
}

TEST_F(NpyThreads, NameTheFirstRowThatDoesNotFit) {
  options_.data.set_on_bad_row(v1::DataConfig::STOP);
  ExpectEqualForAllThreads(kRows);
  uint64_t first = 0;
  while (!IsBad(first)) ++first;
  EXPECT_ERROR(ReadAll(options_).status, kInvalidArgument, absl::StrCat(": row ", first, ", column "));
}

}  // namespace
}  // namespace sparrow
