#include "server/pull_response_encoding.h"

#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/slice.h>

#include <string>
#include <utility>
#include <vector>

namespace sparrow {
namespace {

using google::protobuf::internal::WireFormatLite;

// Smaller rows are copied beside their header: a slice has its own cost.
constexpr size_t kSliceBytesMin = 4096;

void AppendVarint(std::string* out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out->push_back(static_cast<char>(value | 0x80));
  out->push_back(static_cast<char>(value));
}

void AppendTag(std::string* out, int field, WireFormatLite::WireType type) {
  AppendVarint(out, WireFormatLite::MakeTag(field, type));
}

void AppendNumber(std::string* out, int field, uint64_t value) {
  if (value == 0) return;  // As proto3 does.
  AppendTag(out, field, WireFormatLite::WIRETYPE_VARINT);
  AppendVarint(out, value);
}

}  // namespace

grpc::ByteBuffer EncodePullResponse(std::shared_ptr<const v1::PullResponse> response) {
  using Owner = std::shared_ptr<const v1::PullResponse>;
  std::vector<grpc::Slice> slices;
  std::string pending;  // Encoded, and not in a slice yet.
  AppendNumber(&pending, v1::PullResponse::kVersionFieldNumber, response->version());
  for (const v1::TableRows& table : response->tables()) {
    std::string head;
    AppendNumber(&head, v1::TableRows::kTableFieldNumber, table.table());
    AppendNumber(&head, v1::TableRows::kDimFieldNumber, table.dim());
    if (!table.rows().empty()) {
      AppendTag(&head, v1::TableRows::kRowsFieldNumber, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
      AppendVarint(&head, table.rows().size());
    }
    AppendTag(&pending, v1::PullResponse::kTablesFieldNumber, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
    AppendVarint(&pending, head.size() + table.rows().size());
    pending += head;
    if (table.rows().size() < kSliceBytesMin) {
      pending += table.rows();
      continue;
    }
    slices.emplace_back(std::exchange(pending, {}));
    slices.emplace_back(
        const_cast<char*>(table.rows().data()), table.rows().size(),
        [](void* owner) { delete static_cast<Owner*>(owner); }, new Owner(response));
  }
  if (!pending.empty() || slices.empty()) slices.emplace_back(pending);
  return grpc::ByteBuffer(slices.data(), slices.size());
}

}  // namespace sparrow
