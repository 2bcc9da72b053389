#include "dense/reduction_terms.h"

#include <array>
#include <cstring>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace sparrow {
namespace {

// As they travel: all of one machine type, since gradients do as well.
struct Message {
  uint64_t format = 1;
  uint64_t rank = 0;
  uint64_t size = 0;
  uint64_t able = 0;
  uint64_t library = 0;
  uint64_t gpu = 0;
  uint64_t floats = 0;
  uint64_t layout = 0;
};

absl::Status Differ(uint32_t rank, absl::string_view what, uint64_t theirs, uint64_t expected) {
  return absl::FailedPreconditionError(absl::StrCat("workers cannot sum their gradients: rank ", rank, " has ", what,
                                                    " ", theirs, ", rank 0 has ", expected));
}

}  // namespace

absl::StatusOr<ReductionPlan> AgreeOnReduction(const ReductionTerms& mine, Collective* group) {
  const Message message{.rank = group->rank(),
                        .size = group->size(),
                        .able = mine.able ? 1u : 0u,
                        .library = mine.library,
                        .gpu = mine.gpu,
                        .floats = mine.floats,
                        .layout = mine.layout};
  ASSIGN_OR_RETURN(const std::vector<std::string> all,
                   group->AllGather(absl::string_view(reinterpret_cast<const char*>(&message), sizeof(message))));
  std::vector<Message> members(all.size());
  for (uint32_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].size() != sizeof(Message)) {
      return Differ(rank, "terms of bytes:", all[rank].size(), sizeof(Message));
    }
    std::memcpy(&members[rank], all[rank].data(), sizeof(Message));
    if (members[rank].format != message.format) return Differ(rank, "format", members[rank].format, message.format);
    if (members[rank].rank != rank) {
      return absl::FailedPreconditionError(absl::StrCat("workers cannot sum their gradients: the member in place ",
                                                        rank, " says that it is rank ", members[rank].rank));
    }
    if (members[rank].size != members[0].size) {
      return Differ(rank, "number of workers", members[rank].size, members[0].size);
    }
  }
  std::map<uint64_t, uint32_t> gpus;
  for (uint32_t rank = 0; rank < members.size(); ++rank) {
    if (members[rank].able == 0) {
      return ReductionPlan{.on_gpus = false,
                           .why_not = absl::StrCat("rank ", rank, " has no GPU, or no NCCL")};
    }
    const auto [first, fresh] = gpus.try_emplace(members[rank].gpu, rank);
    if (!fresh) {
      return ReductionPlan{.on_gpus = false,
                           .why_not = absl::StrCat("rank ", first->second, " and rank ", rank, " share a GPU")};
    }
  }
  for (uint32_t rank = 1; rank < members.size(); ++rank) {
    const Message &theirs = members[rank], &expected = members[0];
    if (theirs.library != expected.library) return Differ(rank, "NCCL version", theirs.library, expected.library);
    if (theirs.floats != expected.floats) return Differ(rank, "number of floats", theirs.floats, expected.floats);
    if (theirs.layout != expected.layout) {
      return Differ(rank, "layout with fingerprint", theirs.layout, expected.layout);
    }
  }
  return ReductionPlan{.on_gpus = true, .why_not = ""};
}

}  // namespace sparrow
