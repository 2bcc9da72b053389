#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "client/job_file.h"

namespace sparrow {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::Job SomeJob() {
  absl::StatusOr<v1::Job> job = ParseJob(
      "data { train { path: \"a\" path: \"b\" } } tables { name: \"t\" dim: 4 } tables { name: \"u\" dim: 8 }\n"
      "features { name: \"f\" } model { dlrm { bottom: [ 8, 4 ] top: [ 2, 1 ] } }\n"
      "train { optimizer { learning_rate: 0.1 sgd {} } }",
      "test");
  EXPECT_TRUE(job.ok()) << job.status();
  return *job;
}

v1::Job With(const std::string& assignment) {
  v1::Job job = SomeJob();
  const absl::Status status = SetField(assignment, &job);
  EXPECT_TRUE(status.ok()) << status;
  return job;
}

std::string ErrorOf(const std::string& assignment) {
  v1::Job job = SomeJob();
  const absl::Status status = SetField(assignment, &job);
  EXPECT_FALSE(status.ok()) << assignment;
  return std::string(status.message());
}

TEST(SetField, SetsEveryKindOfValue) {
  EXPECT_EQ(With("name=x y").name(), "x y");
  EXPECT_EQ(With("name=a=b").name(), "a=b");
  EXPECT_EQ(With("train.batch_size=512").train().batch_size(), 512u);
  EXPECT_EQ(With("train.seed=18446744073709551615").train().seed(), 18446744073709551615u);
  EXPECT_DOUBLE_EQ(With("train.optimizer.learning_rate=1e-3").train().optimizer().learning_rate(), 1e-3);
  EXPECT_FALSE(With("checkpoint.at_end=false").checkpoint().at_end());
  EXPECT_EQ(With("data.on_bad_row=SKIP").data().on_bad_row(), v1::DataConfig::SKIP);
}

TEST(SetField, AStringMayHaveQuotesAndEscapes) {
  EXPECT_EQ(With("data.text.delimiter=\\t").data().text().delimiter(), "\t");
  EXPECT_EQ(With("data.text.delimiter=\"\\t\"").data().text().delimiter(), "\t");
  EXPECT_EQ(With("data.text.delimiter=\t").data().text().delimiter(), "\t");
  EXPECT_EQ(With("data.text.delimiter=\\x01").data().text().delimiter(), "\x01");
  EXPECT_EQ(With("data.text.delimiter=\\\\").data().text().delimiter(), "\\");
  EXPECT_EQ(With("data.text.delimiter=\"").data().text().delimiter(), "\"");
  EXPECT_EQ(With("data.train.path=\"c d\"").data().train().path(0), "c d");
  EXPECT_THAT(ErrorOf("name=\\q"), HasSubstr("write \\t for a tab"));
}

TEST(SetField, MakesMessagesOnTheWay) { EXPECT_EQ(With("eval.every_steps=5").eval().every_steps(), 5u); }

TEST(SetField, NamingAFieldOfAOneofChoosesIt) {
  const v1::Job adam = With("train.optimizer.adam.beta1=0.5");
  EXPECT_TRUE(adam.train().optimizer().has_adam());
  EXPECT_FALSE(adam.train().optimizer().has_sgd());
  EXPECT_DOUBLE_EQ(adam.train().optimizer().learning_rate(), 0.1) << "fields beside the oneof stay";
  EXPECT_TRUE(With("tables[1].hashed=").tables(1).has_hashed());
  EXPECT_EQ(With("tables[1].bounded_rows=10").tables(1).bounded_rows(), 10u);
  const v1::Job text = With("train.optimizer.momentum=momentum: 0.5");
  EXPECT_DOUBLE_EQ(text.train().optimizer().momentum().momentum(), 0.5);
}

TEST(SetField, ReachesElementsByIndexInBothSpellings) {
  EXPECT_EQ(With("tables[1].dim=16").tables(1).dim(), 16u);
  EXPECT_EQ(With("tables.1.dim=16").tables(1).dim(), 16u);
  EXPECT_EQ(With("tables.1.dim=16").tables(0).dim(), 4u);
  EXPECT_EQ(With("features[0].modulo=7").features(0).modulo(), 7u);
  EXPECT_THAT(With("data.train.path[1]=c").data().train().path(), ElementsAre("a", "c"));
}

TEST(SetField, TheIndexPastTheEndAndPlusAppend) {
  EXPECT_THAT(With("data.train.path[2]=c").data().train().path(), ElementsAre("a", "b", "c"));
  EXPECT_THAT(With("data.train.path+=c").data().train().path(), ElementsAre("a", "b", "c"));
  EXPECT_EQ(With("tables[2].name=v").tables_size(), 3);
  EXPECT_EQ(With("tables+=name: \"v\" dim: 2").tables(2).dim(), 2u);
  EXPECT_THAT(With("model.dlrm.top+=9").model().dlrm().top(), ElementsAre(2, 1, 9));
}

TEST(SetField, AListWithoutIndexIsReplacedWhole) {
  EXPECT_THAT(With("model.dlrm.bottom=64,32, 4").model().dlrm().bottom(), ElementsAre(64, 32, 4));
  EXPECT_THAT(With("data.train.path=c,d").data().train().path(), ElementsAre("c,d")) << "a name may have a comma";
}

TEST(SetField, UnknownNamesAreAnsweredWithTheFieldsThere) {
  EXPECT_THAT(ErrorOf("train.batchsize=5"),
              HasSubstr("TrainConfig has no field \"batchsize\"; did you mean batch_size?"));
  EXPECT_THAT(ErrorOf("train.batchsize=5"), HasSubstr("epochs, steps_max, optimizer"));
  EXPECT_THAT(ErrorOf("zzz=5"), HasSubstr("its fields are name, data, tables, features, model, train"));
}

TEST(SetField, WrongValuesAreRefusedWithWhatWouldDo) {
  EXPECT_THAT(ErrorOf("train.batch_size=-1"), HasSubstr("\"-1\" is not an integer from 0 to 4294967295"));
  EXPECT_THAT(ErrorOf("train.batch_size=4294967296"), HasSubstr("from 0 to 4294967295"));
  EXPECT_THAT(ErrorOf("train.batch_size=2.5"), HasSubstr("not an integer"));
  EXPECT_THAT(ErrorOf("train.batch_size="), HasSubstr("not an integer"));
  EXPECT_THAT(ErrorOf("train.optimizer.learning_rate=nan"), HasSubstr("finite"));
  EXPECT_THAT(ErrorOf("train.optimizer.learning_rate=1e999"), HasSubstr("finite"));
  EXPECT_THAT(ErrorOf("checkpoint.at_end=2"), HasSubstr("true or false"));
  EXPECT_THAT(ErrorOf("data.on_bad_row=IGNORE"), HasSubstr("one of STOP, SKIP"));
  EXPECT_THAT(ErrorOf("model.dlrm.top=4,x,1"), HasSubstr("\"x\""));
  EXPECT_THAT(ErrorOf("train=5"), HasSubstr("train is a TrainConfig"));
}

TEST(SetField, WrongPathsAreRefused) {
  EXPECT_THAT(ErrorOf("train.batch_size"), HasSubstr("no '='"));
  EXPECT_THAT(ErrorOf("=5"), HasSubstr("no '='"));
  EXPECT_THAT(ErrorOf("train..seed=5"), HasSubstr("empty name"));
  EXPECT_THAT(ErrorOf("tables[9].dim=5"), HasSubstr("its index is 0 to 2 (2 appends), not \"9\""));
  EXPECT_THAT(ErrorOf("tables[-1].dim=5"), HasSubstr("not \"-1\""));
  EXPECT_THAT(ErrorOf("tables[0.dim=5"), HasSubstr("without ']'"));
  EXPECT_THAT(ErrorOf("tables=5"), HasSubstr("tables is a list of 2"));
  EXPECT_THAT(ErrorOf("name.x=5"), HasSubstr("plain value"));
  EXPECT_THAT(ErrorOf("name+=5"), HasSubstr("+="));
}

}  // namespace
}  // namespace sparrow
