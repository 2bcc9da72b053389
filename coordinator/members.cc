#include "coordinator/members.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "coordinator/text.h"
#include "coordinator/version.h"

namespace sparrow {
namespace {

constexpr size_t kFieldBytesMax = 1024;

}  // namespace

const char* KindName(v1::MemberKind kind) { return kind == v1::SERVER ? "server" : "worker"; }

std::string MemberRecord::Name() const {
  return registration.address().empty() ? id : absl::StrCat(id, " (", OneLine(registration.address(), 256), ")");
}

absl::Status ValidateRegistration(const v1::RegisterRequest& request) {
  if (request.kind() != v1::SERVER && request.kind() != v1::WORKER) {
    return absl::InvalidArgumentError(
        absl::StrCat("kind ", static_cast<int>(request.kind()), " is neither SERVER (1) nor WORKER (2)"));
  }
  if (request.version() != kVersion) {
    return absl::FailedPreconditionError(absl::StrCat("this ", KindName(request.kind()), " has version ",
                                                      Quoted(request.version()), ", the coordinator has version \"",
                                                      kVersion, "\"; run the same version of all programs"));
  }
  if (request.kind() == v1::SERVER && request.address().empty()) {
    return absl::InvalidArgumentError("a server needs an address that workers can reach; it sent none");
  }
  for (const auto& [name, value] : {std::pair<const char*, const std::string*>{"address", &request.address()},
                                    {"device", &request.device()},
                                    {"metrics_address", &request.metrics_address()},
                                    {"request_id", &request.request_id()}}) {
    if (value->size() > kFieldBytesMax) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " has ", value->size(), " bytes; at most ", kFieldBytesMax, " are allowed"));
    }
  }
  return absl::OkStatus();
}

MemberRecord* Members::Add(const v1::RegisterRequest& request, uint64_t number, absl::Time now) {
  const std::string id = absl::StrCat(KindName(request.kind()), "-", number);
  const auto [at, inserted] = members_.try_emplace(id);
  CHECK(inserted) << id;
  at->second.id = id;
  at->second.number = number;
  at->second.registration = request;
  at->second.heard = now;
  return &at->second;
}

MemberRecord* Members::Find(const std::string& id) {
  const auto at = members_.find(id);
  return at == members_.end() ? nullptr : &at->second;
}

MemberRecord* Members::FindRequest(const v1::RegisterRequest& request) {
  if (request.request_id().empty()) return nullptr;
  for (auto& [id, member] : members_) {
    if (member.kind() == request.kind() && member.registration.request_id() == request.request_id()) return &member;
  }
  return nullptr;
}

MemberRecord* Members::FindServerAt(const std::string& address) {
  for (auto& [id, member] : members_) {
    if (member.kind() == v1::SERVER && member.registration.address() == address) return &member;
  }
  return nullptr;
}

void Members::Remove(const std::string& id) { members_.erase(id); }

std::vector<MemberRecord*> Members::OfKind(v1::MemberKind kind) {
  std::vector<MemberRecord*> found;
  for (auto& [id, member] : members_) {
    if (member.kind() == kind) found.push_back(&member);
  }
  std::sort(found.begin(), found.end(), [](const auto* a, const auto* b) { return a->number < b->number; });
  return found;
}

void Members::RenewAll(absl::Time now) {
  for (auto& [id, member] : members_) member.heard = now;
}

std::vector<MemberRecord*> Members::SilentSince(absl::Time since) {
  std::vector<MemberRecord*> found;
  for (auto& [id, member] : members_) {
    if (member.heard <= since) found.push_back(&member);
  }
  return found;
}

}  // namespace sparrow
