#include "worker/hot_message.h"

#include <cstring>
#include <optional>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "embedding/apply.h"

namespace sparrow {
namespace {

constexpr uint64_t kSamplesMax = uint64_t{1} << 32;

struct Proposal {
  uint64_t key;
  uint32_t table;
  uint32_t uses;
};
static_assert(sizeof(Proposal) == 16);

template <typename T>
void AppendArray(std::span<const T> values, std::string* bytes) {
  bytes->append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
}

// Takes values off the front of a message.
class Reader {
 public:
  explicit Reader(absl::string_view bytes) : left_(bytes) {}

  template <typename T>
  std::optional<T> One() {
    if (left_.size() < sizeof(T)) return std::nullopt;
    T value;
    std::memcpy(&value, left_.data(), sizeof(T));
    left_.remove_prefix(sizeof(T));
    return value;
  }
  // Where they lie.
  template <typename T>
  std::optional<std::span<const T>> Array(uint64_t n) {
    if (left_.size() / sizeof(T) < n) return std::nullopt;
    CHECK_EQ(reinterpret_cast<uintptr_t>(left_.data()) % alignof(T), 0u);
    const std::span<const T> values(reinterpret_cast<const T*>(left_.data()), n);
    left_.remove_prefix(values.size_bytes());
    return values;
  }
  bool empty() const { return left_.empty(); }

 private:
  absl::string_view left_;
};

absl::Status CheckHead(const HotHead& head, const HotHead& expected) {
  const auto differ = [](absl::string_view what, uint64_t theirs, uint64_t here) {
    return absl::FailedPreconditionError(absl::StrCat(what, " is ", theirs, ", expected ", here));
  };
  if (head.magic != expected.magic) return differ("the message's mark", head.magic, expected.magic);
  if (head.rank != expected.rank) return differ("the message's rank", head.rank, expected.rank);
  if (head.step != expected.step) return differ("the step", head.step, expected.step);
  if (head.set != expected.set) return differ("the digest of the rows held", head.set, expected.set);
  if (head.records != expected.records) {
    return differ("the digest of the rows' values", head.records, expected.records);
  }
  return absl::OkStatus();
}

absl::Status CheckGradientsOf(const HotGradients& message, const TableSpec& spec, uint32_t table, const HotSet& set) {
  std::vector<Key> keys;
  keys.reserve(message.slots.size());
  for (const uint32_t slot : message.slots) {
    const RowName* const name = slot < set.slots() ? set.At(slot) : nullptr;
    if (name == nullptr || name->table != table) {
      return absl::FailedPreconditionError(
          absl::StrCat("a gradient is of slot ", slot, ", where no row of table \"", spec.name, "\" is held"));
    }
    keys.push_back(name->key);
  }
  return CheckGradients(spec, keys, message.gradients, 1);
}

absl::Status CheckProposal(const RowUses& proposal, std::span<const TableSpec> tables, std::span<const HotSet> sets,
                           std::span<const size_t> set_of_table) {
  const uint32_t table = proposal.name.table;
  if (table >= tables.size()) {
    return absl::FailedPreconditionError(
        absl::StrCat("table ", table, " of a proposed row is not one of the job's ", tables.size()));
  }
  const Key key = proposal.name.key;
  const char* const wrong = proposal.uses == 0                                                     ? "without a use"
                            : tables[table].bounded_rows != 0 && key >= tables[table].bounded_rows ? "beyond its table"
                            : sets[set_of_table[table]].Find(proposal.name) != kNoSlot ? "that is held already"
                                                                                       : nullptr;
  if (wrong == nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("table \"", tables[table].name, "\": id ", key, " is proposed, a row ", wrong));
}

absl::StatusOr<HotMessage> Parse(absl::string_view bytes, const HotHead& expected, std::span<const TableSpec> tables,
                                 std::span<const HotSet> sets, std::span<const size_t> set_of_table) {
  const auto short_by = [&](const auto&... where) {
    return absl::FailedPreconditionError(absl::StrCat("the message of ", bytes.size(), " bytes ends in ", where...));
  };
  Reader reader(bytes);
  HotMessage message;
  const std::optional<HotHead> head = reader.One<HotHead>();
  if (!head.has_value()) return short_by("its head");
  message.head = *head;
  RETURN_IF_ERROR(CheckHead(message.head, expected));
  if (message.head.samples > kSamplesMax) {
    return absl::FailedPreconditionError(absl::StrCat("it has ", message.head.samples, " samples"));
  }
  for (uint32_t t = 0; t < tables.size(); ++t) {
    const std::optional<uint32_t> n = reader.One<uint32_t>();
    const auto slots = reader.Array<uint32_t>(n.value_or(0));
    const auto gradients = reader.Array<float>(uint64_t{n.value_or(0)} * tables[t].dim);
    if (!n.has_value() || !slots.has_value() || !gradients.has_value()) {
      return short_by("the gradients of table \"", tables[t].name, "\"");
    }
    if (*n > 0 && message.head.samples == 0) {
      return absl::FailedPreconditionError(absl::StrCat("it has ", *n, " gradients from 0 samples"));
    }
    message.tables.push_back({.slots = *slots, .gradients = *gradients});
    RETURN_IF_ERROR(CheckGradientsOf(message.tables.back(), tables[t], t, sets[set_of_table[t]]));
  }
  const std::optional<uint32_t> n = reader.One<uint32_t>();
  if (!n.has_value()) return short_by("the number of its proposals");
  absl::flat_hash_set<RowName, RowNameHash> names;
  for (uint32_t i = 0; i < *n; ++i) {
    const std::optional<Proposal> proposal = reader.One<Proposal>();
    if (!proposal.has_value()) return short_by("proposal ", i, " of ", *n);
    message.proposals.push_back({.name = {.key = proposal->key, .table = proposal->table}, .uses = proposal->uses});
    RETURN_IF_ERROR(CheckProposal(message.proposals.back(), tables, sets, set_of_table));
    if (names.insert(message.proposals.back().name).second) continue;
    return absl::FailedPreconditionError(absl::StrCat("id ", proposal->key, " is proposed twice"));
  }
  const std::optional<uint32_t> shares = reader.One<uint32_t>();
  const auto rows = reader.Array<uint32_t>(shares.value_or(0));
  if (!shares.has_value() || !rows.has_value()) return short_by("the numbers of rows on a GPU");
  if (*shares != 0 && *shares != sets.size()) {
    return absl::FailedPreconditionError(
        absl::StrCat("it has numbers of rows of ", *shares, " shares, expected ", sets.size()));
  }
  message.rows_on_gpu.assign(rows->begin(), rows->end());
  for (size_t s = 0; s < message.rows_on_gpu.size(); ++s) {
    const uint32_t most = message.head.samples == 0 ? 0 : sets[s].slots();
    if (message.rows_on_gpu[s] <= most) continue;
    return absl::FailedPreconditionError(absl::StrCat("it has ", message.rows_on_gpu[s], " gradients on its GPU from ",
                                                      message.head.samples, " samples, of ", sets[s].slots(),
                                                      " rows held"));
  }
  if (!reader.empty()) return absl::FailedPreconditionError("the message goes on behind its end");
  return message;
}

}  // namespace

void AppendHotMessage(const HotMessage& message, std::string* bytes) {
  AppendArray(std::span<const HotHead>(&message.head, 1), bytes);
  for (const HotGradients& table : message.tables) {
    const uint32_t n = static_cast<uint32_t>(table.slots.size());
    AppendArray(std::span<const uint32_t>(&n, 1), bytes);
    AppendArray(table.slots, bytes);
    AppendArray(table.gradients, bytes);
  }
  const uint32_t n = static_cast<uint32_t>(message.proposals.size());
  AppendArray(std::span<const uint32_t>(&n, 1), bytes);
  for (const RowUses& row : message.proposals) {
    const Proposal proposal{.key = row.name.key, .table = row.name.table, .uses = row.uses};
    AppendArray(std::span<const Proposal>(&proposal, 1), bytes);
  }
  const uint32_t shares = static_cast<uint32_t>(message.rows_on_gpu.size());
  AppendArray(std::span<const uint32_t>(&shares, 1), bytes);
  AppendArray(std::span<const uint32_t>(message.rows_on_gpu), bytes);
}

absl::StatusOr<HotMessage> ParseHotMessage(absl::string_view bytes, const HotHead& expected,
                                           std::span<const TableSpec> tables, std::span<const HotSet> sets,
                                           std::span<const size_t> set_of_table) {
  absl::StatusOr<HotMessage> message = Parse(bytes, expected, tables, sets, set_of_table);
  if (message.ok()) return message;
  return Annotate(message.status(),
                  absl::StrCat("step ", expected.step, ": rows held by all workers: worker ", expected.rank));
}

}  // namespace sparrow
