#include "worker/slot_parser.h"

#include "tests/worker/input_test_support.h"

namespace sparrow {
namespace {

using namespace std::string_literals;

ReadAllResult Read(const std::string& text, const std::vector<std::string>& features,
                   const std::string& settings = "label_slot: \"1\"", std::vector<uint64_t> bounded_rows = {}) {
  const TempFiles files;
  files.Write("f", text);
  BatchReaderOptions options = OptionsFor(files, "slots { " + settings + " }", {"f"}, features);
  options.bounded_rows = std::move(bounded_rows);
  return ReadAll(options);
}

TEST(SlotText, FeasignsOfASlotAreABagInOrderAndOtherSlotsArePassedOver) {
  const ReadAllResult read = Read("0:1 7:a 18446744073709551615:b 8:a 1:unused\n  7:b\t\t1:1 9:a \n1:1\n", {"a", "b"});
  ASSERT_TRUE(read.status.ok()) << read.status;
  EXPECT_EQ(read.Rows(), (std::vector<Row>{{0, {}, {{7, 8}, {~uint64_t{0}}}, {{}, {}}},
                                           {1, {}, {{9}, {7}}, {{}, {}}},
                                           {1, {}, {{}, {}}, {{}, {}}}}));
}

TEST(SlotText, TheLabelsSlotHasADefaultAndFeaturesMayNameTheirSlot) {
  const TempFiles files;
  files.Write("f", "3:show 1:click 5:21\n");
  BatchReaderOptions options = OptionsFor(files, "slots {}", {"f"}, {"ad", "same"});
  options.features[0].set_column("21");
  options.features[1].set_column("21");
  const ReadAllResult read = ReadAll(options);
  ASSERT_TRUE(read.status.ok()) << read.status;
  EXPECT_EQ(read.Rows()[0], (Row{1, {}, {{5}, {5}}, {{}, {}}}));
}

TEST(SlotText, RowsThatDoNotFitAreNamedByFileLineAndToken) {
  const std::string good = "0:1 7:a\n";
  EXPECT_ERROR(Read(good + "0:1 7a\n", {"a"}).status, kInvalidArgument, "/f:2:2", "FEASIGN:SLOT", "\"7a\"");
  EXPECT_ERROR(Read(good + "0:1 7:\n", {"a"}).status, kInvalidArgument, "/f:2:2", "FEASIGN:SLOT");
  EXPECT_ERROR(Read(good + "0:1 :a\n", {"a"}).status, kInvalidArgument, "/f:2:2", "integer FEASIGN");
  EXPECT_ERROR(Read(good + "0:1 x:a\n", {"a"}).status, kInvalidArgument, "/f:2:2", "\"x:a\"");
  EXPECT_ERROR(Read(good + "0:1 1:b 18446744073709551616:c\n", {"a"}).status, kInvalidArgument, "/f:2:3");
  EXPECT_ERROR(Read(good + "7:a\n", {"a"}).status, kInvalidArgument, "/f:2:", "none of slot \"1\"", "label_slot");
  EXPECT_ERROR(Read(good + "\n", {"a"}).status, kInvalidArgument, "/f:2:", "0 tokens");
  EXPECT_ERROR(Read(good + "0:1 0:1\n", {"a"}).status, kInvalidArgument, "/f:2:2", "one token");
  EXPECT_ERROR(Read(good + "2:1 7:a\n", {"a"}).status, kInvalidArgument, "/f:2:1", "label 0 or 1");
  EXPECT_ERROR(Read(good + "0:1 7:a 10:a\n", {"a"}, "label_slot: \"1\"", {10}).status, kInvalidArgument, "/f:2:3",
               "id 10 ", "\"a\"", "10 rows");
}

TEST(SlotText, AZeroByteIsAnErrorInAnySlot) {
  EXPECT_ERROR(Read("0:1 7:a 5:un\0read\n"s, {"a"}).status, kInvalidArgument, "/f:1:3", "text without zero bytes",
               "un\\x00read");
}

TEST(SlotText, UnlabelledRowsAreReadWhenTheSourceSaysSo) {
  const TempFiles files;
  files.Write("f", "7:a 8:a\n1:click 9:a\n\n");
  BatchReaderOptions options = OptionsFor(files, "slots {}", {"f"}, {"a"});
  EXPECT_ERROR(ReadAll(options).status, kInvalidArgument, "/f:1:", "none of slot \"click\"", "unlabelled: true");
  options.source.set_unlabelled(true);
  const ReadAllResult read = ReadAll(options);
  ASSERT_TRUE(read.status.ok()) << read.status;
  EXPECT_EQ(read.Rows(), (std::vector<Row>{{0, {}, {{7, 8}}, {{}}}, {0, {}, {{9}}, {{}}}, {0, {}, {{}}, {{}}}}));
}

TEST(SlotText, FeaturesThatCannotBeSlotsAreRefused) {
  EXPECT_ERROR(Read("0:1\n", {"1"}).status, kInvalidArgument, "\"1\"", "carries the label");
  EXPECT_ERROR(Read("0:1\n", {"a b"}).status, kInvalidArgument, "\"a b\"", "cannot be a slot");
  EXPECT_ERROR(Read("0:1\n", {}, "label_slot: \"\"").status, kInvalidArgument, "label_slot is \"\"");
}

}  // namespace
}  // namespace sparrow
