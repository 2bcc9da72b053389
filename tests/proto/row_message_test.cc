#include "proto/row_message.h"

#include <grpcpp/support/slice.h>

#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace sparrow {
namespace {

std::string BytesOf(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return bytes;
}

TEST(PullResponseEncoding, IsWhatProtobufWrites) {
  for (const uint64_t version : {uint64_t{0}, uint64_t{1}, uint64_t{300}, ~uint64_t{0}}) {
    for (const std::vector<size_t>& sizes :
         std::vector<std::vector<size_t>>{{}, {0}, {1, 0, 127, 128}, {4095, 4096, 4097}, {1 << 20, 16, 1 << 14, 0}}) {
      auto response = std::make_shared<v1::PullResponse>();
      response->set_version(version);
      for (size_t i = 0; i < sizes.size(); ++i) {
        v1::TableRows* table = response->add_tables();
        table->set_table(static_cast<uint32_t>(i * 200));
        table->set_dim(sizes[i] == 16 ? 0 : static_cast<uint32_t>(sizes[i]));
        for (size_t byte = 0; byte < sizes[i]; ++byte)
          table->mutable_rows()->push_back(static_cast<char>(byte * 7 + i));
      }
      const std::string expected = response->SerializeAsString();
      const grpc::ByteBuffer buffer = EncodePullResponse(std::move(response));
      EXPECT_EQ(buffer.Length(), expected.size());
      EXPECT_TRUE(BytesOf(buffer) == expected) << "version " << version << ", " << sizes.size() << " tables";
    }
  }
}

TEST(PullResponseEncoding, ResponseLivesAsLongAsItsBytes) {
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

}  // namespace
}  // namespace sparrow
