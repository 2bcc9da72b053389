// Delimited text and Criteo's log through BatchReader: what is read, and what each wrong file and schema is told.

#include <cmath>

#include "base/hash.h"
#include "tests/worker/input_test_support.h"

namespace sparrow {
namespace {

using namespace std::string_literals;

constexpr uint64_t kNone = kMissingId;

// Reads `text` by `data`; the file is "f".
ReadAllResult Read(const std::string& text, const std::string& data, const std::vector<std::string>& features,
                   std::vector<uint64_t> bounded_rows = {}) {
  const TempFiles files;
  files.Write("f", text);
  BatchReaderOptions options = OptionsFor(files, data, {"f"}, features);
  options.bounded_rows = std::move(bounded_rows);
  return ReadAll(options);
}

ReadAllResult ReadCriteo(const std::string& text, const std::string& settings = "") {
  return Read(text, "criteo { " + settings + " }", CriteoFeatures());
}

std::string Schema(const std::string& columns, const std::string& settings = "") {
  return "dense_transform: IDENTITY text { " + settings + " columns { name: \"y\" label {} } " + columns + " }";
}
std::string Ids(const std::string& settings) { return "columns { name: \"a\" categorical { " + settings + " } }"; }

TEST(Delimited, MissingIdIsTheHashOfNothing) { EXPECT_EQ(kMissingId, HashBytes("")); }

TEST(Delimited, CriteoRowsAreReadAsAnIndependentSplitReadsThem) {
  std::string text;
  std::vector<Row> expected;
  for (uint64_t n = 0; n < 300; ++n) {
    const std::string line = CriteoLine(n);
    text += line + "\n";
    Row row;
    std::vector<std::string> fields(1);
    for (const char c : line) {
      if (c == '\t') {
        fields.emplace_back();
      } else {
        fields.back() += c;
      }
    }
    ASSERT_EQ(fields.size(), 40u);
    row.label = fields[0] == "1" ? 1 : 0;
    for (int i = 1; i <= 13; ++i) {
      const double x = fields[i].empty() ? 0 : std::stod(fields[i]);
      row.dense.push_back(static_cast<float>(std::log1p(std::max(x, 0.0))));
    }
    for (int i = 14; i < 40; ++i) {
      row.ids.push_back({fields[i].empty() ? kNone : std::stoull(fields[i], nullptr, 16)});
      row.weights.emplace_back();
    }
    expected.push_back(row);
  }
  const ReadAllResult read = ReadCriteo(text);
  ASSERT_TRUE(read.status.ok()) << read.status;
  EXPECT_EQ(read.Rows(), expected);
}

TEST(Delimited, CriteoCopiesWithHeaderIdColumnCommasCrlfAndDecimalsAreTheSameRows) {
  const std::string plain = CriteoLine(5) + "\n" + CriteoLine(22) + "\n";
  const std::vector<Row> expected = ReadCriteo(plain).Rows();
  ASSERT_EQ(expected.size(), 2u);

  std::string header = "id,label";
  for (int i = 1; i <= 13; ++i) absl::StrAppend(&header, ",I", i);
  for (int i = 1; i <= 26; ++i) absl::StrAppend(&header, ",C", i);
  std::string other = "\xef\xbb\xbf" + header + "\r\n";
  for (const uint64_t n : {5, 22}) {
    std::string line = CriteoLine(n, ',');
    // Integers as 1.0: every value of the label and of I1 to I13 that is there.
    std::string decimals;
    int field = 0;
    for (size_t i = 0; i <= line.size(); ++i) {
      const bool end = i == line.size() || line[i] == ',';
      if (end && field < 14 && i > 0 && line[i - 1] != ',') decimals += ".0";
      if (end) ++field;
      if (i < line.size()) decimals += line[i];
    }
    absl::StrAppend(&other, n, ",", decimals, "\r\n");
  }
  const ReadAllResult read = ReadCriteo(other, R"(delimiter: "," header: true id_column: true)");
  ASSERT_TRUE(read.status.ok()) << read.status;
  EXPECT_EQ(read.Rows(), expected);
}

TEST(Delimited, CriteoFieldsMayAllBeEmptyTheLastOneIncluded) {
  const ReadAllResult read = ReadCriteo("0" + std::string(39, '\t') + "\n1" + std::string(39, '\t'));
  ASSERT_TRUE(read.status.ok()) << read.status;
  ASSERT_EQ(read.Rows().size(), 2u);
  EXPECT_EQ(read.Rows()[1].dense, std::vector<float>(13, 0.0f));
  EXPECT_EQ(read.Rows()[1].ids, (std::vector<std::vector<uint64_t>>(26, {kNone})));
}

TEST(Delimited, AJobMayUseSomeOfCriteosColumnsAndOneOfThemTwice) {
  const TempFiles files;
  files.Write("f", CriteoLine(1) + "\n");
  BatchReaderOptions options = OptionsFor(files, "criteo {}", {"f"}, {"C26", "x", "y"});
  options.features[1].set_column("C2");
  options.features[2].set_column("C2");
  options.features[2].set_modulo(100);
  const ReadAllResult read = ReadAll(options);
  ASSERT_TRUE(read.status.ok()) << read.status;
  const Row row = read.Rows()[0];
  EXPECT_EQ(row.ids[2][0], 1 + row.ids[1][0] % 99);
}

TEST(Delimited, AnUnlabelledCriteoFileIsToldSo) {
  const std::string labelled = CriteoLine(8);
  EXPECT_ERROR(ReadCriteo(labelled.substr(2) + "\n").status, kInvalidArgument,
               "/f:1: 39 fields, expected 40 (label missing?)", "unlabelled: true");
}

ReadAllResult ReadUnlabelled(const std::string& text, const std::string& data,
                             const std::vector<std::string>& features) {
  const TempFiles files;
  files.Write("f", text);
  BatchReaderOptions options = OptionsFor(files, data, {"f"}, features);
  options.source.set_unlabelled(true);
  return ReadAll(options);
}

TEST(Delimited, UnlabelledFilesAreReadWhenTheSourceSaysSo) {
  std::string text, labelled;
  for (int n = 1; n < 10; n += 3) {  // Label 0, as rows without one have.
    labelled += CriteoLine(n) + "\n";
    text += CriteoLine(n).substr(2) + "\n";
  }
  const std::vector<Row> expected = ReadCriteo(labelled).Rows();
  ASSERT_EQ(expected.size(), 3u);
  ReadAllResult read = ReadUnlabelled(text, "criteo {}", CriteoFeatures());
  ASSERT_TRUE(read.status.ok()) << read.status;
  EXPECT_EQ(read.Rows(), expected);
  // With an id before the columns, and a header of as many columns as the rows have.
  std::string with_ids = "id" + std::string(39, '\t') + "\n";
  for (int n = 1; n < 10; n += 3) with_ids += absl::StrCat(n, "\t", CriteoLine(n).substr(2), "\n");
  read = ReadUnlabelled(with_ids, "criteo { id_column: true header: true }", CriteoFeatures());
  ASSERT_TRUE(read.status.ok()) << read.status;
  EXPECT_EQ(read.Rows(), expected);

  read = ReadUnlabelled("7\t5\n", Schema("columns { name: \"d\" dense {} } " + Ids("")), {"a"});
  ASSERT_TRUE(read.status.ok()) << read.status;
  EXPECT_EQ(read.Rows(), (std::vector<Row>{{0, {7}, {{5}}, {{}}}}));
  // By a header, a label that is there all the same is one more column to pass over.
  const std::string by_name = Schema("columns { name: \"d\" dense {} } " + Ids(""), "header: true");
  for (const char* file : {"a\td\n5\t7\n", "y\ta\td\n1\t5\t7\n"}) {
    read = ReadUnlabelled(file, by_name, {"a"});
    ASSERT_TRUE(read.status.ok()) << read.status;
    EXPECT_EQ(read.Rows(), (std::vector<Row>{{0, {7}, {{5}}, {{}}}}));
  }
}

TEST(Delimited, ALabelledFileReadAsUnlabelledIsToldSo) {
  EXPECT_ERROR(ReadUnlabelled(CriteoLine(8) + "\n", "criteo {}", CriteoFeatures()).status, kInvalidArgument,
               "/f:1: 40 fields, expected 39 (a label, though unlabelled is set?)", "unlabelled: false");
}

TEST(Delimited, ACommaFileReadAsTabIsToldItsDelimiter) {
  EXPECT_ERROR(ReadCriteo(CriteoLine(8, ',')).status, kInvalidArgument, "/f:1: 1 field, expected 40",
               "delimiter is tab", "\",\" gives 40", "set it with --set 'data.criteo.delimiter=,'");
  EXPECT_ERROR(ReadCriteo(CriteoLine(8), R"(delimiter: ",")").status, kInvalidArgument, "delimiter is \",\"",
               "tab gives 40", "--set 'data.criteo.delimiter=\\t'", "in the job as \"\\t\"");
}

TEST(Delimited, WrongFieldsAreNamedByFileLineAndField) {
  const std::string good = CriteoLine(1) + "\n";
  const auto with_field = [](int at, const std::string& value) {
    std::string line = CriteoLine(2);
    size_t begin = 0;
    for (int i = 0; i < at; ++i) begin = line.find('\t', begin) + 1;
    return line.replace(begin, std::min(line.find('\t', begin), line.size()) - begin, value) + "\n";
  };
  const struct {
    int field;
    std::string value;
    std::vector<std::string> parts;
  } cases[] = {{0, "", {"/f:3:1 (label)", "expected label 0 or 1", "found \"\""}},
               {0, "2", {"/f:3:1 (label)", "found \"2\""}},
               {0, std::string("\0", 1), {"/f:3:1 (label)", "\\x00"}},
               {0,
                std::string("\xef\xbb\xbf"
                            "1"),
                {"/f:3:1 (label)", "\\xef"}},
               {3, "x", {"/f:3:4 (I3)", "a decimal number or nothing", "found \"x\""}},
               {3, "nan", {"/f:3:4 (I3)"}},
               {3, "1e99", {"/f:3:4 (I3)"}},
               {3, std::string("1\0", 2), {"/f:3:4 (I3)", "1\\x00"}},
               {13, "caf\xe9", {"/f:3:14 (I13)", "caf\\xe9"}},
               {14, "5a9ed9bz", {"/f:3:15 (C1)", "1 to 16 hex digits", "found \"5a9ed9bz\""}},
               {14, "5a9ed9 b", {"/f:3:15 (C1)"}},
               {39, "12345678901234567", {"/f:3:40 (C26)"}},
               {39, "0x123456", {"/f:3:40 (C26)", "SKIP"}},
               {20, std::string("5a9e\0d9b", 8), {"/f:3:21 (C7)", "5a9e\\x00"}},
               {20, std::string("5a9ed9b\xe9", 8), {"/f:3:21 (C7)", "\\xe9"}}};
  for (const auto& test : cases) {
    const absl::Status status = ReadCriteo(good + good + with_field(test.field, test.value) + good).status;
    for (const std::string& part : test.parts) EXPECT_ERROR(status, kInvalidArgument, part);
  }
  EXPECT_ERROR(ReadCriteo(good + good.substr(0, good.size() - 1) + "\t1\n").status, kInvalidArgument,
               "/f:2: 41 fields, expected 40");
  EXPECT_ERROR(ReadCriteo(good + "\n").status, kInvalidArgument, "/f:2: the line is empty", "expected 40 fields");
}

TEST(Delimited, AZeroByteIsAnErrorWhereverItStandsAndOtherBytesAreLegalInStringIds) {
  const std::string schema = Schema(Ids("ids: STRING") + "columns { name: \"z\" ignored {} }");
  const auto with = [&](const std::string& value, const std::string& passed_over) {
    return Read("1\tok\tz\n0\t" + value + "\t" + passed_over + "\n", schema, {"a"});
  };
  const std::string zero("o\0k", 3);
  EXPECT_ERROR(with(zero, "z").status, kInvalidArgument, "/f:2:2 (a)", "text without zero bytes, found \"o\\x00k\"");
  EXPECT_ERROR(with("ok", zero).status, kInvalidArgument, "/f:2:3 (z)", "found \"o\\x00k\"");
  EXPECT_ERROR(with(std::string("\0", 1), "z").status, kInvalidArgument, "/f:2:2 (a)");
  EXPECT_ERROR(Read("y\ta\tz\0\n1\t2\t3\n"s, Schema(Ids(""), "header: true"), {"a"}).status, kInvalidArgument, "/f:1:3",
               "the header has a zero byte");
  const ReadAllResult latin1 = with("caf\xe9", "\xff");
  ASSERT_TRUE(latin1.status.ok()) << latin1.status;
  EXPECT_EQ(latin1.Rows()[1], (Row{0, {}, {{HashBytes("caf\xe9")}}, {{}}}));
}

TEST(Delimited, AHeaderAndItsSettingMustAgree) {
  EXPECT_ERROR(ReadCriteo("label" + CriteoLine(1).substr(1) + "\n").status, kInvalidArgument, "/f:1:1 (label)",
               "found \"label\"", "header: true");
  EXPECT_ERROR(ReadCriteo(CriteoLine(1) + "\n" + CriteoLine(2) + "\n", "header: true").status, kInvalidArgument,
               "/f:1:1 (label)", "expected a header", "header: false");
  EXPECT_ERROR(ReadCriteo("label,I1\n", "header: true").status, kInvalidArgument, "/f:1: 1 field, expected 40");
}

TEST(Delimited, AHeaderWithoutANamedColumnListsTheColumnsThere) {
  const std::string schema = Schema(Ids(""), "header: true");
  EXPECT_ERROR(Read("y\tb\tc\n1\t2\t3\n", schema, {"a"}).status, kInvalidArgument, "/f:1:", "no column \"a\"",
               "y, b, c");
  EXPECT_ERROR(Read("y,a,c\n1,2,3\n", schema, {"a"}).status, kInvalidArgument, "no column \"y\"", "delimiter is tab",
               "--set 'data.text.delimiter=,'");
  EXPECT_ERROR(Read("y\ta\ta\n1\t2\t3\n", schema, {"a"}).status, kInvalidArgument, "\"a\" 2 times");
}

TEST(Delimited, ColumnsAreFoundByNameInAnyOrderAmongOthers) {
  const std::string schema = Schema("columns { name: \"d\" dense {} } " + Ids(""), "header: true delimiter: \";\"");
  const ReadAllResult read = Read("x;a;z;d;y\njunk \xff;7;;2.5;1\n;;;;0\n", schema, {"a"});
  ASSERT_TRUE(read.status.ok()) << read.status;
  EXPECT_EQ(read.Rows(), (std::vector<Row>{{1, {2.5f}, {{7}}, {{}}}, {0, {0}, {{kNone}}, {{}}}}));
  EXPECT_ERROR(Read("x;a;z;d;y\n;7;;2.5\n", schema, {"a"}).status, kInvalidArgument, "/f:2: 4 fields, expected 5");
}

TEST(Delimited, IdKindsBagsAndWeights) {
  const struct {
    std::string settings;
    std::string field;
    std::vector<uint64_t> ids;
    std::vector<float> weights;
  } cases[] = {
      {"", "17", {17}, {}},
      {"", "-1", {~uint64_t{0}}, {}},
      {"", "1.0", {1}, {}},
      {"", "18446744073709551615", {~uint64_t{0}}, {}},
      {"", "", {kNone}, {}},
      {"ids: HEX", "ff", {255}, {}},
      {"ids: HEX", "FFFFFFFFFFFFFFFF", {~uint64_t{0}}, {}},
      {"ids: HEX", "", {kNone}, {}},
      {"ids: STRING", "some text", {HashBytes("some text")}, {}},
      {"ids: STRING", "caf\xe9 \"x\"", {HashBytes("caf\xe9 \"x\"")}, {}},
      {"ids: STRING", "", {kNone}, {}},
      {R"(separator: "|")", "1|2|3", {1, 2, 3}, {}},
      {R"(separator: "|")", "5", {5}, {}},
      {R"(separator: "|")", "", {}, {}},
      {R"(ids: STRING separator: "|")", "a b|c", {HashBytes("a b"), HashBytes("c")}, {}},
      {R"(ids: HEX separator: " ")", "1 deadbeef", {1, 0xdeadbeef}, {}},
      {R"(weight_separator: ":")", "17:0.5", {17}, {0.5f}},
      {R"(weight_separator: ":")", "17", {17}, {1}},
      {R"(weight_separator: ":")", "", {kNone}, {1}},
      {R"(separator: "|" weight_separator: ":")", "1:0.5|2|3:-2e1", {1, 2, 3}, {0.5f, 1, -20}},
      {R"(separator: "|" weight_separator: ":")", "", {}, {}},
      {R"(ids: STRING separator: "|" weight_separator: ":")", "a:b:2", {HashBytes("a:b")}, {2}},
  };
  for (const auto& test : cases) {
    // Twice, so that the second row shows that the first ended where it should.
    const ReadAllResult read =
        Read("1\t" + test.field + "\n0\t" + test.field + "\n", Schema(Ids(test.settings)), {"a"});
    ASSERT_TRUE(read.status.ok()) << read.status;
    const std::vector<Row> expected = {{1, {}, {test.ids}, {test.weights}}, {0, {}, {test.ids}, {test.weights}}};
    EXPECT_EQ(read.Rows(), expected) << test.settings << " " << test.field;
  }
}

TEST(Delimited, IdsThatAreNoneAreErrors) {
  const struct {
    std::string settings;
    std::string field;
    std::string part;
  } cases[] = {{"", "x", "an integer id"},
               {"", "1.5", "an integer id"},
               {"", "18446744073709551616", "an integer id"},
               {"", "-9223372036854775809", "an integer id"},
               {"", " 1", "an integer id"},
               {"", "1|2", "an integer id"},
               {"ids: HEX", "xyz", "1 to 16 hex digits"},
               {R"(separator: "|")", "1||2", "an id on each side of \"|\""},
               {R"(separator: "|")", "1|", "an id on each side"},
               {R"(separator: "|")", "|1", "an id on each side"},
               {R"(separator: "|")", "1|x", "found \"x\""},
               {R"(weight_separator: ":")", "1:", "ID:WEIGHT"},
               {R"(weight_separator: ":")", ":1", "ID:WEIGHT"},
               {R"(weight_separator: ":")", "1:nan", "ID:WEIGHT"},
               {R"(weight_separator: ":")", "x:1", "an integer id"}};
  for (const auto& test : cases) {
    const ReadAllResult read = Read("1\t" + test.field + "\n", Schema(Ids(test.settings)), {"a"});
    EXPECT_ERROR(read.status, kInvalidArgument, "/f:1:2 (a): expected", test.part);
  }
}

TEST(Delimited, ModuloFoldsIdsAndKeepsTheMissingOneApart) {
  const TempFiles files;
  files.Write("f", "1\t0\n1\t9\n1\t10\n1\t18446744073709551615\n1\t4294967296\n1\t\n");
  BatchReaderOptions options = OptionsFor(files, Schema(Ids("")), {"f"}, {"a"});
  const auto ids = [&] {
    std::vector<uint64_t> all;
    for (const Row& row : ReadAll(options).Rows()) all.push_back(row.ids[0][0]);
    return all;
  };
  options.features[0].set_modulo(10);
  options.bounded_rows = {10};
  EXPECT_EQ(ids(), (std::vector<uint64_t>{1, 1, 2, 1 + ~uint64_t{0} % 9, 1 + (uint64_t{1} << 32) % 9, 0}));
  options.features[0].set_modulo(1);
  EXPECT_EQ(ids(), (std::vector<uint64_t>(6, 0)));
  options.features[0].set_modulo(~uint64_t{0});
  options.bounded_rows = {};
  EXPECT_EQ(ids(), (std::vector<uint64_t>{1, 10, 11, 2, 4294967297, 0}));
}

TEST(Delimited, IdsOutsideABoundedTableNameEverything) {
  const std::string schema = Schema(Ids(R"(separator: "|")"));
  EXPECT_TRUE(Read("1\t0|9\n", schema, {"a"}, {10}).status.ok());
  EXPECT_ERROR(Read("1\t0|9\n1\t3|10\n", schema, {"a"}, {10}).status, kInvalidArgument, "/f:2:2 (a)", "id 10 ",
               "feature \"a\"", "10 rows", "modulo");
  EXPECT_ERROR(Read("1\t4294967301\n", schema, {"a"}, {10}).status, kInvalidArgument, "id 4294967301 ");
  EXPECT_ERROR(Read("1\t-1\n", schema, {"a"}, {10}).status, kInvalidArgument, "id 18446744073709551615 ");
  EXPECT_ERROR(Read("1\t\n", Schema(Ids("")), {"a"}, {10}).status, kInvalidArgument, "an empty value", "modulo");
}

TEST(Delimited, DenseTransformsAreTheDeclaredOnes) {
  const std::string columns = "columns { name: \"d\" dense {} }";
  const std::string text = "1\t3\n1\t-2\n1\t\n1\t0.5\n1\t2000000\n1\t-0.5\n";
  std::vector<float> values;
  for (const Row& row : Read(text, Schema(columns), {}).Rows()) values.push_back(row.dense[0]);
  EXPECT_EQ(values, (std::vector<float>{3, -2, 0, 0.5f, 2000000, -0.5f}));
  values.clear();
  std::string log1p = Schema(columns);
  log1p.replace(log1p.find("IDENTITY"), 8, "LOG1P");
  for (const Row& row : Read(text, log1p, {}).Rows()) values.push_back(row.dense[0]);
  const std::vector<double> exact = {std::log(4.0), 0, 0, std::log(1.5), std::log(2000001.0), 0};
  for (size_t i = 0; i < exact.size(); ++i) EXPECT_FLOAT_EQ(values[i], static_cast<float>(exact[i]));
}

TEST(Delimited, SchemasThatDoNotFitAreRefused) {
  const auto status = [](const std::string& data, const std::vector<std::string>& features) {
    return Read("1\t1\n", data, features).status;
  };
  EXPECT_ERROR(status("", {}), kInvalidArgument, "no format", "text, criteo, slots, dlrm_npy");
  EXPECT_ERROR(status(Schema(Ids("")), {"b"}), kInvalidArgument, "feature \"b\"", "column \"b\"", "not in data",
               "categorical columns: a");
  EXPECT_ERROR(status(Schema("columns { name: \"d\" dense {} }"), {"d"}), kInvalidArgument, "\"d\"", "not categorical");
  EXPECT_ERROR(status(Schema(Ids("")), {}), kInvalidArgument, "no feature reads", "a", "ignored {}");
  EXPECT_ERROR(status("criteo {}", {"C27"}), kInvalidArgument, "\"C27\"", "C1, C2");
  EXPECT_ERROR(status(R"(text { columns { name: "a" dense {} } })", {}), kInvalidArgument, "0 label columns");
  EXPECT_ERROR(status(Schema("columns { name: \"z\" label {} }"), {}), kInvalidArgument, "2 label columns (y, z)");
  EXPECT_ERROR(status(Schema("columns { name: \"y\" dense {} }"), {}), kInvalidArgument, "\"y\" is there twice");
  EXPECT_ERROR(status(Schema("columns { dense {} }"), {}), kInvalidArgument, "column 2 has no name");
  EXPECT_ERROR(status(Schema("columns { name: \"a\" }"), {}), kInvalidArgument, "\"a\" has no kind");
  for (const char* delimiter : {"", "ab", "1", "a", ".", "-", "\\n", "\\r"}) {
    EXPECT_ERROR(status(Schema(Ids(""), absl::StrCat("delimiter: \"", delimiter, "\"")), {"a"}), kInvalidArgument,
                 "data.text.delimiter is \"");
  }
  EXPECT_ERROR(status(Schema(Ids("separator: \"\\t\"")), {"a"}), kInvalidArgument, "\"a\"", "both tab");
  EXPECT_ERROR(status(Schema(Ids("separator: \"||\"")), {"a"}), kInvalidArgument, "separator", "2 bytes");
  EXPECT_ERROR(status(Schema(Ids("separator: \":\" weight_separator: \":\"")), {"a"}), kInvalidArgument,
               "weight_separator");
}

}  // namespace
}  // namespace sparrow
