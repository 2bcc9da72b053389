// Random messages to every method of the service: each is answered, none ends the process, and what is sent by an
// honest client meanwhile works as ever.

#include <gmock/gmock.h>
#include <google/protobuf/dynamic_message.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <iostream>
#include <random>

#include "absl/time/clock.h"
#include "base/rpc.h"
#include "coordinator/coordinator.h"
#include "coordinator/link.h"
#include "sparrow/v1/coordinator.grpc.pb.h"
#include "tests/coordinator/plane_fixture.h"

namespace sparrow {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

class Fuzzer {
 public:
  explicit Fuzzer(uint32_t seed) : random_(seed) {}

  uint64_t Below(uint64_t n) { return random_() % n; }

  uint64_t Number() {
    switch (Below(6)) {
      case 0:
        return 0;
      case 1:
        return 1;
      case 2:
        return Below(5);
      case 3:
        return ~uint64_t{0};
      case 4:
        return uint64_t{1} << Below(64);
      default:
        return random_();
    }
  }

  // Half of them are names that mean something here.
  std::string Text(bool bytes) {
    static const char* const kNames[] = {"job-1",      "job-2", "server-1", "worker-1", "worker-2", "0.1.0",
                                         "10.0.0.1:7", "a",     "first",    "job-",     "cpu",      "\n\"%s"};
    if (Below(2) == 0) return kNames[Below(std::size(kNames))];
    std::string text(Below(8) == 0 ? 5000 : Below(20), '\0');
    for (char& c : text) c = static_cast<char>(bytes ? Below(256) : Below(128));
    return text;
  }

  void Fill(Message* message, int depth) {
    const auto* reflection = message->GetReflection();
    for (int i = 0; i < message->GetDescriptor()->field_count(); ++i) {
      const FieldDescriptor* field = message->GetDescriptor()->field(i);
      if (Below(4) == 0) continue;
      const int repeats = field->is_repeated() ? static_cast<int>(Below(4)) : 1;
      for (int r = 0; r < repeats; ++r) FillField(message, reflection, field, depth);
    }
  }

  // What there is now.
  std::vector<std::string> members;
  std::vector<std::string> jobs;
  std::vector<std::pair<std::string, std::string>> busy;  // Worker and job.

  // Makes a random message one that could come from a member or client: what the service looks at first is right.
  void MakePlausible(Message* message) {
    const auto* reflection = message->GetReflection();
    const auto* descriptor = message->GetDescriptor();
    const auto set_string = [&](const char* field, const std::string& value) {
      const FieldDescriptor* f = descriptor->FindFieldByName(field);
      if (f != nullptr) reflection->SetString(message, f, value);
    };
    const auto set_enum = [&](const char* field, int value) {
      const FieldDescriptor* f = descriptor->FindFieldByName(field);
      if (f != nullptr) reflection->SetEnumValue(message, f, value);
    };
    set_string("version", "0.1.0");
    set_string("address", absl::StrCat("h:", Below(4)));
    set_string("member_id", OneOf(members, "worker-1"));
    set_string("job_id", OneOf(jobs, "job-1"));
    if (!busy.empty() && Below(4) != 0) {
      const auto& [worker, job] = busy[Below(busy.size())];
      set_string("member_id", worker);
      set_string("job_id", job);
    }
    set_enum("kind", static_cast<int>(1 + Below(2)));
    set_enum("end", static_cast<int>(Below(8) == 0 ? Number() : Below(2) * Below(4)));
    if (const FieldDescriptor* f = descriptor->FindFieldByName("epoch")) reflection->SetUInt64(message, f, 1);
    if (const FieldDescriptor* f = descriptor->FindFieldByName("rank")) {
      reflection->SetUInt32(message, f, static_cast<uint32_t>(Below(2)));
    }
    if (const FieldDescriptor* f = descriptor->FindFieldByName("job")) {
      // By way of bytes, since the message may be of another class than the generated one.
      const v1::SubmitRequest honest =
          Submission("x", static_cast<uint32_t>(Below(3)), static_cast<uint32_t>(Below(3)));
      reflection->MutableMessage(message, f)->MergeFromString(honest.job().SerializeAsString());
    }
  }

 private:
  std::string OneOf(const std::vector<std::string>& names, const std::string& otherwise) {
    return names.empty() ? otherwise : names[Below(names.size())];
  }

  template <typename Set, typename Add>
  static void Put(const FieldDescriptor* field, const Set& set, const Add& add) {
    field->is_repeated() ? add() : set();
  }

  void FillField(Message* m, const google::protobuf::Reflection* r, const FieldDescriptor* f, int depth) {
    const uint64_t n = Number();
    switch (f->cpp_type()) {
      case FieldDescriptor::CPPTYPE_UINT32:
        return Put(
            f, [&] { r->SetUInt32(m, f, static_cast<uint32_t>(n)); },
            [&] { r->AddUInt32(m, f, static_cast<uint32_t>(n)); });
      case FieldDescriptor::CPPTYPE_UINT64:
        return Put(
            f, [&] { r->SetUInt64(m, f, n); }, [&] { r->AddUInt64(m, f, n); });
      case FieldDescriptor::CPPTYPE_INT32:
        return Put(
            f, [&] { r->SetInt32(m, f, static_cast<int32_t>(n)); },
            [&] { r->AddInt32(m, f, static_cast<int32_t>(n)); });
      case FieldDescriptor::CPPTYPE_INT64:
        return Put(
            f, [&] { r->SetInt64(m, f, static_cast<int64_t>(n)); },
            [&] { r->AddInt64(m, f, static_cast<int64_t>(n)); });
      case FieldDescriptor::CPPTYPE_DOUBLE: {
        const double d = n == 1 ? std::nan("") : static_cast<double>(n) * 1e300;
        return Put(
            f, [&] { r->SetDouble(m, f, d); }, [&] { r->AddDouble(m, f, d); });
      }
      case FieldDescriptor::CPPTYPE_FLOAT:
        return Put(
            f, [&] { r->SetFloat(m, f, static_cast<float>(n)); }, [&] { r->AddFloat(m, f, static_cast<float>(n)); });
      case FieldDescriptor::CPPTYPE_BOOL:
        return Put(
            f, [&] { r->SetBool(m, f, n % 2 == 0); }, [&] { r->AddBool(m, f, n % 2 == 0); });
      case FieldDescriptor::CPPTYPE_ENUM: {
        // proto3 enums are open: any number may come. proto2's are closed.
        const bool open = f->file()->syntax() == google::protobuf::FileDescriptor::SYNTAX_PROTO3;
        const int value = open && Below(4) == 0
                              ? static_cast<int>(n)
                              : f->enum_type()->value(static_cast<int>(Below(f->enum_type()->value_count())))->number();
        return Put(
            f, [&] { r->SetEnumValue(m, f, value); }, [&] { r->AddEnumValue(m, f, value); });
      }
      case FieldDescriptor::CPPTYPE_STRING: {
        const std::string text = Text(f->type() == FieldDescriptor::TYPE_BYTES);
        return Put(
            f, [&] { r->SetString(m, f, text); }, [&] { r->AddString(m, f, text); });
      }
      case FieldDescriptor::CPPTYPE_MESSAGE:
        if (depth == 0) return;
        return Fill(f->is_repeated() ? r->AddMessage(m, f) : r->MutableMessage(m, f), depth - 1);
    }
  }

  std::mt19937_64 random_;
};

class FuzzTest : public testing::Test {
 protected:
  FuzzTest() {
    CoordinatorOptions options;
    options.listen = "";
    options.state = "";
    options.lease = absl::Seconds(60);
    coordinator = *Coordinator::Start(options, &metrics);
    link = std::make_unique<CoordinatorLink>(coordinator->InProcessChannel(), "test");
    generic = std::make_unique<grpc::GenericStub>(coordinator->InProcessChannel());
  }

  // One call of a method by name with these bytes, given up after a while. Streams are read for that while too.
  grpc::Status Call(const google::protobuf::MethodDescriptor* method, const std::string& bytes) {
    grpc::ClientContext context;
    context.set_deadline(DeadlineAfter(absl::Milliseconds(method->server_streaming() ? 20 : 5000)));
    grpc::Slice slice(bytes);
    const grpc::ByteBuffer request(&slice, 1);
    grpc::CompletionQueue queue;
    const std::string path = absl::StrCat("/", method->service()->full_name(), "/", method->name());
    std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call = generic->PrepareCall(&context, path, &queue);
    grpc::Status status;
    void* tag = nullptr;
    bool ok = false;
    call->StartCall(nullptr);
    queue.Next(&tag, &ok);
    call->WriteLast(request, grpc::WriteOptions(), nullptr);
    queue.Next(&tag, &ok);
    grpc::ByteBuffer response;
    do {
      call->Read(&response, nullptr);
      queue.Next(&tag, &ok);
    } while (ok);
    call->Finish(&status, nullptr);
    queue.Next(&tag, &ok);
    return status;
  }

  Metrics metrics;
  std::unique_ptr<Coordinator> coordinator;
  std::unique_ptr<CoordinatorLink> link;
  std::unique_ptr<grpc::GenericStub> generic;
};

constexpr uint32_t kSeed = 20261129;

TEST_F(FuzzTest, RandomMessagesAreAnsweredAndHonestWorkGoesOn) {
  std::cout << "seed " << kSeed << std::endl;
  Fuzzer fuzzer(kSeed);
  const auto* service = v1::RegisterRequest::descriptor()->file()->FindServiceByName("Coordinator");
  google::protobuf::DynamicMessageFactory factory;
  const std::string server = link->Register(Registration(v1::SERVER, "h:1"))->member_id();
  const std::string worker = link->Register(Registration(v1::WORKER, "h"))->member_id();
  std::map<std::string, int> answered;
  for (int round = 0; round < 3000; ++round) {
    const auto* method = service->method(static_cast<int>(fuzzer.Below(service->method_count())));
    // Those that end things are rarer, so that something is there.
    if ((method->name() == "Leave" || method->name() == "CancelJob") && fuzzer.Below(8) != 0) continue;
    if (round % 10 == 0) {
      fuzzer.members.clear();
      fuzzer.jobs.clear();
      fuzzer.busy.clear();
      const v1::GetClusterResponse cluster = *link->GetCluster();
      for (const v1::Member& member : cluster.members()) {
        fuzzer.members.push_back(member.member_id());
        if (member.job_id().empty()) continue;
        fuzzer.jobs.push_back(member.job_id());
        fuzzer.busy.emplace_back(member.member_id(), member.job_id());
      }
    }
    const std::unique_ptr<Message> message(factory.GetPrototype(method->input_type())->New());
    fuzzer.Fill(message.get(), 5);
    if (fuzzer.Below(4) != 0) fuzzer.MakePlausible(message.get());
    if (method->name() == "GetRendezvous") {
      const auto* field = method->input_type()->FindFieldByName("timeout_ms");
      message->GetReflection()->SetUInt32(message.get(), field, static_cast<uint32_t>(fuzzer.Below(3)));
    }
    std::string bytes = message->SerializePartialAsString();
    if (fuzzer.Below(8) == 0 && !bytes.empty())
      bytes[fuzzer.Below(bytes.size())] ^= static_cast<char>(1 + fuzzer.Below(255));
    const grpc::Status status = Call(method, bytes);
    ++answered[absl::StrCat(method->name(), status.ok() ? " ok" : " refused")];
    if (!method->server_streaming()) {
      // The service's own DEADLINE_EXCEEDED (GetRendezvous) says what is missing; this is gRPC's.
      EXPECT_NE(status.error_message(), "Deadline Exceeded") << method->name() << " " << message->DebugString();
    }
    EXPECT_LT(status.error_message().size(), 4096u);
    EXPECT_EQ(status.error_message().find('\n'), std::string::npos) << status.error_message();
  }
  for (const auto& [what, count] : answered) std::cout << what << ": " << count << "\n";

  for (const char* what :
       {"Register ok", "Report ok", "PutRendezvous ok", "Submit ok", "CancelJob ok", "Heartbeat ok"}) {
    EXPECT_GT(answered[what], 0) << "the messages are too far from real ones to get anywhere";
  }

  // Everything that lies about by now goes; an honest job then runs through.
  const v1::ListJobsResponse jobs = *link->ListJobs();
  for (const v1::JobStatus& job : jobs.jobs()) {
    if (job.state() != v1::JobStatus::QUEUED) continue;
    EXPECT_TRUE(link->CancelJob(job.job_id()).ok());
  }
  const std::string fresh = link->Register(Registration(v1::WORKER, "h"))->member_id();
  link->Register(Registration(v1::SERVER, "honest:1")).IgnoreError();
  const std::string job = link->Submit(Submission("honest", 1, 1))->job_id();
  const v1::GetClusterResponse cluster = *link->GetCluster();
  for (const v1::Member& member : cluster.members()) {
    if (member.job_id() != job) continue;
    ASSERT_TRUE(link->Report(ReportOf(member.member_id(), job, 0, v1::ReportRequest::SUCCEEDED)).ok());
  }
  EXPECT_EQ(link->GetJob(job)->status().state(), v1::JobStatus::SUCCEEDED);
}

TEST_F(FuzzTest, BytesThatAreNoMessageAreRefused) {
  std::cout << "seed " << kSeed << std::endl;
  Fuzzer fuzzer(kSeed);
  const auto* service = v1::RegisterRequest::descriptor()->file()->FindServiceByName("Coordinator");
  for (int round = 0; round < 300; ++round) {
    const auto* method = service->method(static_cast<int>(fuzzer.Below(service->method_count())));
    if (method->server_streaming()) continue;
    std::string bytes(fuzzer.Below(200), '\0');
    for (char& c : bytes) c = static_cast<char>(fuzzer.Below(256));
    const grpc::Status status = Call(method, bytes);
    EXPECT_NE(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << method->name();
  }
  EXPECT_TRUE(link->ListJobs().ok());
}

}  // namespace
}  // namespace sparrow
