// A row file is refused, or is the file that a writer makes of the rows read from it.

#include <zlib.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "server/row_file.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/support/temp_files.h"

namespace sparrow {
namespace {

// Sets the four bytes at `at` to what server/row_file.h has there: the masked CRC of all bytes before them.
void RepairCrc(size_t at, std::string* bytes) {
  if (bytes->size() < at + sizeof(uint32_t)) return;
  const auto crc = static_cast<uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(bytes->data()), at));
  const uint32_t masked = ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
  std::memcpy(bytes->data() + at, &masked, sizeof(masked));
}

// Both checksums, wherever damaged lengths have put them: only what has right ones is looked at closely.
void Repair(std::string* bytes) {
  constexpr size_t kFixedBytes = 28;
  if (bytes->size() < kFixedBytes) return;
  uint32_t numbers[5];  // version, dim, record bytes, and the lengths of both names.
  std::memcpy(numbers, bytes->data() + 8, sizeof(numbers));
  RepairCrc(kFixedBytes + (numbers[0] == 2 ? 4 : 0) + (numbers[3] & 0xffff) + (numbers[4] & 0xffff), bytes);
  RepairCrc(bytes->size() - sizeof(uint32_t), bytes);
}

}  // namespace

std::vector<std::string> FuzzCorpus() {
  std::vector<std::string> corpus;
  const TempFiles files;
  for (const RowType storage : {RowType::kFloat32, RowType::kFloat16}) {
    for (const Key rows : {0, 1, 5}) {
      auto writer = RowFileWriter::Create(
          files.Path("rows"), {.table = "table", .dim = 2, .optimizer = "rowwise_adagrad", .storage = storage});
      CHECK(writer.ok()) << writer.status();
      // By ascending bucket, as a file has them.
      std::vector<Key> keys;
      for (Key key = 0; key < rows; ++key) keys.push_back(key);
      std::sort(keys.begin(), keys.end(), [](Key a, Key b) { return BucketOf(a) < BucketOf(b); });
      for (const Key key : keys) {
        const absl::Status appended = (*writer)->Append(key, std::string(12, static_cast<char>(key)));
        CHECK(appended.ok()) << appended;
      }
      const auto finished = (*writer)->Finish();
      CHECK(finished.ok()) << finished.status();
      corpus.push_back('\0' + files.Read("rows"));
      corpus.push_back('\1' + files.Read("rows"));
    }
  }
  return corpus;
}

}  // namespace sparrow

// The first byte says whether to put right checksums in.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sparrow;
  if (size == 0) return 0;
  static const TempFiles files;
  std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 0) Repair(&bytes);
  files.Write("rows", bytes);
  const auto reader = RowFileReader::Open(files.Path("rows"));
  if (!reader.ok()) return 0;
  const auto writer = RowFileWriter::Create(files.Path("copy"), (*reader)->header());
  CHECK(writer.ok()) << writer.status();
  Key key = 0;
  absl::string_view record;
  for (;;) {
    const absl::StatusOr<bool> more = (*reader)->Next(&key, &record);
    if (!more.ok()) return 0;
    if (!*more) break;
    const absl::Status appended = (*writer)->Append(key, record);
    CHECK(appended.ok()) << appended;
  }
  CHECK_EQ((*writer)->rows(), (*reader)->rows());
  const auto finished = (*writer)->Finish();
  CHECK(finished.ok()) << finished.status();
  if ((*reader)->rows() == 0) return 0;  // The size of records that are not there is free.
  CHECK(files.Read("copy") == bytes);
  CHECK_EQ(finished->crc32, (*reader)->crc32());
  return 0;
}
