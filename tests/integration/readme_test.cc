// The README's cluster commands, read from the README and run by a shell as they stand there, but for what must differ
// in a test: free ports instead of the fixed ones, a directory of its own, and a smaller click log.

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "tests/support/child_process.h"
#include "tests/support/temporary_directory.h"

namespace sparrow {
namespace {

using ::testing::HasSubstr;

// Ports that nobody listens on now, all different.
std::vector<int> FreePorts(size_t count) {
  std::vector<int> sockets, ports;
  for (size_t i = 0; i < count; ++i) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    sockets.push_back(socket(AF_INET, SOCK_STREAM, 0));
    EXPECT_EQ(bind(sockets.back(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(getsockname(sockets.back(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    ports.push_back(ntohs(address.sin_port));
  }
  for (const int s : sockets) close(s);
  return ports;
}

// What stands between ```sh and ```; the README has one such block.
std::string ClusterCommands() {
  const std::string readme = *ReadFile(absl::StrCat(SPARROW_SOURCE_DIR, "/README.md"));
  const std::vector<std::string> parts = absl::StrSplit(readme, "```sh\n");
  EXPECT_EQ(parts.size(), 2u) << "the README has another number of shell blocks than this test knows";
  return parts.back().substr(0, parts.back().find("```"));
}

TEST(Readme, ItsClusterCommandsTrainTheQuickstartJob) {
#ifndef NDEBUG
  GTEST_SKIP() << "The release build runs this";
#endif
  const TemporaryDirectory out;
  const std::string ctl = ProgramPath("sparrowctl");
  std::filesystem::create_directories(out.File("quickstart"));
  const RunResult gen = RunProgram({ctl, "gen", "clicks", "--rows", "20000", "--out", out.File("quickstart/clicks.tsv"),
                                    "--test-rows", "2000", "--test-out", out.File("quickstart/clicks.test.tsv")});
  ASSERT_EQ(gen.status, 0) << gen.err;

  std::string script = ClusterCommands();
  for (const char* command : {"sparrow-coordinator", "sparrow-server", "sparrow-worker", "sparrowctl cluster",
                              "sparrowctl submit", "sparrowctl jobs"}) {
    ASSERT_THAT(script, HasSubstr(command));
  }
  const std::vector<int> ports = FreePorts(6);
  const std::string coordinator = absl::StrCat("127.0.0.1:", ports[0]);
  absl::StrReplaceAll(
      {{"bin=build/release/bin", absl::StrCat("bin=", std::filesystem::path(ctl).parent_path().string())},
       {"127.0.0.1:7070", coordinator},
       {"out/", out.path() + "/"},
       // Its default is the port that the README uses.
       {"$bin/sparrowctl cluster", absl::StrCat("$bin/sparrowctl cluster --coordinator ", coordinator)},
       {"$bin/sparrowctl submit", absl::StrCat("$bin/sparrowctl submit --coordinator ", coordinator)},
       {"$bin/sparrowctl jobs", absl::StrCat("$bin/sparrowctl jobs --coordinator ", coordinator)}},
      &script);
  for (int i = 0; i < 5; ++i) {
    absl::StrReplaceAll({{absl::StrCat("127.0.0.1:947", i), absl::StrCat("127.0.0.1:", ports[i + 1])}}, &script);
  }
  EXPECT_FALSE(absl::StrContains(script, ":947")) << script;
  const RunResult run = RunProgram({"/bin/bash", "-ec", script + "\nwait\n"}, absl::Minutes(5),
                                   {.directory = SPARROW_SOURCE_DIR, .environment = {}});
  EXPECT_EQ(run.status, 0) << run.out << run.err;
  EXPECT_THAT(run.out, HasSubstr("rows trained   20000"));
  EXPECT_THAT(run.out, HasSubstr("SUCCEEDED"));
}

}  // namespace
}  // namespace sparrow
