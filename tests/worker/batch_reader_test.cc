#include "worker/batch_reader.h"

#include <atomic>
#include <thread>

#include "tests/worker/input_test_support.h"

namespace sparrow {
namespace {

// The rows [first, last) as a headerless file: label, one dense number that is the row's own, one id, one bag.
std::string NumberedRows(uint64_t first, uint64_t last) {
  std::string text;
  for (uint64_t n = first; n < last; ++n) {
    absl::StrAppend(&text, n % 2, "\t", n, "\t", n * 1000003, "\t");
    for (uint64_t i = 0; i < n % 4; ++i) absl::StrAppend(&text, i == 0 ? "" : "|", n + i);
    text += "\n";
  }
  return text;
}

constexpr char kNumbered[] = R"(
  dense_transform: IDENTITY
  text {
    columns { name: "y" label {} }
    columns { name: "n" dense {} }
    columns { name: "id" categorical {} }
    columns { name: "bag" categorical { separator: "|" } }
  })";

std::vector<Row> ExpectedRows(uint64_t first, uint64_t last) {
  std::vector<Row> rows;
  for (uint64_t n = first; n < last; ++n) {
    Row row{static_cast<float>(n % 2), {static_cast<float>(n)}, {{n * 1000003}, {}}, {{}, {}}};
    for (uint64_t i = 0; i < n % 4; ++i) row.ids[1].push_back(n + i);
    rows.push_back(row);
  }
  return rows;
}

class Numbered {
 public:
  // Rows 0 to rows - 1 in `count` files of unequal sizes; with three files or more the second is empty.
  Numbered(uint64_t rows, size_t count) {
    uint64_t first = 0;
    for (size_t i = 0; i < count; ++i) {
      const uint64_t last = i + 1 == count ? rows : (i == 1 && count > 2) ? first : std::min(rows, first + 3 + 7 * i);
      paths_.push_back(absl::StrCat("part_", i));
      files_.Write(paths_.back(), NumberedRows(first, last));
      first = last;
    }
  }
  BatchReaderOptions Options() const { return OptionsFor(files_, kNumbered, paths_, {"id", "bag"}); }
  const TempFiles& files() const { return files_; }

 private:
  TempFiles files_;
  std::vector<std::string> paths_;
};

// Step by step, the parts of all workers in order of rank are the batch of one worker, `whole`.
void ExpectSplitEqualsWhole(BatchReaderOptions options, const ReadAllResult& whole, uint32_t workers) {
  std::vector<ReadAllResult> parts;
  for (uint32_t rank = 0; rank < workers; ++rank) {
    options.workers = workers;
    options.rank = rank;
    parts.push_back(ReadAll(options));
    ASSERT_TRUE(parts.back().status.ok()) << parts.back().status;
    ASSERT_EQ(parts.back().batches.size(), whole.batches.size());
  }
  for (size_t step = 0; step < whole.batches.size(); ++step) {
    ReadBatch joined = whole.batches[step];
    joined.rows.clear();
    joined.rows_read = 0;
    for (const ReadAllResult& part : parts) {
      const ReadBatch& batch = part.batches[step];
      EXPECT_EQ(batch.step, joined.step);
      EXPECT_EQ(batch.epoch, joined.epoch);
      EXPECT_EQ(batch.last_in_epoch, joined.last_in_epoch);
      EXPECT_EQ(batch.rows_in_epoch, joined.rows_in_epoch);
      EXPECT_EQ(batch.global_rows, joined.global_rows);
      joined.rows.insert(joined.rows.end(), batch.rows.begin(), batch.rows.end());
      joined.rows_read += batch.rows_read;
    }
    EXPECT_EQ(joined, whole.batches[step]) << "step " << step;
  }
}

TEST(BatchReader, EveryRowIsInExactlyOnePartWhateverFilesWorkersAndBatchSize) {
  constexpr uint64_t kRows = 23;
  for (const size_t files : {1, 2, 5}) {
    const Numbered input(kRows, files);
    for (const uint64_t batch_size : {1, 3, 8, 1000}) {
      BatchReaderOptions options = input.Options();
      options.batch_size = batch_size;
      const ReadAllResult whole = ReadAll(options);
      ASSERT_TRUE(whole.status.ok()) << whole.status;
      EXPECT_EQ(whole.Rows(), ExpectedRows(0, kRows));
      EXPECT_EQ(whole.batches.size(), (kRows + batch_size - 1) / batch_size);
      EXPECT_TRUE(whole.batches.back().last_in_epoch);
      EXPECT_EQ(whole.batches.back().rows_in_epoch, kRows);
      for (const uint32_t workers : {2, 3, 4, 7}) {
        SCOPED_TRACE(absl::StrCat(files, " files, batch ", batch_size, ", ", workers, " workers"));
        ExpectSplitEqualsWhole(options, whole, workers);
      }
    }
  }
}

// Five rows, batches of two, two workers: the last step has a part without rows.
TEST(BatchReader, APartWithoutRowsIsABatchLikeAnyOther) {
  const Numbered input(5, 1);
  BatchReaderOptions options = input.Options();
  options.batch_size = 2;
  options.workers = 2;
  options.rank = 1;
  const ReadAllResult read = ReadAll(options);
  ASSERT_TRUE(read.status.ok()) << read.status;
  ASSERT_EQ(read.batches.size(), 3u);
  EXPECT_EQ(read.batches[2].rows.size(), 0u);
  EXPECT_EQ(read.batches[2].global_rows, 1u);
  EXPECT_TRUE(read.batches[2].last_in_epoch);
  EXPECT_EQ(read.stats.rows_read, 2u);
}

TEST(BatchReader, PartOfAGlobalBatchIsByItsFullSize) {
  const Numbered input(10, 1);
  BatchReaderOptions options = input.Options();
  options.batch_size = 10;
  options.workers = 4;
  std::vector<size_t> sizes;
  for (options.rank = 0; options.rank < 4; ++options.rank) sizes.push_back(ReadAll(options).Rows().size());
  EXPECT_EQ(sizes, (std::vector<size_t>{2, 3, 2, 3}));  // Cuts at 0, 2, 5, 7, 10.
}

TEST(BatchReader, EpochsRepeatTheRowsAndStepsGoOn) {
  const Numbered input(7, 2);
  BatchReaderOptions options = input.Options();
  options.batch_size = 3;
  options.epochs = 3;
  const ReadAllResult read = ReadAll(options);
  ASSERT_TRUE(read.status.ok()) << read.status;
  ASSERT_EQ(read.batches.size(), 9u);
  for (size_t i = 0; i < 9; ++i) {
    EXPECT_EQ(read.batches[i].step, i);
    EXPECT_EQ(read.batches[i].epoch, i / 3);
    EXPECT_EQ(read.batches[i].last_in_epoch, i % 3 == 2);
    EXPECT_EQ(read.batches[i].rows, read.batches[i % 3].rows);
  }
  EXPECT_EQ(read.stats.rows_read, 21u);
  EXPECT_EQ(read.stats.rows_skipped, 0u);
  EXPECT_EQ(read.stats.bytes_read, 3 * NumberedRows(0, 7).size());
}

TEST(BatchReader, ResumingFromAnyCursorGivesTheRestOfTheRun) {
  for (const bool share : {false, true}) {
    const Numbered input(17, 5);
    BatchReaderOptions options = input.Options();
    options.batch_size = 5;
    options.epochs = 2;
    if (share) options.source.mutable_rows()->set_take_share(0.7);  // 12 rows.
    options.workers = 2;
    options.rank = 1;
    const ReadAllResult all = ReadAll(options);
    ASSERT_TRUE(all.status.ok()) << all.status;
    ASSERT_EQ(all.batches.size(), share ? 6u : 8u);
    for (size_t done = 0; done <= all.batches.size(); ++done) {
      BatchReaderOptions resumed = options;
      resumed.first_step = done;
      if (done > 0) {
        resumed.first_epoch = all.batches[done - 1].epoch;
        resumed.first_row_in_epoch = all.batches[done - 1].rows_in_epoch;
      }
      const ReadAllResult rest = ReadAll(resumed);
      ASSERT_TRUE(rest.status.ok()) << rest.status;
      EXPECT_EQ(rest.batches, std::vector<ReadBatch>(all.batches.begin() + done, all.batches.end())) << done;
    }
  }
}

TEST(BatchReader, ACursorBeyondTheInputIsAnError) {
  const Numbered input(10, 1);
  BatchReaderOptions options = input.Options();
  options.first_row_in_epoch = 11;
  EXPECT_ERROR(ReadAll(options).status, kInvalidArgument, "11 rows", "only 10", "part_0");
}

TEST(BatchReader, RowRangesCutTheSequenceNotTheFiles) {
  const Numbered input(40, 5);
  const struct {
    const char* range;
    uint64_t first;
    uint64_t last;
  } cases[] = {{"skip_rows: 7", 7, 40},
               {"take_rows: 9", 0, 9},
               {"skip_rows: 7 take_rows: 9", 7, 16},
               {"skip_rows: 39 take_rows: 9", 39, 40},
               {"take_share: 0.9", 0, 36},
               {"skip_share: 0.9", 36, 40},
               {"skip_share: 0.5 take_share: 0.25", 20, 30},
               {"skip_rows: 1 take_share: 0.1", 1, 5},
               {"skip_share: 0.1 take_rows: 1", 4, 5},
               {"take_share: 0.0126", 0, 1},
               {"take_share: 1", 0, 40}};
  for (const auto& test : cases) {
    BatchReaderOptions options = input.Options();
    *options.source.mutable_rows() = FromText<v1::RowRange>(test.range);
    const ReadAllResult read = ReadAll(options);
    ASSERT_TRUE(read.status.ok()) << read.status;
    EXPECT_EQ(read.Rows(), ExpectedRows(test.first, test.last)) << test.range;
    ExpectSplitEqualsWhole(options, read, 3);
  }
}

TEST(BatchReader, RangesThatLeaveNoRowOrMakeNoSenseAreErrors) {
  const Numbered input(40, 2);
  const std::pair<const char*, const char*> cases[] = {{"skip_rows: 40", "leaves no row"},
                                                       {"skip_rows: 4000", "leaves no row"},
                                                       {"take_rows: 0", "leaves no row"},
                                                       {"skip_share: 1", "leaves no row of 40 rows"},
                                                       {"take_share: 0.01", "leaves no row"},
                                                       {"take_share: 1.5", "take_share is 1.5, expected 0 to 1"},
                                                       {"skip_share: -0.5", "skip_share is -0.5"},
                                                       {"skip_share: nan", "skip_share is nan"},
                                                       {"skip_rows: 1 skip_share: 0.5", "remove one"},
                                                       {"take_rows: 1 take_share: 0.5", "remove one"}};
  for (const auto& [range, message] : cases) {
    BatchReaderOptions options = input.Options();
    *options.source.mutable_rows() = FromText<v1::RowRange>(range);
    EXPECT_ERROR(ReadAll(options).status, kInvalidArgument, message);
  }
}

TEST(BatchReader, EpochRowsAreKnownWhereTheyMustBe) {
  const Numbered input(40, 2);
  BatchReaderOptions options = input.Options();
  options.batch_size = 100;
  auto reader = BatchReader::Open(options);
  ASSERT_TRUE(reader.ok());
  Batch batch;
  ASSERT_TRUE(*(*reader)->Next(&batch));
  EXPECT_EQ((*reader)->EpochRows(), 40u);  // The epoch has ended.
  options.source.mutable_rows()->set_skip_share(0.75);
  reader = BatchReader::Open(options);
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ((*reader)->EpochRows(), 10u);
  EXPECT_EQ((*reader)->DenseColumns(), 1u);
  EXPECT_EQ((*reader)->files().size(), 2u);
}

TEST(BatchReader, GzipReadsAsPlain) {
  const TempFiles files;
  const std::string a = NumberedRows(0, 20000);
  const std::string b = NumberedRows(20000, 20100);
  files.Write("a", a);
  files.Write("b", b);
  files.Write("a.gz", Gzip(a.substr(0, 1000)) + Gzip(a.substr(1000)));
  files.Write("b_zipped", Gzip(b));  // Known by its magic number.
  BatchReaderOptions plain = OptionsFor(files, kNumbered, {"a", "b"}, {"id", "bag"});
  plain.batch_size = 1000;
  plain.source.mutable_rows()->set_take_share(0.999);
  BatchReaderOptions zipped = plain;
  zipped.source.clear_path();
  zipped.source.add_path("a.gz");
  zipped.source.add_path("b_zipped");
  const ReadAllResult from_plain = ReadAll(plain);
  const ReadAllResult from_zipped = ReadAll(zipped);
  ASSERT_TRUE(from_plain.status.ok()) << from_plain.status;
  ASSERT_TRUE(from_zipped.status.ok()) << from_zipped.status;
  EXPECT_EQ(from_plain.batches, from_zipped.batches);
  EXPECT_EQ(from_plain.Rows().size(), 20080u);
}

TEST(BatchReader, AFileThatBreaksOffIsAnErrorAfterTheBatchesBeforeIt) {
  const TempFiles files;
  const std::string zipped = Gzip(NumberedRows(0, 60000));
  files.Write("a.gz", zipped.substr(0, zipped.size() - 100));
  BatchReaderOptions options = OptionsFor(files, kNumbered, {"a.gz"}, {"id", "bag"});
  options.batch_size = 10000;
  options.epochs = 2;
  const ReadAllResult read = ReadAll(options);
  EXPECT_ERROR(read.status, kDataLoss, files.Path("a.gz"), "cut off");
  EXPECT_EQ(read.batches.size(), 5u);
}

TEST(BatchReader, BadRowsAreSkippedCountedAndCapped) {
  const TempFiles files;
  std::string text;
  for (uint64_t n = 0; n < 30; ++n) text += n % 10 == 3 ? "1\tbad\t1\t\n" : NumberedRows(n, n + 1);
  files.Write("f", text);
  BatchReaderOptions options = OptionsFor(files, kNumbered, {"f"}, {"id", "bag"});
  EXPECT_ERROR(ReadAll(options).status, kInvalidArgument, absl::StrCat(files.Path("f"), ":4:2 (n)"), "found \"bad\"");

  options.data.set_on_bad_row(v1::DataConfig::SKIP);
  options.epochs = 2;
  for (const uint32_t workers : {1, 2, 3}) {
    options.workers = workers;
    uint64_t read_rows = 0;
    uint64_t skipped = 0;
    std::vector<Row> rows;
    for (options.rank = 0; options.rank < workers; ++options.rank) {
      const ReadAllResult read = ReadAll(options);
      ASSERT_TRUE(read.status.ok()) << read.status;
      read_rows += read.stats.rows_read;
      skipped += read.stats.rows_skipped;
      for (const ReadBatch& batch : read.batches) EXPECT_LE(batch.rows.size(), batch.rows_read);
      const std::vector<Row> part = read.Rows();
      rows.insert(rows.end(), part.begin(), part.end());
      if (workers == 1) {
        EXPECT_THAT(read.stats.first_skipped, testing::HasSubstr("f:4:2"));
      }
    }
    EXPECT_EQ(read_rows, 60u);
    EXPECT_EQ(skipped, 6u);
    ASSERT_EQ(rows.size(), 54u);
    std::vector<float> numbers;
    for (const Row& row : rows) numbers.push_back(row.dense[0]);
    std::vector<float> expected;
    for (int n = 0; n < 60; ++n) {
      if (n % 10 != 3) expected.push_back(static_cast<float>(n % 30));
    }
    EXPECT_THAT(numbers, testing::UnorderedElementsAreArray(expected));
  }
  options.workers = 1;
  options.rank = 0;
  options.data.set_bad_rows_max(3);  // A pass has three.
  EXPECT_TRUE(ReadAll(options).status.ok());
  options.data.set_bad_rows_max(2);
  EXPECT_ERROR(ReadAll(options).status, kInvalidArgument, "f:24:2", "bad row 3", "bad_rows_max is 2", "f:4:2");
}

TEST(BatchReader, AnInputOfBadRowsAloneIsAnErrorEvenWhereTheyMayBeSkipped) {
  const TempFiles files;
  files.Write("f", "a,b\nc,d\n");
  BatchReaderOptions options = OptionsFor(files, kNumbered, {"f"}, {"id", "bag"});
  options.data.set_on_bad_row(v1::DataConfig::SKIP);
  EXPECT_ERROR(ReadAll(options).status, kInvalidArgument, "none of the 2 rows", "f:1: 1 field, expected 4");
}

TEST(BatchReader, EndsCleanlyWheneverItIsDestroyed) {
  const Numbered input(3000, 5);
  for (int batches = 0; batches < 12; ++batches) {
    BatchReaderOptions options = input.Options();
    options.batch_size = 7;
    options.epochs = 1000;
    options.queue_batches_max = 1 + batches % 3;
    auto reader = BatchReader::Open(options);
    ASSERT_TRUE(reader.ok());
    Batch batch;
    for (int i = 0; i < batches; ++i) ASSERT_TRUE(*(*reader)->Next(&batch));
    reader->reset();  // Its thread is parsing, or waits for room.
  }
}

TEST(BatchReader, CancellationEndsNextAndOpen) {
  const Numbered input(3000, 5);
  std::atomic<bool> cancelled = false;
  BatchReaderOptions options = input.Options();
  options.epochs = 1000000000;
  options.cancelled = [&cancelled] { return cancelled.load(); };
  auto reader = BatchReader::Open(options);
  ASSERT_TRUE(reader.ok());
  Batch batch;
  ASSERT_TRUE(*(*reader)->Next(&batch));
  cancelled = true;
  absl::StatusOr<bool> more = true;
  while (more.ok()) more = (*reader)->Next(&batch);
  EXPECT_EQ(more.status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ((*reader)->Next(&batch).status(), more.status());  // Final.
  EXPECT_EQ(BatchReader::Open(options).status().code(), absl::StatusCode::kCancelled);
}

TEST(BatchReader, StatsCanBeReadWhileAnotherThreadReads) {
  const Numbered input(3000, 2);
  auto reader = BatchReader::Open(input.Options());
  ASSERT_TRUE(reader.ok());
  std::atomic<bool> done = false;
  std::thread watcher([&] {
    uint64_t last = 0;
    while (!done) {
      const uint64_t now = (*reader)->Stats().rows_read + (*reader)->EpochRows() * 0;
      EXPECT_GE(now, last);
      last = now;
    }
  });
  Batch batch;
  while (*(*reader)->Next(&batch)) {
  }
  done = true;
  watcher.join();
  EXPECT_EQ((*reader)->Stats().rows_read, 3000u);
}

TEST(BatchReader, MemoryOfBatchesIsReused) {
  const Numbered input(64, 1);
  BatchReaderOptions options = input.Options();
  options.batch_size = 64;
  options.epochs = 50;
  options.queue_batches_max = 1;
  auto reader = BatchReader::Open(options);
  ASSERT_TRUE(reader.ok());
  Batch batch;
  std::vector<const float*> buffers;
  while (*(*reader)->Next(&batch)) {
    if (std::find(buffers.begin(), buffers.end(), batch.dense.data()) == buffers.end()) {
      buffers.push_back(batch.dense.data());
    }
  }
  EXPECT_LE(buffers.size(), 5u);  // In the queue, on both sides of it, spare; one more made before the first came back.
}

TEST(BatchReader, OptionsThatMakeNoSenseAreErrors) {
  const Numbered input(4, 1);
  const auto status = [&](auto change) {
    BatchReaderOptions options = input.Options();
    change(&options);
    return ReadAll(options).status;
  };
  EXPECT_ERROR(status([](auto* o) { o->batch_size = 0; }), kInvalidArgument, "batch_size is 0");
  EXPECT_ERROR(status([](auto* o) { o->batch_size = 1 << 25; }), kInvalidArgument, "batch_size is 33554432");
  EXPECT_ERROR(status([](auto* o) { o->rank = 1; }), kInvalidArgument, "rank is 1 of 1");
  EXPECT_ERROR(status([](auto* o) { o->workers = 0; }), kInvalidArgument, "0 workers");
  EXPECT_ERROR(status([](auto* o) { o->bounded_rows = {1}; }), kInvalidArgument, "1 entries for 2 features");
  EXPECT_ERROR(status([](auto* o) { o->features[0].set_modulo(0); }), kInvalidArgument, "\"id\"", "modulo is 0");
  EXPECT_ERROR(status([](auto* o) { o->features[0].set_bag_size(2); }), kInvalidArgument, "\"id\"", "bag_size");
  // The hash range of the data and the table of the model disagree: refused before the first step.
  EXPECT_ERROR(status([](auto* o) {
                 o->features[0].set_modulo(11);
                 o->bounded_rows = {10, 0};
               }),
               kInvalidArgument, "\"id\"", "modulo 11", "10 rows");
}

TEST(BatchReader, FilesAreFoundByPatternSortedAndConfined) {
  const TempFiles files;
  files.Write("b_2", NumberedRows(20, 25));
  files.Write("b_1", NumberedRows(0, 20));
  BatchReaderOptions options = OptionsFor(files, kNumbered, {"b_*"}, {"id", "bag"});
  EXPECT_EQ(ReadAll(options).Rows(), ExpectedRows(0, 25));
  const auto status = [&](std::vector<std::string> paths) {
    return ReadAll(OptionsFor(files, kNumbered, paths, {"id", "bag"})).status;
  };
  EXPECT_ERROR(status({"absent"}), kNotFound, "absent", "--data-root", files.root());
  EXPECT_ERROR(status({"absent_*"}), kNotFound, "absent_*", "no file matches");
  EXPECT_ERROR(status({"../etc/passwd"}), kPermissionDenied, "../etc/passwd");
  EXPECT_ERROR(status({"/etc/passwd"}), kPermissionDenied, "/etc/passwd");
  EXPECT_ERROR(status({"."}), kInvalidArgument, "is a directory");
  EXPECT_ERROR(status({"b_1", "b_*"}), kInvalidArgument, "b_1", "named twice");
  EXPECT_ERROR(status({}), kInvalidArgument, "no path");
  EXPECT_ERROR(status({""}), kInvalidArgument, "path is empty");
}

TEST(BatchReader, EmptyFilesAreLegalAmongOthersAndAnErrorAlone) {
  const TempFiles files;
  files.Write("empty", "");
  files.Write("rows", NumberedRows(0, 3));
  EXPECT_EQ(ReadAll(OptionsFor(files, kNumbered, {"empty", "rows"}, {"id", "bag"})).Rows(), ExpectedRows(0, 3));
  EXPECT_ERROR(ReadAll(OptionsFor(files, kNumbered, {"empty"}, {"id", "bag"})).status, kInvalidArgument,
               files.Path("empty"), "no rows");

  std::string with_header = kNumbered;
  with_header.replace(with_header.find("text {"), 6, "text { header: true");
  files.Write("header", "y\tn\tid\tbag\n");
  files.Write("header_rows", "bag\tid\tother\tn\ty\n7|8\t1000003\tx\t1\t1");
  const ReadAllResult read = ReadAll(OptionsFor(files, with_header, {"header", "empty", "header_rows"}, {"id", "bag"}));
  ASSERT_TRUE(read.status.ok()) << read.status;
  ASSERT_EQ(read.Rows().size(), 1u);
  EXPECT_EQ(read.Rows()[0], (Row{1, {1}, {{1000003}, {7, 8}}, {{}, {}}}));
  EXPECT_ERROR(ReadAll(OptionsFor(files, with_header, {"header", "empty"}, {"id", "bag"})).status, kInvalidArgument,
               "no rows", "header only");
}

TEST(BatchReader, ABatchLargerThanTheInputIsOneShortBatch) {
  const Numbered input(100, 1);
  BatchReaderOptions options = input.Options();
  options.batch_size = 1000000;
  const ReadAllResult read = ReadAll(options);
  ASSERT_TRUE(read.status.ok()) << read.status;
  ASSERT_EQ(read.batches.size(), 1u);
  EXPECT_EQ(read.batches[0].rows, ExpectedRows(0, 100));
}

TEST(BatchReader, AFileThatChangesBetweenEpochsIsNoticed) {
  const Numbered input(40, 1);
  BatchReaderOptions options = input.Options();
  options.epochs = 1000;
  options.queue_batches_max = 1;
  auto reader = BatchReader::Open(options);
  ASSERT_TRUE(reader.ok());
  Batch batch;
  while (!batch.last_in_epoch) ASSERT_TRUE(*(*reader)->Next(&batch));
  input.files().Write("new", NumberedRows(0, 30));
  std::filesystem::rename(input.files().Path("new"), input.files().Path("part_0"));
  absl::StatusOr<bool> more = true;
  while (more.ok() && *more) more = (*reader)->Next(&batch);
  EXPECT_ERROR(more.status(), kDataLoss, "40", "30", "changed");
}

}  // namespace
}  // namespace sparrow
