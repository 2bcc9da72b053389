#include "base/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace sparrow {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Values {
  std::string listen = "0.0.0.0:7070";
  std::string metrics;
  std::string name;
  std::vector<std::string> set;
  bool watch = false;
  int64_t lease_ms = 10'000;
  uint64_t memory = 1 << 20;

  std::vector<Option> Table() {
    return {{"listen", &listen, "Address."},
            {"set", &set, "Field."},
            {"watch", &watch, "Follow."},
            {"lease-ms", IntFlag{&lease_ms, 1, 60'000}, "Lease."},
            {"memory", BytesFlag{&memory}, "Budget."},
            {"metrics", AddressFlag{&metrics, AddressUse::kListenOnTcp, /*may_be_empty=*/true}, "Metrics."},
            {"node_name", &name, "Name."}};
  }
};

std::string Refusal(const std::vector<std::string>& arguments) {
  Values values;
  const absl::Status status = ParseArguments(arguments, values.Table()).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

TEST(Options, ValuesComeAfterAnEqualsSignOrAsTheNextArgument) {
  Values values;
  const auto parsed = ParseArguments({"JOB", "--listen=h:1", "--lease-ms", "20", "--memory", "1.5KiB"}, values.Table());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_THAT(parsed->positional, ElementsAre("JOB"));
  EXPECT_EQ(values.listen, "h:1");
  EXPECT_EQ(values.lease_ms, 20);
  EXPECT_EQ(values.memory, 1536u);
}

TEST(Options, AValueMayHoldAnEqualsSignAndBeEmpty) {
  Values values;
  ASSERT_TRUE(ParseArguments({"--set=a=b=c", "--set", "d=e", "--listen="}, values.Table()).ok());
  EXPECT_THAT(values.set, ElementsAre("a=b=c", "d=e"));
  EXPECT_EQ(values.listen, "");
}

TEST(Options, DashAndUnderscoreAreTheSameInNames) {
  Values values;
  ASSERT_TRUE(ParseArguments({"--lease_ms=7"}, values.Table()).ok());
  EXPECT_EQ(values.lease_ms, 7);
}

TEST(Options, ABoolMayStandAloneOrBeSet) {
  Values values;
  ASSERT_TRUE(ParseArguments({"--watch", "JOB"}, values.Table()).ok());
  EXPECT_TRUE(values.watch);
  ASSERT_TRUE(ParseArguments({"--watch=false"}, values.Table()).ok());
  EXPECT_FALSE(values.watch);
  EXPECT_THAT(Refusal({"--watch=maybe"}), HasSubstr("--watch=\"maybe\""));
}

TEST(Options, NumbersOutsideTheirBoundsAndThoseThatAreNoneAreRefusedAndNamed) {
  double rate = 0.5;
  const std::vector<Option> table = {{"rate", NumberFlag{&rate, 0, 10}, "Rate."}};
  EXPECT_THAT(HelpText({"test", "", "", ""}, table), HasSubstr("0.5"));
  ASSERT_TRUE(ParseArguments({"--rate=2.25"}, table).ok());
  EXPECT_EQ(rate, 2.25);
  for (const char* wrong : {"-0.1", "10.5", "nan", "inf", "1e999", "", "1x"}) {
    const absl::Status status = ParseArguments({absl::StrCat("--rate=", wrong)}, table).status();
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("--rate=\"", wrong, "\" is not a number from 0 to 10")));
  }
  EXPECT_EQ(rate, 2.25);
}

TEST(Options, BytesBelowTheLeastAreRefusedAndNamed) {
  uint64_t memory = 0;
  const std::vector<Option> table = {{"memory", BytesFlag{&memory, 1 << 20}, "Budget."}};
  for (const char* little : {"0", "1", "1023KiB"}) {
    const absl::Status status = ParseArguments({absl::StrCat("--memory=", little)}, table).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_EQ(status.message(), absl::StrCat("--memory=\"", little, "\" is too little; at least 1.0 MiB"));
  }
  ASSERT_TRUE(ParseArguments({"--memory=1MiB"}, table).ok());
  EXPECT_EQ(memory, 1u << 20);
}

TEST(Options, AnAddressIsCheckedAndNamedWithItsFlag) {
  Values values;
  ASSERT_TRUE(ParseArguments({"--metrics=127.0.0.1:0"}, values.Table()).ok());
  EXPECT_EQ(values.metrics, "127.0.0.1:0");
  ASSERT_TRUE(ParseArguments({"--metrics="}, values.Table()).ok());
  EXPECT_EQ(values.metrics, "");
  EXPECT_THAT(Refusal({"--metrics=127.0.0.1:99999"}),
              testing::AllOf(HasSubstr("--metrics=\"127.0.0.1:99999\""), HasSubstr("0 to 65535")));
  std::string coordinator;
  const std::vector<Option> table = {{"coordinator", AddressFlag{&coordinator, AddressUse::kConnect}, "Where."}};
  EXPECT_THAT(std::string(ParseArguments({"--coordinator="}, table).status().message()), HasSubstr("--coordinator"));
}

TEST(Options, NamesAreWrittenWithHyphensHoweverTheyWereDeclared) {
  Values values;
  EXPECT_THAT(HelpText({}, values.Table()), HasSubstr("--node-name"));
  EXPECT_THAT(FormatOptions(values.Table()), HasSubstr("--node-name="));
  EXPECT_THAT(Refusal({"--node_name"}), HasSubstr("--node-name needs a value"));
  EXPECT_THAT(Refusal({"--nodename=x"}), HasSubstr("did you mean --node-name?"));
}

TEST(Options, TwoDashesEndFlags) {
  Values values;
  const auto parsed = ParseArguments({"--watch", "--", "--listen", "x"}, values.Table());
  ASSERT_TRUE(parsed.ok());
  EXPECT_THAT(parsed->positional, ElementsAre("--listen", "x"));
}

TEST(Options, ARefusalNamesFlagValueAndBounds) {
  for (const char* bad : {"0", "60001", "ten", "", "1.5", "99999999999999999999"}) {
    const std::string message = Refusal({std::string("--lease-ms=") + bad});
    EXPECT_THAT(message, HasSubstr("--lease-ms"));
    EXPECT_THAT(message, HasSubstr(std::string("\"") + bad + "\""));
    EXPECT_THAT(message, HasSubstr("from 1 to 60000"));
  }
  EXPECT_THAT(Refusal({"--memory=lots"}), HasSubstr("--memory"));
  EXPECT_THAT(Refusal({"--listen"}), HasSubstr("--listen needs a value"));
  EXPECT_THAT(Refusal({"--listen=a", "--listen=b"}), HasSubstr("twice"));
}

TEST(Options, AnUnknownFlagNamesTheNearestOne) {
  EXPECT_THAT(Refusal({"--lisen=x"}), HasSubstr("did you mean --listen?"));
  EXPECT_THAT(Refusal({"--completely-else"}), HasSubstr("--help"));
}

TEST(Options, ARequiredFlagIsRequiredUnlessHelpIsAsked) {
  std::string coordinator;
  const std::vector<Option> table = {{"coordinator", &coordinator, "Where it is.", /*required=*/true}};
  EXPECT_THAT(std::string(ParseArguments({}, table).status().message()), HasSubstr("--coordinator is required"));
  EXPECT_TRUE(ParseArguments({"--coordinator=h:1"}, table).ok());
  const auto help = ParseArguments({"--help"}, table);
  ASSERT_TRUE(help.ok());
  EXPECT_TRUE(help->help);
}

TEST(Options, HelpAndStartLineShowEveryFlagWithItsValue) {
  Values values;
  const std::string help =
      HelpText({.program = "p", .positional = "JOB", .summary = "Does.", .examples = "  p x\n"}, values.Table());
  for (const char* part :
       {"usage: p JOB", "Does.", "--listen=VALUE", "default 0.0.0.0:7070", "--watch", "1.0 MiB", "p x"}) {
    EXPECT_THAT(help, HasSubstr(part));
  }
  EXPECT_THAT(FormatOptions(values.Table()), HasSubstr("--lease-ms=10000"));
}

}  // namespace
}  // namespace sparrow
