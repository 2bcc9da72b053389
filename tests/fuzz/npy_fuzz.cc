// A set of .npy files of which one is damaged is rows, or an error of one line, and every row is counted.

#include "base/check.h"
#include "base/npy.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/support/temp_files.h"
#include "worker/batch_reader.h"

namespace sparrow {
namespace {

constexpr uint64_t kRows = 5;

struct Part {
  const char* name;
  NpyType type;
  std::vector<uint64_t> shape;
};
// Two dense columns, and features of one and two ids.
const std::vector<Part>& Parts() {
  static const auto& parts = *new std::vector<Part>{{"set_labels.npy", NpyType::kInt32, {kRows}},
                                                    {"set_dense.npy", NpyType::kFloat32, {kRows, 2}},
                                                    {"set_sparse.npy", NpyType::kInt64, {kRows, 3}}};
  return parts;
}

// What the file of a part is before it is damaged.
std::string Whole(const Part& part) {
  const TempFiles files;
  auto writer = NpyWriter::Create(files.Path(part.name), part.type, part.shape);
  CHECK(writer.ok()) << writer.status();
  uint64_t bytes = NpyTypeBytes(part.type);
  for (const uint64_t extent : part.shape) bytes *= extent;
  const absl::Status appended = (*writer)->Append(std::string(bytes, '\0'));
  CHECK(appended.ok()) << appended;
  const absl::Status closed = (*writer)->Close();
  CHECK(closed.ok()) << closed;
  return files.Read(part.name);
}

BatchReaderOptions Options(const std::string& root) {
  BatchReaderOptions options;
  options.data_root = root;
  options.data.set_dense_transform(v1::DataConfig::IDENTITY);
  options.data.mutable_dlrm_npy()->set_dense_columns(2);
  options.source.add_path("set");
  options.features.resize(2);
  options.features[0].set_name("a");
  options.features[0].set_bag_size(1);
  options.features[1].set_name("b");
  options.features[1].set_bag_size(2);
  options.bounded_rows = {10, 0};
  options.batch_size = 4;
  return options;
}

}  // namespace

std::vector<std::string> FuzzCorpus() {
  std::vector<std::string> corpus;
  for (size_t part = 0; part < Parts().size(); ++part) {
    for (const char skips : {0, 4}) corpus.push_back(static_cast<char>(part + skips) + Whole(Parts()[part]));
  }
  return corpus;
}

}  // namespace sparrow

// The first byte says which file it is and whether rows that do not fit are skipped.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sparrow;
  if (size == 0) return 0;
  static const TempFiles files;
  static const std::vector<std::string>& whole = *new std::vector<std::string>([] {
    std::vector<std::string> made;
    for (const Part& part : Parts()) made.push_back(Whole(part));
    return made;
  }());
  const size_t damaged = data[0] % 4 % Parts().size();
  for (size_t part = 0; part < Parts().size(); ++part) {
    files.Write(Parts()[part].name, part == damaged
                                        ? absl::string_view(reinterpret_cast<const char*>(data) + 1, size - 1)
                                        : absl::string_view(whole[part]));
  }
  BatchReaderOptions options = Options(files.root());
  options.data.set_on_bad_row(data[0] % 8 < 4 ? v1::DataConfig::STOP : v1::DataConfig::SKIP);
  const auto reader = BatchReader::Open(options);
  if (!reader.ok()) {
    CHECK(reader.status().message().find('\n') == absl::string_view::npos) << reader.status();
    return 0;
  }
  Batch batch;
  uint64_t rows = 0;
  for (;;) {
    const absl::StatusOr<bool> more = (*reader)->Next(&batch);
    if (!more.ok()) {
      CHECK(more.status().message().find('\n') == absl::string_view::npos) << more.status();
      return 0;
    }
    if (!*more) break;
    rows += batch.rows;
    CHECK_EQ(batch.dense.size(), batch.rows * 2u);
    for (const SparseFeature& feature : batch.features) CHECK_EQ(feature.offsets.size(), batch.rows + 1u);
    for (const uint64_t id : batch.features[0].ids) CHECK_LT(id, 10u);
  }
  CHECK_EQ(rows + (*reader)->Stats().rows_skipped, kRows);
  return 0;
}
