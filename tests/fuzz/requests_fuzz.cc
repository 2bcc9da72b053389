// A shard survives every pull and push that a client can send: it answers or refuses, and the next call is served.

#include <google/protobuf/stubs/logging.h>

#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/server/shard_fixture.h"

namespace sparrow {
namespace {

// A shard with an open job: table 0 is hashed, table 1 has 1,000 rows.
struct Open {
  Open() {
    google::protobuf::SetLogHandler(nullptr);  // It writes a line for each string that is not UTF-8.
    const absl::Status status = server.Open(job);
    CHECK(status.ok()) << status;
  }
  TestShard server;
  TestJob job;
};
Open& Target() {
  static Open& open = *new Open;
  return open;
}

}  // namespace

std::vector<std::string> FuzzCorpus() {
  const TestJob job;
  std::vector<std::string> corpus;
  for (int type = 0; type <= v1::RowType_MAX; ++type) {
    v1::PullRequest pull = job.Pull(0, {{0, {1, 2, ~Key{0}}}, {1, {5, 999}}});
    pull.set_row_type(static_cast<v1::RowType>(type));
    corpus.push_back('\0' + pull.SerializeAsString());
    v1::PushRequest push = job.Push(0, {{0, {1, 2}, {1, 1, 1, 1, 2, 2, 2, 2}}, {1, {5}, {1, 2, 3}}});
    for (v1::TableGradients& table : *push.mutable_tables()) {
      table.set_row_type(static_cast<v1::RowType>(type));
      const uint64_t floats = table.gradients().size() / sizeof(float);
      if (type == v1::INT8) table.set_gradients(std::string(floats + table.keys().size() / sizeof(Key) * 4, '\1'));
      if (type == v1::BFLOAT16 || type == v1::FLOAT16) table.set_gradients(std::string(floats * 2, '\1'));
    }
    corpus.push_back('\1' + push.SerializeAsString());
  }
  return corpus;
}

}  // namespace sparrow

// The first byte chooses the call.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sparrow;
  if (size == 0) return 0;
  static uint64_t step = 0;
  Open& target = Target();
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 0) {
    v1::PullRequest pull;
    if (!pull.ParseFromString(bytes)) return 0;
    if (pull.step() == 0) pull.set_step(step);
    target.server.Pull(pull).status().IgnoreError();
  } else {
    v1::PushRequest push;
    if (!push.ParseFromString(bytes)) return 0;
    if (push.step() == 0) push.set_step(step);
    target.server.Push(push).IgnoreError();
  }
  // The next call is served.
  v1::PullRequest look = target.job.Pull(step, {{0, {1, 2}}, {1, {5}}}, 0, /*create=*/false);
  absl::StatusOr<v1::PullResponse> rows = target.server.Pull(look);
  if (!rows.ok()) {  // The push was a whole step.
    look.set_step(++step);
    rows = target.server.Pull(look);
  }
  CHECK(rows.ok()) << rows.status();
  return 0;
}
