#include "worker/data_check.h"

#include <cmath>

#include "tests/worker/input_test_support.h"
#include "worker/distinct_counter.h"

namespace sparrow {
namespace {

constexpr char kJob[] = R"(
  data {
    train { path: "train" }
    text {
      columns { name: "y" label {} }
      columns { name: "d" dense {} }
      columns { name: "d2" dense {} }
      columns { name: "one" dense {} }
      columns { name: "none" dense {} }
      columns { name: "a" categorical {} }
      columns { name: "b" categorical { separator: "|" } }
    }
  }
  features { name: "a" }
  features { name: "b" table: "small" modulo: 1000 }
  features { name: "c" column: "a" }
  tables { name: "a" hashed {} }
  tables { name: "c" bounded_rows: 100 }
  tables { name: "small" bounded_rows: 1000 }
)";

TEST(DataCheck, CountsWhatIsInTheFile) {
  const TempFiles files;
  files.Write("train",
              "1\t2\t2\t7\t\t5\t1|2|3\n"
              "0\t-4\t-4\t7\t\t\t\n"
              "0\tbad\t1\t7\t\t5\t1\n"
              "1\t\t\t7\t\t5\t2\n"
              "1\t8\t8\t7\t\t700\t9999\n");
  const auto report = CheckInput(FromText<v1::Job>(kJob), files.root(), nullptr);
  ASSERT_TRUE(report.ok()) << report.status();
  ASSERT_EQ(report->sources.size(), 1u);
  const SourceReport& train = report->sources[0];
  EXPECT_EQ(train.name, "train");
  EXPECT_EQ(train.files, std::vector<std::string>{files.Path("train")});
  EXPECT_EQ(train.rows, 5u);
  EXPECT_EQ(train.bad_rows, 1u);
  EXPECT_EQ(train.ones, 3u);
  EXPECT_EQ(train.file_bytes, std::filesystem::file_size(files.Path("train")));
  const DenseColumnReport& d = train.dense[0];
  EXPECT_EQ(d.name, "d");
  EXPECT_EQ(d.missing, 1u);
  EXPECT_EQ(d.negative, 1u);
  EXPECT_EQ(d.min, -4);
  EXPECT_EQ(d.max, 8);
  EXPECT_EQ(d.mean, 2);
  const FeatureReport& a = train.features[0];
  EXPECT_EQ(a.column, "a");
  EXPECT_EQ(a.ids, 4u);
  EXPECT_EQ(a.distinct, 3u);  // 5, 700, missing.
  EXPECT_TRUE(a.distinct_exact);
  EXPECT_EQ(a.missing, 1u);
  EXPECT_EQ(a.max_id, 700u);
  EXPECT_EQ(a.out_of_bounds, 0u);
  const FeatureReport& b = train.features[1];
  EXPECT_EQ(b.ids, 5u);
  EXPECT_EQ(b.ids_per_row_max, 3u);
  EXPECT_EQ(b.missing, 1u);
  EXPECT_EQ(b.max_id, 9999u);
  EXPECT_EQ(b.out_of_bounds, 0u);  // Folded by its modulo.
  EXPECT_EQ(train.features[2].out_of_bounds, 2u);

  EXPECT_TRUE(report->HasProblems());
  EXPECT_THAT(train.problems,
              testing::UnorderedElementsAre(
                  testing::HasSubstr("1 bad row(s), and data.on_bad_row is STOP"),
                  testing::AllOf(testing::HasSubstr("\"c\": 2 id(s) outside its table of 100 rows"),
                                 testing::EndsWith(absl::StrCat("the missing id at ", files.Path("train"), ":2")))));
  EXPECT_THAT(train.oddities,
              testing::UnorderedElementsAre(testing::HasSubstr("dense columns \"d\" and \"d2\" are equal"),
                                            testing::HasSubstr("\"one\" has the same value"),
                                            testing::HasSubstr("\"none\" is missing in every row"),
                                            testing::HasSubstr("features \"a\" and \"c\" are equal")));
  EXPECT_THAT(train.bad_row_examples, testing::ElementsAre(testing::HasSubstr("train:3:2 (d)")));

  const std::string text = FormatReport(*report);
  for (const char* part : {"train: 5 rows in 1 file", "3 ones of 4 rows (75.0 %)", "PROBLEM: ", "odd: ", "bad row: "}) {
    EXPECT_THAT(text, testing::HasSubstr(part));
  }
}

TEST(DataCheck, ACleanInputHasNoProblems) {
  const TempFiles files;
  v1::Job job;
  *job.mutable_data() = FromText<v1::DataConfig>(R"(train { path: "f" rows { take_share: 0.8 } }
                                                    test { path: "f" rows { skip_share: 0.8 } } criteo {})");
  for (const std::string& name : CriteoFeatures()) job.add_features()->set_name(name);
  std::string text;
  for (int n = 0; n < 5000; ++n) text += CriteoLine(n) + "\n";
  files.Write("f", text);
  const auto report = CheckInput(job, files.root(), nullptr);
  ASSERT_TRUE(report.ok()) << report.status();
  ASSERT_EQ(report->sources.size(), 2u);
  EXPECT_EQ(report->sources[0].rows, 4000u);
  EXPECT_EQ(report->sources[1].rows, 1000u);
  EXPECT_EQ(report->sources[1].name, "test");
  EXPECT_FALSE(report->HasProblems());
  EXPECT_TRUE(report->sources[0].oddities.empty()) << FormatReport(*report);
  EXPECT_EQ(report->sources[0].dense[12].name, "I13");
}

TEST(DataCheck, IdsOutOfBoundsAreLocatedByFileAndLine) {
  const TempFiles files;
  v1::Job job;
  *job.mutable_data() = FromText<v1::DataConfig>(R"(train { path: "f*" rows { skip_rows: 3 } }
                                                    text { header: true columns { name: "y" label {} }
                                                           columns { name: "u" categorical {} }
                                                           columns { name: "v" categorical {} } })");
  for (const char* name : {"u", "v"}) {
    job.add_features()->set_name(name);
    v1::TableConfig* table = job.add_tables();
    table->set_name(name);
    table->set_bounded_rows(100);
  }
  // More than a block of rows, some of them bad, in two files. The skipped rows do not count.
  std::string first = "y\tu\tv\n", second = first;
  for (int n = 0; n < 6000; ++n) {
    absl::StrAppend(&first, n % 50 == 7 ? "bad" : "0", "\t", n == 1 ? 999 : n % 100, "\t", n % 90, "\n");
    absl::StrAppend(&second, n % 70 == 9 ? "bad" : "1", "\t", n >= 5000 && n % 100 == 0 ? 300 : n % 100, "\t",
                    n == 3 ? 100 : n % 90, "\n");
  }
  files.Write("f1", first);
  files.Write("f2", second);
  const auto report = CheckInput(job, files.root(), nullptr);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(
      report->sources[0].problems,
      testing::UnorderedElementsAre(testing::HasSubstr("bad row(s)"),
                                    testing::EndsWith(absl::StrCat("the first 300 at ", files.Path("f2"), ":5002")),
                                    testing::EndsWith(absl::StrCat("the first 100 at ", files.Path("f2"), ":5"))));
}

TEST(DataCheck, UnlabelledFilesAreReportedWithoutLabels) {
  const TempFiles files;
  v1::Job job;
  *job.mutable_data() = FromText<v1::DataConfig>(R"(test { path: "f" } criteo {})");
  for (const std::string& name : CriteoFeatures()) job.add_features()->set_name(name);
  std::string text;
  for (int n = 0; n < 50; ++n) text += CriteoLine(n).substr(2) + "\n";
  files.Write("f", text);
  auto report = CheckInput(job, files.root(), nullptr);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->HasProblems());
  EXPECT_THAT(report->sources[0].bad_row_examples[0], testing::HasSubstr("39 fields, expected 40 (label missing?)"));
  job.mutable_data()->mutable_test()->set_unlabelled(true);
  report = CheckInput(job, files.root(), nullptr);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_FALSE(report->HasProblems());
  EXPECT_EQ(report->sources[0].rows, 50u);
  EXPECT_EQ(report->sources[0].bad_rows, 0u);
  EXPECT_THAT(report->sources[0].oddities, testing::Contains(testing::HasSubstr("unlabelled: for sparrowctl predict")));
  EXPECT_THAT(FormatReport(*report),
              testing::AllOf(testing::HasSubstr("labels: none (unlabelled)"), testing::HasSubstr("columns: 13 dense")));
}

TEST(DataCheck, LabelsOfOneClassAreOdd) {
  const TempFiles files;
  v1::Job job;
  *job.mutable_data() = FromText<v1::DataConfig>(R"(train { path: "f" } slots {})");
  job.add_features()->set_name("s");
  files.Write("f", "0:click 1:s\n0:click 2:s\n");
  const auto report = CheckInput(job, files.root(), nullptr);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->sources[0].oddities, testing::ElementsAre(testing::HasSubstr("every label is 0")));
  EXPECT_FALSE(report->HasProblems());
}

TEST(DataCheck, WhatCannotBeReadIsAnErrorThatNamesTheSource) {
  const TempFiles files;
  EXPECT_ERROR(CheckInput(v1::Job(), files.root(), nullptr).status(), kInvalidArgument, "neither train nor test");
  EXPECT_ERROR(CheckInput(FromText<v1::Job>(kJob), files.root(), nullptr).status(), kNotFound, "data.train",
               files.Path("train"));
  files.Write("train", "");
  EXPECT_ERROR(CheckInput(FromText<v1::Job>(kJob), files.root(), nullptr).status(), kInvalidArgument, "no rows");
  files.Write("train", "1\t\t\t\t\t\t\n");
  EXPECT_ERROR(CheckInput(FromText<v1::Job>(kJob), files.root(), [] { return true; }).status(), kCancelled, "stopped");
}

TEST(DistinctCounter, IsExactAndThenNear) {
  DistinctCounter counter;
  for (uint64_t i = 0; i < DistinctCounter::kExactMax; ++i) {
    counter.Add(i * i);
    counter.Add(i * i);
  }
  EXPECT_TRUE(counter.exact());
  EXPECT_EQ(counter.Count(), DistinctCounter::kExactMax);
  uint64_t n = DistinctCounter::kExactMax;
  for (const uint64_t until : {66000, 100000, 300000, 2000000}) {
    for (; n < until; ++n) counter.Add(n * n);
    EXPECT_FALSE(counter.exact());
    // Four standard errors; the values are fixed, so the outcome is.
    EXPECT_NEAR(static_cast<double>(counter.Count()), static_cast<double>(until), 0.033 * static_cast<double>(until));
  }
}

TEST(DataCheck, StringsThatAreNotUtf8AreCountedByColumnAndTheFirstIsShown) {
  const TempFiles files;
  files.Write("train", "1\tplain\ta|b\n0\tcaf\xe9\ta\n1\tcaf\xc3\xa9\tx\xff|\xc0\n0\t\xe9\tb\n");
  const auto report = CheckInput(FromText<v1::Job>(R"(
    data {
      train { path: "train" }
      text {
        columns { name: "y" label {} }
        columns { name: "a" categorical { ids: STRING } }
        columns { name: "b" categorical { ids: STRING separator: "|" } }
      }
    }
    features { name: "a" }
    features { name: "b" }
    tables { name: "a" hashed {} }
    tables { name: "b" hashed {} }
  )"),
                                 files.root(), nullptr);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_FALSE(report->HasProblems()) << "they are legal";
  const std::string text = FormatReport(*report);
  EXPECT_THAT(text, testing::HasSubstr("odd: column \"a\": 2 value(s) are not UTF-8"));
  EXPECT_THAT(text, testing::HasSubstr("the first " + files.Path("train") + ":2: \"caf\\xe9\""));
  EXPECT_THAT(text, testing::HasSubstr("odd: column \"b\": 2 value(s) are not UTF-8"));
  EXPECT_THAT(text, testing::HasSubstr("the first " + files.Path("train") + ":3: \"x\\xff\""));
}

}  // namespace
}  // namespace sparrow
