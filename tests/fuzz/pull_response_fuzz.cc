// DecodePullResponse and the generated parser agree on every input, however it is cut into slices: the same ones are
// taken, with the same rows and the same rest.

#include <grpcpp/support/slice.h>

#include <string>
#include <vector>

#include "base/check.h"
#include "proto/row_message.h"
#include "tests/fuzz/fuzz_target.h"

namespace sparrow {
namespace {

const std::vector<RowsAsked>& Asked() {
  static const auto& asked = *new std::vector<RowsAsked>{{0, 3, 8}, {1, 0, 4}, {9, 2, 5}};
  return asked;
}
constexpr v1::RowType kType = v1::BFLOAT16;

v1::PullResponse Answer() {
  v1::PullResponse response;
  response.set_version(12345);
  for (const RowsAsked& asked : Asked()) {
    v1::TableRows* table = response.add_tables();
    table->set_table(asked.table);
    table->set_dim(4);
    table->set_rows(std::string(asked.rows * asked.row_bytes, static_cast<char>('a' + asked.table)));
    table->set_row_type(kType);
  }
  return response;
}

bool IsWhatWasAsked(const v1::PullResponse& response) {
  if (response.tables_size() != static_cast<int>(Asked().size())) return false;
  for (size_t i = 0; i < Asked().size(); ++i) {
    const v1::TableRows& table = response.tables(static_cast<int>(i));
    if (table.table() != Asked()[i].table || table.row_type() != kType ||
        table.rows().size() != Asked()[i].rows * Asked()[i].row_bytes) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::vector<std::string> FuzzCorpus() {
  v1::PullResponse pending = Answer();
  pending.mutable_tables(0)->set_pending(std::string("\0\0\0\0\2\0\0\0", 8));
  std::string backwards = Answer().SerializeAsString().substr(3);
  backwards += Answer().SerializeAsString().substr(0, 3);
  return {"", '\5' + Answer().SerializeAsString(), '\0' + pending.SerializeAsString(), '\1' + backwards};
}

}  // namespace sparrow

// The first byte is the size of the slices.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sparrow;
  const size_t slice_bytes = size == 0 || data[0] == 0 ? 1 << 20 : data[0];
  const std::string bytes(reinterpret_cast<const char*>(data) + (size == 0 ? 0 : 1), size == 0 ? 0 : size - 1);
  std::vector<grpc::Slice> slices;
  for (size_t begin = 0; begin < bytes.size(); begin += slice_bytes) {
    slices.emplace_back(bytes.substr(begin, slice_bytes));
  }
  if (slices.empty()) slices.emplace_back();
  v1::PullResponse parsed;
  const bool taken = parsed.ParseFromString(bytes) && IsWhatWasAsked(parsed);

  v1::PullResponse decoded;
  std::vector<std::string> rows;
  for (const RowsAsked& asked : Asked()) rows.emplace_back(asked.rows * asked.row_bytes, '\0');
  const absl::Status status = DecodePullResponse(
      grpc::ByteBuffer(slices.data(), slices.size()), Asked(), kType,
      [&](size_t entry, uint64_t first, uint64_t n, const char* from) {
        const uint64_t row_bytes = Asked()[entry].row_bytes;
        CHECK(first + n <= Asked()[entry].rows);
        rows[entry].replace(first * row_bytes, n * row_bytes, from, n * row_bytes);
      },
      &decoded);
  CHECK_EQ(status.ok(), taken) << status;
  if (!taken) return 0;
  for (size_t i = 0; i < rows.size(); ++i) decoded.mutable_tables(static_cast<int>(i))->set_rows(rows[i]);
  CHECK(decoded.SerializeAsString() == parsed.SerializeAsString());
  return 0;
}
