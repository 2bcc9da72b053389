#ifndef SPARROW_COORDINATOR_MEMBERS_H_
#define SPARROW_COORDINATOR_MEMBERS_H_

// Who is in the cluster, each for as long as its lease is renewed.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "sparrow/v1/coordinator.pb.h"

namespace sparrow {

struct MemberRecord {
  std::string id;       // "server-1"
  uint64_t number = 0;  // 1
  v1::RegisterRequest registration;
  absl::Time heard;  // The last sign of life.

  // Servers: as of the last heartbeat.
  uint64_t rows = 0;
  uint64_t memory_used_bytes = 0;

  // Workers: the job whose task it has and has not ended yet, or empty.
  std::string job_id;

  v1::MemberKind kind() const { return registration.kind(); }
  // "server-2 (10.0.0.7:7071)"
  std::string Name() const;
};

// "server" or "worker".
const char* KindName(v1::MemberKind kind);

// OK if a member may join with this. InvalidArgument, or FailedPrecondition for another version, says why not.
absl::Status ValidateRegistration(const v1::RegisterRequest& request);

// Not thread-safe. Pointers stay valid until the member is removed.
class Members {
 public:
  // REQUIRES: `number` is new for this kind.
  MemberRecord* Add(const v1::RegisterRequest& request, uint64_t number, absl::Time now);
  MemberRecord* Find(const std::string& id);  // Null if there is none.
  // The live member that an earlier copy of the same call made, or null.
  MemberRecord* FindRequest(const v1::RegisterRequest& request);
  MemberRecord* FindServerAt(const std::string& address);
  void Remove(const std::string& id);

  // Ordered by number.
  std::vector<MemberRecord*> OfKind(v1::MemberKind kind);
  // As if all had been heard of at `now`.
  void RenewAll(absl::Time now);
  // Those not heard of since `since`.
  std::vector<MemberRecord*> SilentSince(absl::Time since);

 private:
  std::map<std::string, MemberRecord> members_;  // By id.
};

}  // namespace sparrow

#endif  // SPARROW_COORDINATOR_MEMBERS_H_
