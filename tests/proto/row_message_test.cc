#include "proto/row_message.h"

#include <gmock/gmock.h>
#include <grpcpp/support/slice.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace sparrow {
namespace {

using ::testing::HasSubstr;

std::string BytesOf(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return bytes;
}

// A message in slices that end at each of `cuts`, which ascend.
grpc::ByteBuffer Sliced(const std::string& bytes, const std::vector<size_t>& cuts) {
  std::vector<grpc::Slice> slices;
  size_t begin = 0;
  for (const size_t cut : cuts) {
    slices.emplace_back(bytes.substr(begin, cut - begin));
    begin = cut;
  }
  slices.emplace_back(bytes.substr(begin));
  return grpc::ByteBuffer(slices.data(), slices.size());
}

std::string Varint(uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
  return out;
}

std::string RandomBytes(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::string bytes(n, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

// The rows of a decoded answer, and the rest of it.
struct Decoded {
  absl::Status status;
  std::vector<std::string> rows;
  v1::PullResponse head;
};
Decoded Decode(const grpc::ByteBuffer& buffer, const std::vector<RowsAsked>& asked, v1::RowType type) {
  Decoded decoded;
  for (const RowsAsked& table : asked) decoded.rows.emplace_back(table.rows * table.row_bytes, '\0');
  decoded.status = DecodePullResponse(
      buffer, asked, type,
      [&](size_t entry, uint64_t first, uint64_t n, const char* bytes) {
        const uint64_t row_bytes = asked[entry].row_bytes;
        decoded.rows[entry].replace(first * row_bytes, n * row_bytes, bytes, n * row_bytes);
      },
      &decoded.head);
  return decoded;
}

// Three tables: rows of 12 bytes, none, rows of 5.
v1::PullResponse Answer() {
  v1::PullResponse response;
  response.set_version(300);
  const struct {
    uint32_t table, dim;
    size_t bytes;
  } tables[] = {{0, 3, 4 * 12}, {7, 1000, 0}, {200, 5, 3 * 5}};
  for (const auto& table : tables) {
    v1::TableRows* rows = response.add_tables();
    rows->set_table(table.table);
    rows->set_dim(table.dim);
    rows->set_rows(RandomBytes(table.bytes, table.table));
    rows->set_row_type(v1::INT8);
  }
  response.mutable_tables(2)->set_pending(std::string("\1\0\0\0\2\0\0\0", 8));
  return response;
}
const std::vector<RowsAsked> kAsked = {{0, 4, 12}, {7, 0, 1}, {200, 3, 5}};

void ExpectAnswer(const Decoded& decoded) {
  ASSERT_TRUE(decoded.status.ok()) << decoded.status;
  v1::PullResponse whole = decoded.head;
  for (int i = 0; i < whole.tables_size(); ++i) {
    EXPECT_EQ(whole.tables(i).rows(), "");
    whole.mutable_tables(i)->set_rows(decoded.rows[static_cast<size_t>(i)]);
  }
  EXPECT_EQ(whole.SerializeAsString(), Answer().SerializeAsString());
}

TEST(EncodePullResponse, IsWhatProtobufWrites) {
  for (const uint64_t version : {uint64_t{0}, uint64_t{1}, uint64_t{300}, ~uint64_t{0}}) {
    for (const std::vector<size_t>& sizes :
         std::vector<std::vector<size_t>>{{}, {0}, {1, 0, 127, 128}, {4095, 4096, 4097}, {1 << 20, 16, 1 << 14, 0}}) {
      auto response = std::make_shared<v1::PullResponse>();
      response->set_version(version);
      for (size_t i = 0; i < sizes.size(); ++i) {
        v1::TableRows* table = response->add_tables();
        table->set_table(static_cast<uint32_t>(i * 200));
        table->set_dim(sizes[i] == 16 ? 0 : static_cast<uint32_t>(sizes[i]));
        table->set_rows(RandomBytes(sizes[i], static_cast<uint32_t>(i)));
        table->set_row_type(static_cast<v1::RowType>(i % 4));
        if (i == 1) table->set_pending(RandomBytes(8, 1));
      }
      const std::string expected = response->SerializeAsString();
      const grpc::ByteBuffer buffer = EncodePullResponse(std::move(response));
      EXPECT_EQ(buffer.Length(), expected.size());
      EXPECT_TRUE(BytesOf(buffer) == expected) << "version " << version << ", " << sizes.size() << " tables";
    }
  }
}

TEST(EncodePullResponse, ResponseLivesAsLongAsItsBytes) {
  bool deleted = false;
  auto* raw = new v1::PullResponse;
  raw->add_tables()->set_rows(std::string(100000, 'x'));
  raw->add_tables()->set_rows(std::string(100000, 'y'));
  std::shared_ptr<const v1::PullResponse> response(raw, [&deleted](const v1::PullResponse* gone) {
    deleted = true;
    delete gone;
  });
  grpc::ByteBuffer buffer = EncodePullResponse(std::move(response));
  grpc::ByteBuffer copy(buffer);
  buffer.Clear();
  EXPECT_FALSE(deleted);
  EXPECT_EQ(BytesOf(copy).back(), 'y');
  copy.Clear();
  EXPECT_TRUE(deleted);
}

TEST(EncodePushRequest, IsWhatProtobufWritesAndPointsToTheGradients) {
  for (const bool empty : {true, false}) {
    v1::PushRequest head;
    if (!empty) {
      head.mutable_context()->set_job_id("job");
      head.mutable_context()->set_fingerprint(77);
      head.set_step(5);
      head.set_part(1);
      head.set_parts(130);
      head.set_samples(1 << 20);
      head.set_learning_rate_factor(0.25);
    }
    std::vector<std::string> gradients;
    for (const size_t bytes : {size_t{0}, size_t{100}, size_t{4096}, size_t{1} << 20}) {
      v1::TableGradients* table = head.add_tables();
      table->set_table(static_cast<uint32_t>(bytes));
      table->set_keys(RandomBytes(bytes / 4, 3));
      table->set_row_type(static_cast<v1::RowType>(bytes % 3));
      gradients.push_back(RandomBytes(bytes, 4));
    }
    v1::PushRequest whole = head;
    std::vector<std::span<const char>> beside;
    for (int i = 0; i < head.tables_size(); ++i) {
      whole.mutable_tables(i)->set_gradients(gradients[static_cast<size_t>(i)]);
      beside.emplace_back(gradients[static_cast<size_t>(i)]);
    }
    auto owner = std::make_shared<int>(1);
    grpc::ByteBuffer buffer = EncodePushRequest(head, beside, owner);
    EXPECT_TRUE(BytesOf(buffer) == whole.SerializeAsString());
    EXPECT_EQ(owner.use_count(), 3);  // Two are large enough to be slices.
    std::vector<grpc::Slice> slices;
    ASSERT_TRUE(buffer.Dump(&slices).ok());
    int in_place = 0;
    for (const grpc::Slice& slice : slices) {
      in_place += reinterpret_cast<const char*>(slice.begin()) == gradients[3].data() ? 1 : 0;
    }
    EXPECT_EQ(in_place, 1);
    slices.clear();
    buffer.Clear();
    EXPECT_EQ(owner.use_count(), 1);
  }
}

TEST(EncodePushRequest, RecordsFollowGradientsAsProtobufWritesThem) {
  for (const bool write_back : {true, false}) {
    v1::PushRequest head;
    head.set_step(9);
    head.set_complete(write_back);
    std::vector<std::string> bytes;
    if (!write_back) {
      head.add_tables()->set_keys(RandomBytes(16, 1));
      bytes.push_back(RandomBytes(5000, 2));
    }
    for (const size_t size : {size_t{0}, size_t{48}, size_t{9000}}) {
      v1::TableRecords* table = head.add_records();
      table->set_table(static_cast<uint32_t>(size));
      table->set_keys(RandomBytes(size / 6, 3));
      table->set_keep(size != 48);
      bytes.push_back(RandomBytes(size, 4));
    }
    v1::PushRequest whole = head;
    if (!write_back) whole.mutable_tables(0)->set_gradients(bytes[0]);
    for (int i = 0; i < head.records_size(); ++i) {
      whole.mutable_records(i)->set_records(bytes[static_cast<size_t>(head.tables_size() + i)]);
    }
    const std::vector<std::span<const char>> beside(bytes.begin(), bytes.end());
    EXPECT_TRUE(BytesOf(EncodePushRequest(head, beside, std::make_shared<int>(1))) == whole.SerializeAsString());
  }
}

TEST(DecodePullResponse, GivesEveryRowHoweverTheMessageIsCut) {
  const std::string bytes = Answer().SerializeAsString();
  ExpectAnswer(Decode(Sliced(bytes, {}), kAsked, v1::INT8));
  for (size_t first = 0; first <= bytes.size(); ++first) {
    for (size_t second = first; second <= bytes.size(); ++second) {
      ExpectAnswer(Decode(Sliced(bytes, {first, second}), kAsked, v1::INT8));
      if (HasFailure()) FAIL() << "cut at " << first << " and " << second;
    }
  }
  std::vector<size_t> everywhere;
  for (size_t at = 1; at < bytes.size(); ++at) everywhere.push_back(at);
  ExpectAnswer(Decode(Sliced(bytes, everywhere), kAsked, v1::INT8));
}

TEST(DecodePullResponse, TakesAnyLegalEncoding) {
  const v1::PullResponse answer = Answer();
  // Version last, fields of a table backwards, one of them twice, one that nobody knows, numbers longer than needed.
  std::string bytes;
  for (const v1::TableRows& table : answer.tables()) {
    std::string body;
    body += '\x2a' + Varint(table.pending().size()) + table.pending();
    body += '\x20' + std::string("\x83\x80\x00", 3);  // INT8.
    body += '\x1a' + Varint(table.rows().size()) + table.rows();
    body += "\xd2\x06" + Varint(3) + "abc";  // Field 106.
    body += '\x10' + Varint(9999);
    body += '\x10' + Varint(table.dim());
    body += '\x08' + Varint(table.table());
    bytes += '\x12' + Varint(body.size()) + body;
  }
  bytes += '\x08' + Varint(1) + '\x08' + Varint(300);
  Decoded decoded = Decode(Sliced(bytes, {bytes.size() / 2}), kAsked, v1::INT8);
  for (v1::TableRows& table : *decoded.head.mutable_tables()) table.DiscardUnknownFields();
  ExpectAnswer(decoded);
}

TEST(DecodePullResponse, NamesWhatWasAnsweredAndWhatWasAskedFor) {
  const std::string bytes = Answer().SerializeAsString();
  const struct {
    std::vector<RowsAsked> asked;
    v1::RowType type;
    const char* says;
  } cases[] = {
      {{{0, 4, 12}, {7, 0, 1}}, v1::INT8, "answered 3 tables where 2 were asked for"},
      {{{0, 4, 12}, {8, 0, 1}, {200, 3, 5}}, v1::INT8, "table 7 in 0 bytes of row type 3 where table 8 in 0 bytes"},
      {{{0, 5, 12}, {7, 0, 1}, {200, 3, 5}}, v1::INT8, "table 0 in 48 bytes of row type 3 where table 0 in 60 bytes"},
      {{{0, 4, 12}, {7, 2, 1}, {200, 3, 5}}, v1::INT8, "table 7 in 0 bytes of row type 3 where table 7 in 2 bytes"},
      {kAsked, v1::FLOAT32, "of row type 3 where table 0 in 48 bytes of row type 0"},
  };
  for (const auto& c : cases) {
    const absl::Status status = Decode(Sliced(bytes, {40}), c.asked, c.type).status;
    EXPECT_TRUE(absl::IsInternal(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.says));
  }
}

// A length of 2^63, one below 0, one that is a byte too long: at every place where a length stands.
TEST(DecodePullResponse, ALengthThatLiesIsRefusedAndAllocatesNothing) {
  const std::string rows(48, 'r');
  for (const uint64_t lie : {uint64_t{1} << 63, ~uint64_t{0}, uint64_t{49}, uint64_t{1} << 31, uint64_t{1} << 40}) {
    const std::string whole = "\x1a" + Varint(lie) + rows;
    for (const std::string& bytes : {"\x12" + Varint(lie) + rows, "\x12" + Varint(whole.size()) + whole,
                                     "\x12" + Varint(2) + "\x2a" + Varint(lie)}) {
      const absl::Status status = Decode(Sliced(bytes, {3}), {{0, 4, 12}}, v1::FLOAT32).status;
      EXPECT_TRUE(absl::IsInternal(status)) << status;
    }
  }
}

TEST(DecodePullResponse, EveryPrefixIsRefused) {
  const std::string bytes = Answer().SerializeAsString();
  for (size_t n = 0; n < bytes.size(); ++n) {
    EXPECT_FALSE(Decode(Sliced(bytes.substr(0, n), {n / 2}), kAsked, v1::INT8).status.ok()) << n;
  }
}

}  // namespace
}  // namespace sparrow
