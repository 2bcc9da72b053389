#include "base/address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sparrow {
namespace {

using testing::HasSubstr;

TEST(Address, HostAndPortAreTakenApart) {
  for (const auto& [text, host, port] :
       std::vector<std::tuple<std::string, std::string, int>>{{"127.0.0.1:7070", "127.0.0.1", 7070},
                                                              {"node-1.cluster:65535", "node-1.cluster", 65535},
                                                              {"[::1]:1", "::1", 1},
                                                              {"0.0.0.0:0", "0.0.0.0", 0}}) {
    const auto parsed = ParseHostPort(text);
    ASSERT_TRUE(parsed.ok()) << text << ": " << parsed.status();
    EXPECT_EQ(parsed->host, host);
    EXPECT_EQ(parsed->port, port);
  }
}

struct Wrong {
  const char* address;
  const char* says;
};

class WrongAddress : public testing::TestWithParam<Wrong> {};

TEST_P(WrongAddress, IsRefusedForEveryUseAndQuotedWithTheReason) {
  for (const AddressUse use : {AddressUse::kListen, AddressUse::kListenOnTcp, AddressUse::kConnect}) {
    const absl::Status status = CheckAddress(GetParam().address, use);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << GetParam().address;
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string("\"") + GetParam().address + "\""));
    EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().says));
    EXPECT_THAT(std::string(status.message()), HasSubstr("write HOST:PORT"));
  }
}

INSTANTIATE_TEST_SUITE_P(Each, WrongAddress,
                         testing::Values(Wrong{"", "the port is missing"}, Wrong{"foo", "the port is missing"},
                                         Wrong{"foo:", "the port is missing"}, Wrong{":7070", "the host is missing"},
                                         Wrong{"[]:7070", "the host is missing"}, Wrong{"[::1]", "the port is missing"},
                                         Wrong{"127.0.0.1:99999", "0 to 65535"}, Wrong{"127.0.0.1:65536", "0 to 65535"},
                                         Wrong{"127.0.0.1:-1", "0 to 65535"}, Wrong{"127.0.0.1:+80", "0 to 65535"},
                                         Wrong{"127.0.0.1:http", "0 to 65535"}, Wrong{"127.0.0.1:80s", "0 to 65535"},
                                         Wrong{"h:4294967376", "0 to 65535"}, Wrong{"::1:7070", "in brackets"},
                                         Wrong{"http://h:80", "in brackets"}, Wrong{"a b:1", "neither a name"},
                                         Wrong{"a,b:1", "neither a name"}));

TEST(Address, PortZeroIsForListeningOnly) {
  EXPECT_TRUE(CheckAddress("h:0", AddressUse::kListen).ok());
  EXPECT_TRUE(CheckAddress("h:0", AddressUse::kListenOnTcp).ok());
  EXPECT_THAT(std::string(CheckAddress("h:0", AddressUse::kConnect).message()), HasSubstr("1 to 65535"));
}

TEST(Address, AUnixSocketWillDoWhereGrpcListensOrConnects) {
  EXPECT_TRUE(CheckAddress("unix:/tmp/x", AddressUse::kListen).ok());
  EXPECT_TRUE(CheckAddress("unix:x", AddressUse::kConnect).ok());
  EXPECT_FALSE(CheckAddress("unix:", AddressUse::kConnect).ok());
  EXPECT_FALSE(CheckAddress("unix:/tmp/x", AddressUse::kListenOnTcp).ok());
}

}  // namespace
}  // namespace sparrow
