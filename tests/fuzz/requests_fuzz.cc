// A shard survives every sequence of pulls and pushes that clients can send, of one worker or two, with pulls ahead or
// without: it answers or refuses, an answer is what was asked for, and what waits ends with its job.

#include <google/protobuf/stubs/logging.h>

#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "embedding/row_codec.h"
#include "embedding/row_layout.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/server/shard_fixture.h"

namespace sparrow {
namespace {

enum Kind : char { kPull, kPush, kCancel, kKinds };

void CheckAnswer(const TestJob& job, const v1::PullRequest& pull, const v1::PullResponse& answer) {
  CHECK_EQ(answer.tables_size(), pull.tables_size());
  for (int i = 0; i < pull.tables_size(); ++i) {
    const v1::TableRows& table = answer.tables(i);
    CHECK_EQ(table.table(), pull.tables(i).table());
    const uint64_t keys = pull.tables(i).keys().size() / sizeof(Key);
    const uint32_t dim = job.tables[table.table()].dim();
    const uint64_t record_bytes = dim * sizeof(float) + sizeof(RowMetadata);  // Of SGD.
    CHECK_EQ(table.rows().size(),
             keys * (pull.records() ? record_bytes : RowWireBytes(static_cast<RowType>(pull.row_type()), dim)));
    CHECK(pull.ahead() || table.pending().empty());
    CHECK_EQ(table.pending().size() % sizeof(uint32_t), 0u);
    std::vector<uint32_t> pending(table.pending().size() / sizeof(uint32_t));
    CopyBytes(absl::string_view(table.pending()), std::span<uint32_t>(pending));
    for (size_t p = 0; p < pending.size(); ++p) {
      CHECK_LT(pending[p], keys);
      CHECK(p == 0 || pending[p - 1] < pending[p]);
    }
  }
}

// A shard with an open job: table 0 is hashed, table 1 has 1,000 rows.
class Target {
 public:
  explicit Target(int way) {
    google::protobuf::SetLogHandler(nullptr);  // It writes a line for each string that is not UTF-8.
    job_.prefetch = way % 2 == 1;
    job_.workers = way / 2 % 2 == 1 ? 2 : 1;
    Open();
  }

  // Steps of a message count from those that the job has done.
  void Call(char kind, const std::string& bytes) {
    if (kind == kPush) {
      v1::PushRequest push;
      if (!push.ParseFromString(bytes)) return;
      push.set_step(push.step() + step_);
      if (server_.Push(push).ok() && push.parts() > 0) ++pushes_;
    } else if (kind == kPull) {
      v1::PullRequest pull;
      if (!pull.ParseFromString(bytes)) return;
      pull.set_step(pull.step() + step_);
      pulls_.push_back(std::make_unique<Pull>(server_.shard.get(), pull));
    } else {
      for (const auto& pull : pulls_) server_.shard->CancelPull(pull->answer.id());
    }
  }

  // The next call is served. Calls that have left a step half done are undone, so that each input begins alike.
  void End() {
    bool half_done = false;
    for (const auto& pull : pulls_) {
      half_done = half_done || !pull->answer.done() || (job_.prefetch && pull->request.create()) ||
                  (pull->request.records() && pull->answer.Wait().ok());  // Rows are lent.
      if (pull->answer.done() && pull->answer.Wait().ok()) {
        CheckAnswer(job_, pull->request, pull->answer.response());
      }
    }
    if (pushes_ > 0) {
      const uint64_t before = step_;
      while (step_ < before + pushes_ && !Look().ok()) ++step_;
      half_done = half_done || step_ == before;
    }
    if (half_done || !Look().ok()) {
      CHECK(half_done || pushes_ > 0) << Look();
      v1::CloseJobRequest close;
      *close.mutable_context() = job_.Context();
      v1::CloseJobResponse closed;
      const absl::Status status = server_.shard->CloseJob(close, &closed);
      CHECK(status.ok()) << status;
      for (const auto& pull : pulls_) CHECK(pull->answer.done());
      Open();
      const absl::Status looked = Look();
      CHECK(looked.ok()) << looked;
    }
    pulls_.clear();
    pushes_ = 0;
  }

 private:
  struct Pull {
    Pull(Shard* shard, const v1::PullRequest& pull) : request(pull), answer(shard, pull) {}
    const v1::PullRequest request;
    PullInFlight answer;
  };

  void Open() {
    const absl::Status status = server_.Open(job_);
    CHECK(status.ok()) << status;
    step_ = 0;
  }
  absl::Status Look() { return server_.Pull(job_.Pull(step_, {{0, {1, 2}}, {1, {5}}}, 0, /*create=*/false)).status(); }

  TestShard server_;
  TestJob job_;
  std::vector<std::unique_ptr<Pull>> pulls_;
  uint64_t step_ = 0;    // Steps applied.
  uint64_t pushes_ = 0;  // Taken since the last End.
};

// An input: a byte that says how the job is opened, and then calls, each a byte for its kind, two for the length of its
// message, and that.
class Input {
 public:
  explicit Input(int way) : bytes_(1, static_cast<char>(way)) {}
  Input& Add(Kind kind, const google::protobuf::Message& message) {
    const std::string bytes = message.SerializeAsString();
    const auto size = static_cast<uint16_t>(bytes.size());
    bytes_ += kind;
    bytes_.append(reinterpret_cast<const char*>(&size), sizeof(size));
    bytes_ += bytes;
    return *this;
  }
  operator std::string() const { return bytes_; }

 private:
  std::string bytes_;
};

}  // namespace

std::vector<std::string> FuzzCorpus() {
  const TestJob job;
  std::vector<std::string> corpus;
  for (int type = 0; type <= v1::RowType_MAX; ++type) {
    v1::PullRequest pull = job.Pull(0, {{0, {1, 2, ~Key{0}}}, {1, {5, 999}}});
    pull.set_row_type(static_cast<v1::RowType>(type));
    v1::PushRequest push = job.Push(0, {{0, {1, 2}, {1, 1, 1, 1, 2, 2, 2, 2}}, {1, {5}, {1, 2, 3}}});
    for (v1::TableGradients& table : *push.mutable_tables()) {
      table.set_row_type(static_cast<v1::RowType>(type));
      const uint64_t floats = table.gradients().size() / sizeof(float);
      if (type == v1::INT8) table.set_gradients(std::string(floats + table.keys().size() / sizeof(Key) * 4, '\1'));
      if (type == v1::BFLOAT16 || type == v1::FLOAT16) table.set_gradients(std::string(floats * 2, '\1'));
    }
    corpus.push_back(Input(0).Add(kPull, pull));
    corpus.push_back(Input(0).Add(kPush, push));
    corpus.push_back(Input(1).Add(kPull, pull).Add(kPush, push));
  }
  // A step in parts, and pulls ahead of it: of rows that it changes and of others.
  v1::PullRequest first = job.Pull(0, {{0, {1, 2}}});
  v1::PullRequest second = job.Pull(0, {{1, {5}}});
  for (v1::PullRequest* pull : {&first, &second}) pull->set_parts(2);
  second.set_part(1);
  v1::PullRequest ahead = job.Pull(1, {{0, {2, 3}}, {1, {5, 6}}});
  ahead.set_ahead(true);
  v1::PullRequest rest = job.Pull(1, {{0, {2}}, {1, {5}}});
  rest.set_parts(0);
  v1::PushRequest push = job.Push(0, {{0, {1, 2}, {1, 1, 1, 1, 2, 2, 2, 2}}});
  v1::PushRequest last = job.Push(0, {{1, {5}, {1, 2, 3}}});
  for (v1::PushRequest* part : {&push, &last}) part->set_parts(2);
  last.set_part(1);
  corpus.push_back(Input(1)
                       .Add(kPull, first)
                       .Add(kPull, ahead)
                       .Add(kPull, second)
                       .Add(kPush, push)
                       .Add(kPull, rest)
                       .Add(kPush, last));
  corpus.push_back(Input(1).Add(kPull, ahead).Add(kCancel, first).Add(kPull, second).Add(kPull, first));
  // Rows that are lent, returned in a step, and written back.
  v1::PullRequest lent = job.Pull(0, {{0, {1, 2, ~Key{0}}}, {1, {5}}});
  lent.set_records(true);
  const auto with_records = [](v1::PushRequest push, const std::vector<Key>& keys, bool keep) {
    v1::TableRecords* table = push.add_records();
    table->set_keys(std::string(AsBytes(std::span<const Key>(keys))));
    table->set_records(std::string(keys.size() * 32, '\1'));
    table->set_keep(keep);
    return push;
  };
  v1::PushRequest write_back = with_records(job.Push(1, {}), {2, ~Key{0}}, true);
  write_back.set_parts(0);
  write_back.set_complete(true);
  v1::PullRequest lent_ahead = ahead;
  lent_ahead.set_records(true);
  for (const int way : {0, 1}) {
    corpus.push_back(Input(way)
                         .Add(kPull, lent)
                         .Add(kPull, lent_ahead)
                         .Add(kPush, with_records(job.Push(0, {}), {1}, false))
                         .Add(kPush, write_back)
                         .Add(kPull, job.Pull(1, {{0, {1, 2}}}, 0, /*create=*/false))
                         .Add(kPull, job.Pull(1, {{0, {3}}, {1, {6}}}))
                         .Add(kPush, with_records(job.Push(1, {{1, {6}, {1, 1, 1}}}), {2}, true)));
    corpus.push_back(Input(way).Add(kPull, lent).Add(kPush, push).Add(kPush, with_records(push, {1, 2}, false)));
  }
  // Two workers.
  for (const int way : {2, 3}) {
    corpus.push_back(Input(way)
                         .Add(kPull, job.Pull(0, {{0, {1}}}))
                         .Add(kPull, job.Pull(0, {{0, {1, 2}}}, 1))
                         .Add(kPull, ahead)
                         .Add(kPush, job.Push(0, {{0, {1}, {1, 2, 3, 4}}}))
                         .Add(kPush, job.Push(0, {{0, {1, 2}, {1, 1, 1, 1, 2, 2, 2, 2}}}, 1))
                         .Add(kPull, job.Pull(1, {{0, {1}}})));
  }
  return corpus;
}

}  // namespace sparrow

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sparrow;
  if (size == 0) return 0;
  // All at once: what RocksDB makes with the first goes after them.
  static const std::array<std::unique_ptr<Target>, 4> targets = {
      std::make_unique<Target>(0), std::make_unique<Target>(1), std::make_unique<Target>(2),
      std::make_unique<Target>(3)};
  Target* const target = targets[data[0] % targets.size()].get();
  for (size_t at = 1; at + 3 <= size;) {
    uint16_t bytes;
    std::memcpy(&bytes, data + at + 1, sizeof(bytes));
    const size_t begin = at + 3;
    const size_t end = std::min(size, begin + bytes);
    target->Call(static_cast<char>(data[at] % kKinds),
                 std::string(reinterpret_cast<const char*>(data) + begin, end - begin));
    at = end;
  }
  target->End();
  return 0;
}
