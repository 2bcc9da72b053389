// The real program, as a new user would start it: wrong command lines and wrong input, one line of error each and no
// hang; help; Ctrl-C in mid-run; a whole run from gen to export.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "tests/support/child_process.h"
#include "tests/support/temporary_directory.h"

namespace sparrow {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

RunResult Ctl(std::vector<std::string> arguments, const std::string& directory = "") {
  arguments.insert(arguments.begin(), ProgramPath("sparrowctl"));
  return RunProgram(arguments, absl::Seconds(60), {.directory = directory, .environment = {}});
}

std::string QuickstartJob() { return absl::StrCat(SPARROW_SOURCE_DIR, "/deploy/jobs/quickstart.textproto"); }

// One line on stderr, by us.
void ExpectOneLine(const RunResult& run) {
  EXPECT_THAT(run.err, StartsWith("sparrowctl: "));
  EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
}

TEST(Sparrowctl, OverviewListsEveryCommandAndEachHasAHelpPage) {
  for (const char* spelling : {"help", "--help", "-h"}) {
    const RunResult help = Ctl({spelling});
    EXPECT_EQ(help.status, 0);
    EXPECT_EQ(help.err, "");
    EXPECT_THAT(help.out, HasSubstr("commands:"));
  }
  const RunResult none = Ctl({});
  EXPECT_EQ(none.status, 2);
  for (const std::string command :
       {"run", "submit", "jobs", "watch", "cancel", "cluster", "evaluate", "predict", "export", "data", "gen"}) {
    EXPECT_THAT(none.err, HasSubstr(absl::StrCat("\n  ", command, " "))) << command;
    const RunResult page = Ctl({command, "--help"});
    EXPECT_EQ(page.status, 0) << command;
    EXPECT_THAT(page.out,
                AllOf(StartsWith("usage: sparrowctl " + command), HasSubstr("flags:"), HasSubstr("examples:")));
    EXPECT_EQ(Ctl({"help", command}).out, page.out);
  }
}

struct WrongUse {
  const char* what;
  std::vector<std::string> arguments;
  int status;
  const char* says;
};

class SparrowctlWrong : public testing::TestWithParam<WrongUse> {};

TEST_P(SparrowctlWrong, IsAOneLineErrorWithARemedy) {
  // What the arguments name: a directory with an empty file, a text that is no job, jobs whose data are wrong.
  const TemporaryDirectory directory;
  ASSERT_TRUE(WriteFileAtomically(directory.File("empty"), "").ok());
  ASSERT_TRUE(WriteFileAtomically(directory.File("typo"), "name: \"a\"\ntrain { batchsize: 5 }\n").ok());
  ASSERT_TRUE(WriteFileAtomically(directory.File("short.tsv"), "1\t2\t3\n").ok());
  ASSERT_TRUE(WriteFileAtomically(directory.File("clicks.test.tsv"), "").ok());
  std::string comma = "1";
  for (int i = 0; i < 13; ++i) absl::StrAppend(&comma, ",", i);
  for (int i = 0; i < 26; ++i) absl::StrAppend(&comma, ",5a9ed9b0");
  ASSERT_TRUE(WriteFileAtomically(directory.File("comma.csv"), comma + "\n").ok());
  std::vector<std::string> arguments = GetParam().arguments;
  for (std::string& argument : arguments) {
    if (argument == "QUICKSTART") argument = QuickstartJob();
  }
  const RunResult run = Ctl(arguments, directory.path());
  EXPECT_EQ(run.status, GetParam().status) << run.out << run.err;
  ExpectOneLine(run);
  EXPECT_THAT(run.err, HasSubstr(GetParam().says));
}

constexpr char kNobody[] = "127.0.0.1:1";  // Nothing listens there.

INSTANTIATE_TEST_SUITE_P(
    Each, SparrowctlWrong,
    testing::Values(
        WrongUse{"UnknownCommand", {"rnu", "job"}, 2, "did you mean run?"},
        WrongUse{"UnknownFlag", {"run", "job", "--wrokers", "2"}, 2, "did you mean --workers?"},
        WrongUse{"JobMissing", {"run"}, 2, "JOB is missing"},
        WrongUse{"OneTooMany", {"run", "a", "b"}, 2, "\"b\" is one argument too many"},
        WrongUse{"NegativeWorkers", {"run", "job", "--workers", "-1"}, 2, "--workers=\"-1\" is not an integer from 0"},
        WrongUse{"WrongMemory", {"run", "job", "--memory", "lots"}, 2, "4GiB"},
        WrongUse{"NegativeMemory", {"run", "job", "--memory", "-4GiB"}, 2, "4GiB"},
        WrongUse{"FlagTwice", {"run", "job", "--json", "a", "--json", "b"}, 2, "given twice"},
        WrongUse{"NoSuchJobFile", {"run", "none.textproto"}, 1, "none.textproto: no such job file"},
        WrongUse{"EmptyJobFile", {"run", "empty"}, 1, "empty: the file is empty"},
        WrongUse{"JobIsADirectory", {"run", "."}, 1, ".: is a directory"},
        WrongUse{"UnknownField", {"run", "typo"}, 1, "typo:2:"},
        WrongUse{"UnknownSet", {"run", "QUICKSTART", "--set", "train.batchsize=5"}, 1, "did you mean batch_size?"},
        WrongUse{"NegativeSet", {"run", "QUICKSTART", "--set", "train.batch_size=-5"}, 1, "an integer from 0"},
        WrongUse{"ZeroBatch", {"run", "QUICKSTART", "--set", "train.batch_size=0"}, 1, "batch_size"},
        WrongUse{"ZeroDim", {"run", "QUICKSTART", "--set", "tables[0].dim=0"}, 1, "dim"},
        WrongUse{
            "NoDataRoot", {"run", "QUICKSTART", "--data-root", "nowhere"}, 1, "--data-root nowhere: no such directory"},
        WrongUse{"DataRootIsAFile", {"run", "QUICKSTART", "--data-root", "empty"}, 1, "--data-root empty: is a file"},
        WrongUse{"NoData", {"run", "QUICKSTART"}, 1, "clicks.tsv"},
        WrongUse{"EmptyData", {"run", "QUICKSTART", "--set", "data.train.path=empty"}, 1, "empty"},
        WrongUse{"DataIsADirectory", {"run", "QUICKSTART", "--set", "data.train.path=."}, 1, "directory"},
        WrongUse{"DataOutsideTheRoot", {"run", "QUICKSTART", "--set", "data.train.path=/etc/passwd"}, 1, "/etc/passwd"},
        WrongUse{"ColumnsMissing",
                 {"run", "QUICKSTART", "--set", "data.train.path=short.tsv", "--set", "data.test.path=short.tsv"},
                 1,
                 "short.tsv"},
        // A path that is there, read in a mode that it is not in: no run on other data than the named.
        WrongUse{"TextAsSlots",
                 {"run", "QUICKSTART", "--set", "data.train.path=short.tsv", "--set", "data.slots.label_slot=click"},
                 1,
                 "the data has no dense column"},
        WrongUse{"TextAsNpy",
                 {"run", "QUICKSTART", "--set", "data.train.path=short.tsv", "--set", "data.dlrm_npy.dense_columns=13"},
                 1,
                 "short.tsv_labels.npy"},
        WrongUse{"TextAsText",
                 {"run", "QUICKSTART", "--set", "data.train.path=short.tsv", "--set", "data.text.delimiter=,"},
                 1,
                 "data.text"},
        WrongUse{"CommaAsTab",
                 {"run", "QUICKSTART", "--set", "data.train.path=comma.csv", "--set", "data.test.path=comma.csv"},
                 1,
                 "comma.csv:1: 1 field, expected 40"},
        WrongUse{"EvaluateOnlyWithoutTestFile",
                 {"run", "QUICKSTART", "--set", "train.epochs=0", "--set", "data.test.path=none.tsv"},
                 1,
                 "none.tsv"},
        WrongUse{"JsonInNoDirectory", {"run", "QUICKSTART", "--json", "none/x.json"}, 1, "--json"},
        WrongUse{"JsonIsADirectory", {"run", "QUICKSTART", "--json", "."}, 1, "is a directory"},
        WrongUse{"MetricsNotOurs", {"run", "QUICKSTART", "--metrics", "192.0.2.1:80"}, 1, "192.0.2.1:80"},
        WrongUse{"SubmitToNobody",
                 {"submit", "QUICKSTART", "--coordinator", kNobody},
                 1,
                 "start one with sparrow-coordinator"},
        WrongUse{"SubmitWithoutJob", {"submit", "--coordinator", kNobody}, 2, "JOB is missing"},
        WrongUse{"SubmitJsonWithoutWatch", {"submit", "QUICKSTART", "--json", "x"}, 2, "need --watch"},
        WrongUse{"JobsOfNobody", {"jobs", "--coordinator", kNobody}, 1, kNobody},
        WrongUse{"WatchAtNobody", {"watch", "job-1", "--coordinator", kNobody}, 1, kNobody},
        WrongUse{"CancelAtNobody", {"cancel", "job-1", "--coordinator", kNobody}, 1, kNobody},
        WrongUse{"ClusterOfNobody", {"cluster", "--coordinator", kNobody}, 1, kNobody},
        WrongUse{"GenWhat", {"gen", "money", "--rows", "1", "--out", "x"}, 2, "gen clicks"},
        WrongUse{"GenWithoutRows", {"gen", "clicks", "--out", "x"}, 2, "--rows is required"},
        WrongUse{"GenNegativeRows", {"gen", "clicks", "--rows", "-5", "--out", "x"}, 2, "from 1 to"},
        WrongUse{"GenHalfATest", {"gen", "clicks", "--rows", "5", "--out", "x", "--test-rows", "5"}, 2, "--test-out"},
        WrongUse{"GenTwiceTheSame",
                 {"gen", "clicks", "--rows", "5", "--out", "x", "--test-rows", "5", "--test-out", "x"},
                 2,
                 "name two files"},
        WrongUse{"GenIntoNowhere", {"gen", "clicks", "--rows", "5", "--out", "none/x"}, 1, "none"},
        WrongUse{"DataWhat", {"data", "chekc", "QUICKSTART"}, 2, "data check JOB"},
        WrongUse{"TokenizeNothing", {"data", "tokenize", "--out", "x"}, 2, "give one of --bytes, --characters"},
        WrongUse{"TokenizeTwoKinds",
                 {"data", "tokenize", "--out", "x", "--input", "y", "--bytes", "--characters"},
                 2,
                 "more than one flag says"},
        WrongUse{"TokenizeWithoutInput", {"data", "tokenize", "--out", "x", "--bytes"}, 2, "--input is required"},
        WrongUse{"TokenizeGpt2WithoutFiles",
                 {"data", "tokenize", "--out", "x", "--input", "y", "--gpt2"},
                 2,
                 "--merges merges.txt --vocabulary vocab.json"},
        WrongUse{"TokenizeMergesWithoutGpt2",
                 {"data", "tokenize", "--out", "x", "--input", "y", "--bytes", "--merges", "m"},
                 2,
                 "--merges and --vocabulary are for --gpt2"},
        WrongUse{"TokenizeOntoItself",
                 {"data", "tokenize", "--out", "short.tsv", "--input", "short.tsv", "--bytes"},
                 2,
                 "name two files"},
        WrongUse{"TokenizeOntoItselfByAnotherName",
                 {"data", "tokenize", "--out", "./short.tsv", "--input", "short.tsv", "--bytes"},
                 2,
                 "--out ./short.tsv would be written over short.tsv"},
        WrongUse{"TokenizeWhatIsNotThere",
                 {"data", "tokenize", "--out", "x", "--input", "none", "--characters"},
                 1,
                 "none: cannot open"},
        WrongUse{"TokenizeEmpty", {"data", "tokenize", "--out", "x", "--input", "empty", "--bytes"}, 1, "no token"},
        WrongUse{"TokenizeByNoTokenizer",
                 {"data", "tokenize", "--out", "x", "--input", "short.tsv", "--tokenizer", "short.tsv"},
                 1,
                 "short.tsv: is no JSON"},
        WrongUse{"TokenizeIntoNowhere",
                 {"data", "tokenize", "--out", "none/x", "--input", "short.tsv", "--bytes"},
                 1,
                 "none"},
        WrongUse{"DataCheckWithoutData", {"data", "check", "QUICKSTART"}, 1, "clicks.tsv"},
        WrongUse{
            "ExportOfNothing", {"export", "none", "--to", "x"}, 1, "none was looked up from the current directory"},
        WrongUse{"ExportToNothing", {"export", "none"}, 2, "--to is required"},
        WrongUse{"EvaluateNothing", {"evaluate", "none"}, 1, "none was looked up from the current directory"},
        WrongUse{"CheckpointRootIsAFile", {"run", "QUICKSTART", "--checkpoint-root", "empty"}, 1, "empty: is a file"},
        WrongUse{"PortTooLarge", {"jobs", "--coordinator", "127.0.0.1:99999"}, 2, "--coordinator=\"127.0.0.1:99999\""},
        WrongUse{"MetricsWithoutPort", {"run", "QUICKSTART", "--metrics", "foo"}, 2, "--metrics=\"foo\": the port is"},
        WrongUse{"ResumeFromNothing", {"run", "QUICKSTART", "--resume", "none"}, 1, "none"}),
    [](const testing::TestParamInfo<WrongUse>& info) { return info.param.what; });

TEST(Sparrowctl, TextsBecomeTokensThatALanguageModelsJobTakes) {
  const TemporaryDirectory directory;
  std::string text;
  for (int i = 0; i < 200; ++i) absl::StrAppend(&text, "line ", i, "\n");
  ASSERT_TRUE(WriteFileAtomically(directory.File("a.txt"), text).ok());
  ASSERT_TRUE(WriteFileAtomically(directory.File("b.txt"), "line 7\n").ok());
  const RunResult made =
      Ctl({"data", "tokenize", "--characters", "--input", "a.txt", "--out", "a.bin"}, directory.path());
  ASSERT_EQ(made.status, 0) << made.err;
  EXPECT_THAT(made.out, AllOf(HasSubstr(absl::StrCat("a.bin: ", text.size(), " tokens of ")),
                              HasSubstr("model.gpt2.vocabulary: 16; tokenizer in a.bin.tokenizer.json\n")));
  const RunResult same = Ctl({"data", "tokenize", "--tokenizer", "a.bin.tokenizer.json", "--input", "b.txt", "--out",
                              "b.bin", "--shard-tokens", "4"},
                             directory.path());
  ASSERT_EQ(same.status, 0) << same.err;
  EXPECT_THAT(same.out, HasSubstr("b_000000.bin to b_000001.bin: 7 tokens"));

  ASSERT_TRUE(
      WriteFileAtomically(directory.File("job"),
                          "name: \"a\" data { train { path: \"a.bin\" } test { path: \"b_*.bin\" } tokens {} }\n"
                          "model { gpt2 { layers: 1 heads: 1 width: 8 context: 4 vocabulary: 16 } }\n"
                          "train { batch_size: 8 optimizer { learning_rate: 0.1 sgd {} } }\n")
          .ok());
  const RunResult check = Ctl({"data", "check", "job"}, directory.path());
  EXPECT_EQ(check.status, 0) << check.err;
  EXPECT_THAT(check.out, AllOf(HasSubstr(absl::StrCat("train: ", text.size(), " tokens: ")),
                               HasSubstr("16 of the vocabulary's 16 tokens occur"),
                               HasSubstr("test: 7 tokens: 1 windows of 4, and 2 tokens over")));
  const RunResult wrong = Ctl({"data", "check", "job", "--set", "model.gpt2.vocabulary=15"}, directory.path());
  EXPECT_EQ(wrong.status, 1);
  EXPECT_THAT(wrong.err, HasSubstr("model.gpt2.vocabulary is 15, but the tokenizer that made the tokens has 16 ("));
  ExpectOneLine(wrong);
}

TEST(Sparrowctl, ALanguageModelIsEvaluatedAndExportedAndPredictsNoRows) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(WriteFileAtomically(directory.File("a.txt"), std::string(200, 'a') + std::string(200, 'b')).ok());
  ASSERT_EQ(Ctl({"data", "tokenize", "--characters", "--input", "a.txt", "--out", "a.bin"}, directory.path()).status,
            0);
  ASSERT_TRUE(WriteFileAtomically(directory.File("job"),
                                  "name: \"a\" data { train { path: \"a.bin\" } test { path: \"a.bin\" } tokens {} }\n"
                                  "model { gpt2 { layers: 1 heads: 1 width: 8 context: 4 vocabulary: 2 } }\n"
                                  "train { batch_size: 8 steps_max: 2 optimizer { learning_rate: 0.1 adamw {} } }\n")
                  .ok());
  const RunResult run = Ctl({"run", "job"}, directory.path());
  ASSERT_EQ(run.status, 0) << run.err;
  const std::string checkpoint = "checkpoints/a-job-1/step-2";

  const RunResult evaluate = Ctl({"evaluate", checkpoint}, directory.path());
  EXPECT_EQ(evaluate.status, 0) << evaluate.err;
  EXPECT_THAT(evaluate.out, AllOf(HasSubstr("evaluation after step 2: validation loss "), HasSubstr(" on 396 tokens\n"),
                                  Not(HasSubstr("AUC"))));
  const RunResult rows = Ctl({"evaluate", checkpoint, "--predictions", "p.csv"}, directory.path());
  EXPECT_EQ(rows.status, 1);
  EXPECT_THAT(rows.out, Not(HasSubstr("evaluation"))) << "refused before the work";
  const RunResult predict =
      Ctl({"predict", checkpoint, "--set", "data.test.unlabelled=true", "--to", "p.csv"}, directory.path());
  EXPECT_EQ(predict.status, 1);
  for (const RunResult& refused : {rows, predict}) {
    EXPECT_THAT(refused.err,
                HasSubstr("job \"a\" is a language model (model.gpt2), whose data has no rows to predict"));
    ExpectOneLine(refused);
  }

  const RunResult exported = Ctl({"export", checkpoint, "--to", "out"}, directory.path());
  EXPECT_EQ(exported.status, 0) << exported.err;
  const nlohmann::json json = nlohmann::json::parse(*ReadFile(directory.File("out/model.json")));
  EXPECT_EQ(json["model"]["kind"], "gpt2");
  EXPECT_EQ(json["model"]["context"], 4);
  EXPECT_EQ(json["data"], nlohmann::json({{"format", "tokens"}}));
  EXPECT_FALSE(json.contains("features"));
  EXPECT_THAT(*ReadFile(directory.File("out/model.safetensors")), HasSubstr("\"__metadata__\":{\"format\":\"pt\"}"));
  const nlohmann::json config = nlohmann::json::parse(*ReadFile(directory.File("out/config.json")));
  EXPECT_EQ(config["model_type"], "gpt2");
  EXPECT_EQ(config["n_embd"], 8);
  EXPECT_EQ(config["vocab_size"], 2);
  EXPECT_TRUE(config["eos_token_id"].is_null());
  EXPECT_TRUE(config["bos_token_id"].is_null());

  // The end of a text is what the tokenizer says.
  ASSERT_TRUE(WriteFileAtomically(directory.File("one.json"),
                                  R"({"format": "sparrow-tokenizer", "version": 1, "kind": "characters",
                                      "vocabulary": 2, "end_of_text": 1, "characters": ["a"]})")
                  .ok());
  const RunResult named = Ctl({"export", checkpoint, "--to", "named", "--tokenizer", "one.json"}, directory.path());
  EXPECT_EQ(named.status, 0) << named.err;
  EXPECT_EQ(nlohmann::json::parse(*ReadFile(directory.File("named/config.json")))["eos_token_id"], 1);
  ASSERT_TRUE(WriteFileAtomically(directory.File("three.json"),
                                  R"({"format": "sparrow-tokenizer", "version": 1, "kind": "characters",
                                      "vocabulary": 3, "end_of_text": 2, "characters": ["a", "b"]})")
                  .ok());
  const RunResult large = Ctl({"export", checkpoint, "--to", "large", "--tokenizer", "three.json"}, directory.path());
  EXPECT_EQ(large.status, 1);
  EXPECT_THAT(large.err, HasSubstr("--tokenizer three.json has 3 tokens, but the model has 2"));
  ExpectOneLine(large);

  // What was written is read again: the same model, to the last digit of its loss.
  const RunResult again = Ctl({"run", "job", "--set", "train.epochs=0", "--set",
                               "train.init_from=out/model.safetensors", "--json", "again.json"},
                              directory.path());
  EXPECT_EQ(again.status, 0) << again.err;
  const RunResult saved = Ctl({"evaluate", checkpoint, "--json", "saved.json"}, directory.path());
  EXPECT_EQ(saved.status, 0) << saved.err;
  EXPECT_EQ(nlohmann::json::parse(*ReadFile(directory.File("again.json")))["eval_loss"],
            nlohmann::json::parse(*ReadFile(directory.File("saved.json")))["eval_loss"]);
}

TEST(Sparrowctl, AJobThatFailsWritesItsJson) {
  const TemporaryDirectory directory;
  EXPECT_EQ(Ctl({"run", "none.textproto", "--json", "a.json"}, directory.path()).status, 1);
  EXPECT_EQ(Ctl({"run", QuickstartJob(), "--json", "b.json"}, directory.path()).status, 1);
  for (const char* name : {"a.json", "b.json"}) {
    const absl::StatusOr<std::string> text = ReadFile(directory.File(name));
    ASSERT_TRUE(text.ok()) << text.status();
    const nlohmann::json json = nlohmann::json::parse(*text);
    EXPECT_EQ(json["state"], "FAILED");
    EXPECT_NE(json["message"], "");
    EXPECT_TRUE(json["train_loss"].is_null());
  }
  const nlohmann::json unopened = nlohmann::json::parse(*ReadFile(directory.File("b.json")));
  EXPECT_EQ(unopened["sources"], nlohmann::json({"clicks.tsv", "clicks.test.tsv"})) << "as the job names them";
}

// What the error suggests is taken as it stands, by a shell.
TEST(Sparrowctl, TheDelimiterThatAnErrorSuggestsWorks) {
  const TemporaryDirectory directory;
  ASSERT_EQ(Ctl({"gen", "clicks", "--rows", "600", "--out", "clicks.tsv", "--test-rows", "100", "--test-out",
                 "clicks.test.tsv"},
                directory.path())
                .status,
            0);
  const RunResult wrong = Ctl({"data", "check", QuickstartJob(), "--set", "data.criteo.delimiter=,"}, directory.path());
  EXPECT_EQ(wrong.status, 1);
  const std::string all = wrong.out + wrong.err;
  const size_t begin = all.find("--set '");
  ASSERT_NE(begin, std::string::npos) << all;
  const std::string suggested = all.substr(begin, all.find('\'', begin + 7) + 1 - begin);
  const RunResult right = RunProgram({"/bin/sh", "-c",
                                      absl::StrCat(ProgramPath("sparrowctl"), " data check ", QuickstartJob(),
                                                   " --set data.criteo.delimiter=, ", suggested)},
                                     absl::Seconds(60), {.directory = directory.path(), .environment = {}});
  EXPECT_EQ(right.status, 0) << suggested << "\n" << right.out << right.err;
}

class SparrowctlRun : public testing::Test {
 protected:
  void SetUp() override {
    const RunResult gen = Ctl({"gen", "clicks", "--rows", "20000", "--out", "clicks.tsv", "--test-rows", "1000",
                               "--test-out", "clicks.test.tsv"},
                              directory_.path());
    ASSERT_EQ(gen.status, 0) << gen.err;
    EXPECT_THAT(gen.out, HasSubstr("best possible AUC 0."));
  }

  // Interrupts a run that would last for ever; the exit status.
  std::optional<int> Interrupt(int signal) {
    ChildProcess run({ProgramPath("sparrowctl"), "run", QuickstartJob(), "--set", "train.epochs=1000000", "--set",
                      "train.batch_size=64", "--set", "eval.every_steps=0", "--json", "out.json"},
                     {.directory = directory_.path(), .environment = {}});
    EXPECT_TRUE(run.WaitForOutput("step ", absl::Seconds(30)).has_value()) << run.Stdout() << run.Stderr();
    const absl::Time start = absl::Now();
    run.Signal(signal);
    const std::optional<int> status = run.Wait(absl::Seconds(30));
    EXPECT_LT(absl::Now() - start, absl::Seconds(10));
    EXPECT_THAT(run.Stdout(), HasSubstr("CANCELLED"));
    EXPECT_EQ(nlohmann::json::parse(*ReadFile(directory_.File("out.json")))["state"], "CANCELLED");
    return status;
  }

  TemporaryDirectory directory_;
};

TEST_F(SparrowctlRun, CtrlCCancelsTheJobAndEndsWithinSeconds) { EXPECT_EQ(Interrupt(SIGINT), 130); }
TEST_F(SparrowctlRun, SigtermCancelsTheJobAndEndsWithinSeconds) { EXPECT_EQ(Interrupt(SIGTERM), 143); }

// https://github.com/aksnzhy/xlearn/issues/217
TEST_F(SparrowctlRun, ATestSetOfOneClassHasNoAucAndTheRunSucceeds) {
  std::string zeros;
  for (const std::string& line : std::vector<std::string>(
           absl::StrSplit(*ReadFile(directory_.File("clicks.test.tsv")), '\n', absl::SkipEmpty()))) {
    absl::StrAppend(&zeros, "0", line.substr(1), "\n");
  }
  ASSERT_TRUE(WriteFileAtomically(directory_.File("zeros.tsv"), zeros).ok());
  const RunResult run = Ctl({"run", QuickstartJob(), "--set", "data.test.path=zeros.tsv", "--set", "train.steps_max=5",
                             "--json", "zeros.json"},
                            directory_.path());
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_THAT(run.out, AllOf(HasSubstr("AUC undefined: one class"), HasSubstr("logloss 0.")));
  const nlohmann::json summary = nlohmann::json::parse(*ReadFile(directory_.File("zeros.json")));
  EXPECT_TRUE(summary["eval_auc"].is_null());
  EXPECT_EQ(summary["eval_auc_reason"], "undefined: one class");
  EXPECT_GT(summary["eval_loss"].get<double>(), 0);
  EXPECT_THAT(run.out, HasSubstr("calibration - on"));
  EXPECT_TRUE(summary["eval_calibration"].is_null());
}

TEST_F(SparrowctlRun, AJobThatFailsInMidRunSaysWhatItReadAndTrained) {
  std::string log = *ReadFile(directory_.File("clicks.tsv"));
  // Its name is not UTF-8, which no report on the way may be lost for.
  ASSERT_TRUE(WriteFileAtomically(directory_.File("caf\xe9.tsv"), log + "not a row\n").ok());
  const RunResult run =
      Ctl({"run", QuickstartJob(), "--set", "data.train.path=caf\\xe9.tsv", "--json", "out.json"}, directory_.path());
  EXPECT_EQ(run.status, 1);
  EXPECT_THAT(run.err, HasSubstr("caf\\xe9.tsv:20001"));
  EXPECT_THAT(run.out, HasSubstr("clicks.test.tsv\n"));
  const nlohmann::json json = nlohmann::json::parse(*ReadFile(directory_.File("out.json")));
  EXPECT_EQ(json["sources"].size(), 2u);
  EXPECT_THAT(json["sources"][0].get<std::string>(), HasSubstr(directory_.path() + "/caf\\xe9.tsv"));
  EXPECT_GT(json["rows_read"].get<uint64_t>(), 0u);
  EXPECT_GT(json["rows_trained"].get<uint64_t>(), 0u);
  EXPECT_GT(json["train_loss"].get<double>(), 0);
}

TEST_F(SparrowctlRun, TrainsEvaluatesResumesAndExports) {
  const RunResult check = Ctl({"data", "check", QuickstartJob()}, directory_.path());
  EXPECT_EQ(check.status, 0) << check.err;
  EXPECT_THAT(check.out, HasSubstr("20000"));

  const RunResult run = Ctl({"run", QuickstartJob(), "--workers", "2", "--servers", "2", "--memory", "256MiB", "--json",
                             "out.json", "--losses", "losses.csv", "--set", "train.loss_every_steps=10"},
                            directory_.path());
  ASSERT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_EQ(run.err, "");
  EXPECT_THAT(run.out, AllOf(HasSubstr("SUCCEEDED"), HasSubstr("clicks.tsv"), HasSubstr("rows read      20000")));
  const nlohmann::json summary = nlohmann::json::parse(*ReadFile(directory_.File("out.json")));
  EXPECT_EQ(summary["state"], "SUCCEEDED");
  EXPECT_EQ(summary["job"], "quickstart");
  EXPECT_EQ(summary["rows_trained"], 20000);
  EXPECT_EQ(summary["steps"], 40);
  EXPECT_EQ(summary["workers"], 2);
  EXPECT_EQ(summary["servers"], 2);
  EXPECT_GT(summary["eval_auc"].get<double>(), 0.6);
  EXPECT_THAT(*ReadFile(directory_.File("losses.csv")), StartsWith("step,loss\n0,0."));

  const std::string checkpoint = summary["checkpoint"];
  EXPECT_THAT(run.out, HasSubstr("checkpoint     " + checkpoint + "\n")) << "taken below as it is printed";
  const RunResult evaluate =
      Ctl({"evaluate", checkpoint, "--json", "eval.json", "--predictions", "p.csv"}, directory_.path());
  ASSERT_EQ(evaluate.status, 0) << evaluate.out << evaluate.err;
  const nlohmann::json measured = nlohmann::json::parse(*ReadFile(directory_.File("eval.json")));
  EXPECT_NEAR(measured["eval_auc"].get<double>(), summary["eval_auc"].get<double>(), 1e-6);
  EXPECT_NEAR(measured["eval_loss"].get<double>(), summary["eval_loss"].get<double>(), 1e-6);
  EXPECT_EQ(measured["rows_trained"], 0);
  EXPECT_TRUE(measured["train_loss"].is_null());
  EXPECT_THAT(evaluate.out, HasSubstr("train loss     -\n"));
  const RunResult relative = Ctl(
      {"evaluate",
       std::filesystem::path(checkpoint).lexically_relative(std::filesystem::canonical(directory_.path())).string()},
      directory_.path());
  EXPECT_EQ(relative.status, 0) << relative.err;
  const std::vector<std::string> predictions = absl::StrSplit(*ReadFile(directory_.File("p.csv")), '\n');
  EXPECT_EQ(predictions.size(), 1002u) << "a header, 1,000 rows, and nothing after the last line";

  const RunResult resume = Ctl({"run", QuickstartJob(), "--resume", summary["checkpoint"].get<std::string>(), "--set",
                                "train.epochs=2", "--json", "more.json"},
                               directory_.path());
  ASSERT_EQ(resume.status, 0) << resume.out << resume.err;
  EXPECT_EQ(nlohmann::json::parse(*ReadFile(directory_.File("more.json")))["rows_trained"], 20000);

  // Outside the root: the error says which root would do.
  const RunResult outside =
      Ctl({"run", QuickstartJob(), "--resume", checkpoint, "--checkpoint-root", "elsewhere"}, directory_.path());
  EXPECT_EQ(outside.status, 1);
  EXPECT_THAT(outside.err, HasSubstr("start with --checkpoint-root " +
                                     std::filesystem::path(checkpoint).parent_path().parent_path().string()));
  // Not there: those that are.
  const RunResult absent = Ctl({"evaluate", "quickstart-job-1"}, directory_.path());
  EXPECT_EQ(absent.status, 1);
  EXPECT_THAT(absent.err, HasSubstr("; checkpoints holds quickstart-job-1.2/step-80, quickstart-job-1/step-40"));

  // Hash range and tables are the checkpoint's.
  const RunResult other = Ctl({"run", QuickstartJob(), "--resume", summary["checkpoint"].get<std::string>(), "--set",
                               "features[2].modulo=1000", "--set", "train.epochs=2", "--json", "other.json"},
                              directory_.path());
  EXPECT_EQ(other.status, 1);
  EXPECT_THAT(other.err, HasSubstr("features[2].modulo is not set in the checkpoint and 1000 in the job"));
  EXPECT_EQ(nlohmann::json::parse(*ReadFile(directory_.File("other.json")))["rows_trained"], 0);

  const RunResult exported = Ctl({"export", checkpoint, "--to", "model"}, directory_.path());
  ASSERT_EQ(exported.status, 0) << exported.err;
  EXPECT_THAT(exported.out, HasSubstr("26 tables"));
  EXPECT_TRUE(std::filesystem::exists(directory_.File("model/C26.rows.npy")));
}

}  // namespace
}  // namespace sparrow
