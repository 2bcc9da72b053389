// A server survives every call that opens, saves or closes a job, sent as bytes: it answers or refuses, and then
// serves the job that was open before, or opens it again.

#include <google/protobuf/stubs/logging.h>
#include <grpcpp/generic/generic_stub.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "base/check.h"
#include "base/log.h"
#include "base/rpc.h"
#include "server/service.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/saved_tables.h"
#include "tests/server/call_end.h"

namespace sparrow {
namespace {

constexpr const char* kMethods[] = {"OpenJob", "SaveTables", "CloseJob", "Push"};

class Server {
 public:
  Server() {
    google::protobuf::SetLogHandler(nullptr);  // It writes a line for each string that is not UTF-8.
    SetMinLogSeverity(LogSeverity::kError);    // And a server one for each job.
    const std::string root = shard_.directory.path();
    for (const char* directory : {"saved", "new"}) std::filesystem::create_directory(root + "/" + directory);
    const v1::Manifest manifest = SaveTables(job_, root, "saved");
    const absl::Status written = WriteManifest(root + "/saved", manifest);
    CHECK(written.ok()) << written;
    std::ofstream(root + "/new/probe") << "x";

    service_ = MakeParameterServerService(shard_.shard.get());
    auto listening = StartGrpcServer("", {service_.get()});
    CHECK(listening.ok()) << listening.status();
    grpc_ = *std::move(listening);
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(kMessageBytesMax);
    stub_ = std::make_unique<Stub>(grpc_.server->InProcessChannel(arguments));
    job_.id = "honest";
    OpenHonest();
  }
  ~Server() {
    shard_.shard->Shutdown();
    grpc_.server->Shutdown();
    grpc_.server.reset();
  }

  void Call(const char* method, const std::string& bytes) {
    const grpc::Slice slice(bytes);
    const grpc::ByteBuffer request(&slice, 1);
    grpc::ByteBuffer answer;
    grpc::ClientContext context;
    CallEnd end;
    stub_->UnaryCall(&context, absl::StrCat("/sparrow.v1.ParameterServer/", method), grpc::StubOptions(), &request,
                     &answer, [&](const grpc::Status& status) { end.Set(status); });
    end.Wait().IgnoreError();
  }

  void CheckHonest() {
    shard_.shard->KeepOnly({job_.id}, shard_.shard->opened());
    if (Look().ok()) return;
    shard_.shard->KeepOnly({}, shard_.shard->opened());  // The call has replaced, closed or trained it.
    OpenHonest();
    const absl::Status looked = Look();
    CHECK(looked.ok()) << looked;
  }

 private:
  using Stub = grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer>;

  void OpenHonest() {
    const absl::Status opened = shard_.Open(job_);
    CHECK(opened.ok()) << opened;
  }
  absl::Status Look() { return shard_.Pull(job_.Pull(0, {{0, {1, 2}}, {1, {5}}}, 0, /*create=*/false)).status(); }

  TestShard shard_;
  TestJob job_;
  std::unique_ptr<grpc::Service> service_;
  ListeningServer grpc_;
  std::unique_ptr<Stub> stub_;
};
Server& Target() {
  static Server server;
  return server;
}

}  // namespace

std::vector<std::string> FuzzCorpus() {
  std::vector<std::string> corpus;
  const auto add = [&](char method, const google::protobuf::Message& request) {
    corpus.push_back(method + request.SerializeAsString());
  };
  for (const char* id : {"other", "honest"}) {
    TestJob job;
    job.id = id;
    add(0, job.Open());
    job.epoch = 2;
    job.workers = 2;
    job.prefetch = true;
    job.restore_from = "saved";
    v1::OpenJobRequest open = job.Open();
    open.set_checkpoint_probe("new/probe");
    add(0, open);
    job.tables[0].mutable_optimizer()->mutable_adam()->set_eps(1e-6);
    job.tables[0].mutable_admission()->set_count(2);
    job.tables[0].mutable_eviction()->set_rows_max(100);
    job.tables[1].mutable_optimizer()->mutable_rowwise_adagrad();
    job.tables[1].set_storage(v1::BFLOAT16);
    job.restore_from.clear();
    add(0, job.Open());
  }
  TestJob job;
  job.id = "honest";
  v1::SaveTablesRequest save;
  *save.mutable_context() = job.Context();
  save.set_directory("new");
  add(1, save);
  save.set_directory("new/../new");
  add(1, save);
  v1::CloseJobRequest close;
  *close.mutable_context() = job.Context();
  add(2, close);
  add(3, job.Push(0, {{0, {1, 2}, {1, 1, 1, 1, 2, 2, 2, 2}}, {1, {5}, {1, 2, 3}}}));
  return corpus;
}

}  // namespace sparrow

// The first byte chooses the call.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sparrow;
  if (size == 0) return 0;
  Target().Call(kMethods[data[0] % std::size(kMethods)],
                std::string(reinterpret_cast<const char*>(data) + 1, size - 1));
  Target().CheckHonest();
  return 0;
}
