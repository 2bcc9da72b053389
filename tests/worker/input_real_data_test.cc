// Real files, where they are there: MovieLens as a click log, and slot text with 64-bit ids.

#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "tests/worker/input_test_support.h"
#include "worker/data_check.h"

namespace sparrow {
namespace {

const std::string kData = SPARROW_SOURCE_DIR "/../shared/data";
constexpr char kSlotFile[] = "paddlerec_feasign_uint64_10.txt";
constexpr char kMovieLens[] = "movielens_clicks.tsv.gz";

#define SKIP_WITHOUT(name)                                                       \
  if (!std::filesystem::exists(kData + "/" + (name))) {                          \
    GTEST_SKIP() << "NOT TESTED: " << kData << "/" << (name) << " is not there"; \
  }

TEST(RealData, SlotIdsPassThroughUnchanged) {
  SKIP_WITHOUT(kSlotFile);
  // A naive reading of the file: for each row, slot -> feasigns as text.
  std::ifstream file(kData + "/" + kSlotFile);
  std::vector<std::map<std::string, std::vector<std::string>>> rows;
  std::set<std::string> slots;
  for (std::string line; std::getline(file, line);) {
    rows.emplace_back();
    std::istringstream tokens(line);
    for (std::string token; tokens >> token;) {
      const size_t colon = token.find(':');
      const std::string slot = token.substr(colon + 1);
      rows.back()[slot].push_back(token.substr(0, colon));
      if (slot != "1") slots.insert(slot);
    }
  }
  ASSERT_EQ(rows.size(), 10u);
  ASSERT_GE(slots.size(), 269u);

  BatchReaderOptions options;
  options.data_root = kData;
  options.data = FromText<v1::DataConfig>("slots { label_slot: \"1\" }");
  options.source.add_path(kSlotFile);
  for (const std::string& slot : slots) options.features.emplace_back().set_name(slot);
  options.batch_size = 4;
  const ReadAllResult read = ReadAll(options);
  ASSERT_TRUE(read.status.ok()) << read.status;
  ASSERT_EQ(read.Rows().size(), 10u);
  uint64_t ids = 0;
  uint64_t above = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row row = read.Rows()[i];
    EXPECT_EQ(std::to_string(static_cast<int>(row.label)), rows[i]["1"][0]);
    size_t feature = 0;
    for (const std::string& slot : slots) {
      std::vector<std::string> written;
      for (const uint64_t id : row.ids[feature]) {
        written.push_back(std::to_string(id));
        ++ids;
        if (id >> 63 != 0) ++above;
      }
      EXPECT_EQ(written, rows[i][slot]) << "row " << i << ", slot " << slot;
      ++feature;
    }
  }
  EXPECT_EQ(ids, 4547u - 10u);  // All tokens of the file but the labels.
  EXPECT_NEAR(static_cast<double>(above) / static_cast<double>(ids), 0.5, 0.05);
}

v1::DataConfig MovieLensData() {
  return FromText<v1::DataConfig>(R"(
    text {
      header: true
      columns { name: "label" label {} }
      columns { name: "user_ratings" dense {} }
      columns { name: "movie_ratings" dense {} }
      columns { name: "movie_age" dense {} }
      columns { name: "user" categorical {} }
      columns { name: "movie" categorical {} }
      columns { name: "genres" categorical { ids: STRING separator: "|" } }
    })");
}

TEST(RealData, MovieLensIsReadWholeAndCutByShares) {
  SKIP_WITHOUT(kMovieLens);
  BatchReaderOptions options;
  options.data_root = kData;
  options.data = MovieLensData();
  options.source.add_path(kMovieLens);
  for (const char* name : {"user", "movie", "genres"}) options.features.emplace_back().set_name(name);
  options.batch_size = 1024;
  const std::vector<Row> all = ReadAll(options).Rows();
  ASSERT_EQ(all.size(), 100836u);
  double ones = 0;
  for (const Row& row : all) ones += row.label;
  EXPECT_NEAR(ones / 100836, 0.482, 0.0005);

  options.source.mutable_rows()->set_take_share(0.9);
  std::vector<Row> cut = ReadAll(options).Rows();
  EXPECT_EQ(cut.size(), 90752u);  // floor(0.9 * 100836 + 0.5)
  options.source.mutable_rows()->clear_take_share();
  options.source.mutable_rows()->set_skip_share(0.9);
  const std::vector<Row> rest = ReadAll(options).Rows();
  EXPECT_EQ(rest.size(), 10084u);
  cut.insert(cut.end(), rest.begin(), rest.end());
  EXPECT_TRUE(cut == all);
}

TEST(RealData, DataCheckOfMovieLensReportsWhatIsKnownOfIt) {
  SKIP_WITHOUT(kMovieLens);
  v1::Job job;
  *job.mutable_data() = MovieLensData();
  job.mutable_data()->mutable_train()->add_path(kMovieLens);
  for (const char* name : {"user", "movie", "genres"}) job.add_features()->set_name(name);
  const auto report = CheckInput(job, kData, nullptr);
  ASSERT_TRUE(report.ok()) << report.status();
  const SourceReport& train = report->sources.at(0);
  EXPECT_EQ(train.rows, 100836u);
  EXPECT_EQ(train.dense[2].missing, 18u);
  EXPECT_EQ(train.features[0].distinct, 610u);
  EXPECT_EQ(train.features[1].distinct, 9724u);
  EXPECT_EQ(train.features[1].max_id, 193609u);
  EXPECT_EQ(train.features[2].ids_per_row_max, 10u);
  EXPECT_GT(train.features[2].missing, 0u);
  EXPECT_TRUE(train.problems.empty()) << FormatReport(*report);
}

}  // namespace
}  // namespace sparrow
