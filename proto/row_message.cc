#include "proto/row_message.h"

#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/slice.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/check.h"

namespace sparrow {
namespace {

using google::protobuf::internal::WireFormatLite;

// ------------------------------------------------------------------------------------------------------- writing

// Smaller fields are copied beside what is around them: a slice has its own cost.
constexpr size_t kSliceBytesMin = 4096;

void AppendVarint(std::string* out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out->push_back(static_cast<char>(value | 0x80));
  out->push_back(static_cast<char>(value));
}

void AppendNumber(std::string* out, int field, uint64_t value) {
  if (value == 0) return;  // As proto3 does.
  AppendVarint(out, WireFormatLite::MakeTag(field, WireFormatLite::WIRETYPE_VARINT));
  AppendVarint(out, value);
}

// Of a `bytes` field that is not empty, or of a message: what comes before its bytes.
void AppendLength(std::string* out, int field, uint64_t bytes) {
  AppendVarint(out, WireFormatLite::MakeTag(field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED));
  AppendVarint(out, bytes);
}

void AppendBytes(std::string* out, int field, absl::string_view bytes) {
  if (bytes.empty()) return;
  AppendLength(out, field, bytes.size());
  out->append(bytes.data(), bytes.size());
}

// Encoded bytes, and large fields by reference.
class SliceWriter {
 public:
  std::string* text() { return &text_; }

  void Append(absl::string_view bytes, const std::shared_ptr<const void>& owner) {
    if (bytes.size() < kSliceBytesMin) {
      text_.append(bytes.data(), bytes.size());
      return;
    }
    Flush();
    slices_.emplace_back(
        const_cast<char*>(bytes.data()), bytes.size(),
        [](void* held) { delete static_cast<std::shared_ptr<const void>*>(held); },
        new std::shared_ptr<const void>(owner));
  }

  grpc::ByteBuffer Finish() {
    if (!text_.empty() || slices_.empty()) Flush();
    return grpc::ByteBuffer(slices_.data(), slices_.size());
  }

 private:
  void Flush() {
    slices_.emplace_back(text_);
    text_.clear();
  }

  std::string text_;  // Encoded, and not in a slice yet.
  std::vector<grpc::Slice> slices_;
};

// ------------------------------------------------------------------------------------------------------- reading

// Walks over the slices of a message.
class SliceReader {
 public:
  explicit SliceReader(std::span<const grpc::Slice> slices) : slices_(slices) {
    for (const grpc::Slice& slice : slices) left_ += slice.size();
    Enter();
  }

  uint64_t left() const { return left_; }

  bool Varint(uint64_t* value) {
    *value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (left_ == 0) return false;
      const auto byte = static_cast<uint8_t>(*at_);
      Advance(1);
      *value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  // The next bytes that lie together, at most n. REQUIRES: n > 0, n <= left().
  absl::string_view Take(uint64_t n) {
    const absl::string_view bytes(at_, static_cast<size_t>(std::min<uint64_t>(n, end_ - at_)));
    Advance(bytes.size());
    return bytes;
  }

 private:
  void Advance(size_t n) {
    at_ += n;
    left_ -= n;
    if (at_ == end_) Enter();
  }
  // Goes on to the next slice that has bytes.
  void Enter() {
    while (at_ == end_ && next_ < slices_.size()) {
      at_ = reinterpret_cast<const char*>(slices_[next_].begin());
      end_ = at_ + slices_[next_].size();
      ++next_;
    }
  }

  const std::span<const grpc::Slice> slices_;
  size_t next_ = 0;
  const char* at_ = nullptr;
  const char* end_ = nullptr;
  uint64_t left_ = 0;
};

// Gives `rows` rows of row_bytes each to the sink, whole: a row that lies in several slices is put together first.
void ReadRows(SliceReader* reader, size_t entry, const RowsAsked& asked, RowSink sink) {
  std::string torn;
  for (uint64_t row = 0; row < asked.rows;) {
    const absl::string_view bytes =
        reader->Take(torn.empty() ? (asked.rows - row) * asked.row_bytes : asked.row_bytes - torn.size());
    size_t used = 0;
    if (torn.empty()) {
      const uint64_t whole = bytes.size() / asked.row_bytes;
      if (whole > 0) sink(entry, row, whole, bytes.data());
      row += whole;
      used = whole * asked.row_bytes;
    }
    torn.append(bytes.data() + used, bytes.size() - used);
    if (torn.size() == asked.row_bytes) {
      sink(entry, row, 1, torn.data());
      ++row;
      torn.clear();
    }
  }
}

// One TableRows whose fields stand in order, each once, and are what was asked for. False: it is something else.
bool ReadTable(SliceReader* reader, uint64_t end /*left() at its end*/, size_t entry, const RowsAsked& asked,
               v1::RowType type, RowSink sink, v1::TableRows* head) {
  uint64_t last = 0;
  bool with_rows = false;
  while (reader->left() > end) {
    uint64_t tag, value;
    if (!reader->Varint(&tag) || tag >> 3 <= last || !reader->Varint(&value) || reader->left() < end) return false;
    last = tag >> 3;
    switch (tag) {
      case WireFormatLite::MakeTag(v1::TableRows::kTableFieldNumber, WireFormatLite::WIRETYPE_VARINT):
        head->set_table(static_cast<uint32_t>(value));
        break;
      case WireFormatLite::MakeTag(v1::TableRows::kDimFieldNumber, WireFormatLite::WIRETYPE_VARINT):
        head->set_dim(static_cast<uint32_t>(value));
        break;
      case WireFormatLite::MakeTag(v1::TableRows::kRowsFieldNumber, WireFormatLite::WIRETYPE_LENGTH_DELIMITED):
        if (asked.rows == 0 || value / asked.row_bytes != asked.rows || value % asked.row_bytes != 0 ||
            value > reader->left() - end) {
          return false;
        }
        ReadRows(reader, entry, asked, sink);
        with_rows = true;
        break;
      case WireFormatLite::MakeTag(v1::TableRows::kRowTypeFieldNumber, WireFormatLite::WIRETYPE_VARINT):
        head->set_row_type(static_cast<v1::RowType>(value));
        break;
      case WireFormatLite::MakeTag(v1::TableRows::kPendingFieldNumber, WireFormatLite::WIRETYPE_LENGTH_DELIMITED):
        if (value > reader->left() - end) return false;
        for (uint64_t left = value; left > 0;) {
          const absl::string_view bytes = reader->Take(left);
          head->mutable_pending()->append(bytes.data(), bytes.size());
          left -= bytes.size();
        }
        break;
      default:
        return false;
    }
  }
  return head->table() == asked.table && head->row_type() == type && with_rows == (asked.rows > 0);
}

bool ReadCanonical(std::span<const grpc::Slice> slices, std::span<const RowsAsked> asked, v1::RowType type,
                   RowSink sink, v1::PullResponse* head) {
  SliceReader reader(slices);
  size_t entry = 0;
  for (bool first = true; reader.left() > 0; first = false) {
    uint64_t tag, value;
    if (!reader.Varint(&tag) || !reader.Varint(&value)) return false;
    if (first &&
        tag == WireFormatLite::MakeTag(v1::PullResponse::kVersionFieldNumber, WireFormatLite::WIRETYPE_VARINT)) {
      head->set_version(value);
      continue;
    }
    if (tag !=
            WireFormatLite::MakeTag(v1::PullResponse::kTablesFieldNumber, WireFormatLite::WIRETYPE_LENGTH_DELIMITED) ||
        entry == asked.size() || value > reader.left()) {
      return false;
    }
    if (!ReadTable(&reader, reader.left() - value, entry, asked[entry], type, sink, head->add_tables())) return false;
    ++entry;
  }
  return entry == asked.size();
}

absl::Status ReadAnything(const grpc::ByteBuffer& buffer, std::span<const RowsAsked> asked, v1::RowType type,
                          RowSink sink, v1::PullResponse* head) {
  grpc::ByteBuffer copy(buffer);  // Shares the bytes; parsing consumes the buffer.
  const grpc::Status parsed = grpc::SerializationTraits<v1::PullResponse>::Deserialize(&copy, head);
  const auto wrong = [](const auto&... what) { return absl::InternalError(absl::StrCat("answered ", what...)); };
  if (!parsed.ok()) return wrong(buffer.Length(), " bytes that are not a PullResponse");
  if (static_cast<size_t>(head->tables_size()) != asked.size()) {
    return wrong(head->tables_size(), " tables where ", asked.size(), " were asked for");
  }
  for (size_t i = 0; i < asked.size(); ++i) {
    v1::TableRows* table = head->mutable_tables(static_cast<int>(i));
    const uint64_t bytes = asked[i].rows == 0 ? 0 : asked[i].rows * asked[i].row_bytes;
    if (table->table() != asked[i].table || table->row_type() != type || table->rows().size() != bytes) {
      return wrong("table ", table->table(), " in ", table->rows().size(), " bytes of row type ", table->row_type(),
                   " where table ", asked[i].table, " in ", bytes, " bytes of row type ", type, " was asked for");
    }
    if (asked[i].rows > 0) sink(i, 0, asked[i].rows, table->rows().data());
    table->clear_rows();
  }
  return absl::OkStatus();
}

}  // namespace

grpc::ByteBuffer EncodePullResponse(std::shared_ptr<const v1::PullResponse> response) {
  SliceWriter writer;
  AppendNumber(writer.text(), v1::PullResponse::kVersionFieldNumber, response->version());
  for (const v1::TableRows& table : response->tables()) {
    std::string head, tail;
    AppendNumber(&head, v1::TableRows::kTableFieldNumber, table.table());
    AppendNumber(&head, v1::TableRows::kDimFieldNumber, table.dim());
    if (!table.rows().empty()) AppendLength(&head, v1::TableRows::kRowsFieldNumber, table.rows().size());
    AppendNumber(&tail, v1::TableRows::kRowTypeFieldNumber, static_cast<uint64_t>(table.row_type()));
    AppendBytes(&tail, v1::TableRows::kPendingFieldNumber, table.pending());
    AppendLength(writer.text(), v1::PullResponse::kTablesFieldNumber, head.size() + table.rows().size() + tail.size());
    *writer.text() += head;
    writer.Append(table.rows(), response);
    *writer.text() += tail;
  }
  return writer.Finish();
}

grpc::ByteBuffer EncodePushRequest(const v1::PushRequest& head, std::span<const std::span<const char>> beside,
                                   const std::shared_ptr<const void>& owner) {
  CHECK_EQ(beside.size(), static_cast<size_t>(head.tables_size() + head.records_size()));
  SliceWriter writer;
  if (head.has_context()) {
    AppendLength(writer.text(), v1::PushRequest::kContextFieldNumber, head.context().ByteSizeLong());
    head.context().AppendToString(writer.text());
  }
  AppendNumber(writer.text(), v1::PushRequest::kStepFieldNumber, head.step());
  AppendNumber(writer.text(), v1::PushRequest::kPartFieldNumber, head.part());
  AppendNumber(writer.text(), v1::PushRequest::kPartsFieldNumber, head.parts());
  AppendNumber(writer.text(), v1::PushRequest::kSamplesFieldNumber, head.samples());
  const double factor = head.learning_rate_factor();
  uint64_t factor_bits;
  std::memcpy(&factor_bits, &factor, sizeof(factor_bits));
  if (factor_bits != 0) {
    AppendVarint(writer.text(), WireFormatLite::MakeTag(v1::PushRequest::kLearningRateFactorFieldNumber,
                                                        WireFormatLite::WIRETYPE_FIXED64));
    writer.text()->append(reinterpret_cast<const char*>(&factor_bits), sizeof(factor_bits));
  }
  // A table's entry, whose fields are its number, keys, the bytes beside, and one more number.
  const auto append = [&](int field, const auto& entry, int bytes_field, int last_field, uint64_t last) {
    const std::span<const char> bytes = beside.front();
    beside = beside.subspan(1);
    using Entry = std::decay_t<decltype(entry)>;
    std::string before, after;
    AppendNumber(&before, Entry::kTableFieldNumber, entry.table());
    AppendBytes(&before, Entry::kKeysFieldNumber, entry.keys());
    if (!bytes.empty()) AppendLength(&before, bytes_field, bytes.size());
    AppendNumber(&after, last_field, last);
    AppendLength(writer.text(), field, before.size() + bytes.size() + after.size());
    *writer.text() += before;
    writer.Append({bytes.data(), bytes.size()}, owner);
    *writer.text() += after;
  };
  for (const v1::TableGradients& table : head.tables()) {
    CHECK(table.gradients().empty());
    append(v1::PushRequest::kTablesFieldNumber, table, v1::TableGradients::kGradientsFieldNumber,
           v1::TableGradients::kRowTypeFieldNumber, static_cast<uint64_t>(table.row_type()));
  }
  for (const v1::TableRecords& table : head.records()) {
    CHECK(table.records().empty());
    append(v1::PushRequest::kRecordsFieldNumber, table, v1::TableRecords::kRecordsFieldNumber,
           v1::TableRecords::kKeepFieldNumber, table.keep() ? 1 : 0);
  }
  AppendNumber(writer.text(), v1::PushRequest::kCompleteFieldNumber, head.complete() ? 1 : 0);
  return writer.Finish();
}

absl::Status DecodePullResponse(const grpc::ByteBuffer& buffer, std::span<const RowsAsked> asked, v1::RowType type,
                                RowSink sink, v1::PullResponse* head) {
  std::vector<grpc::Slice> slices;
  if (!buffer.Dump(&slices).ok()) return absl::InternalError("answered bytes that cannot be read");
  head->Clear();
  if (ReadCanonical(slices, asked, type, sink, head)) return absl::OkStatus();
  head->Clear();
  return ReadAnything(buffer, asked, type, sink, head);
}

}  // namespace sparrow
