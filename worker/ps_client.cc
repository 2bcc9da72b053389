#include "worker/ps_client.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/parallel.h"
#include "base/status_macros.h"

namespace sparrow {
namespace {

// Rows a thread copies at least; fewer are not worth waking it.
constexpr int64_t kCopyRowsGrain = 4096;

// Makes *tables have n entries; those that stay keep their memory.
template <typename Entries>
void ResizeEntries(Entries* entries, int n) {
  while (entries->size() > n) entries->RemoveLast();
  while (entries->size() < n) entries->Add();
}

// The keys of a piece as the wire wants them.
void CopyKeys(const KeyPartition& partition, const KeyPartition::Piece& piece, std::string* bytes) {
  const uint32_t n = piece.end - piece.begin;
  const std::span<const Key> keys = partition.keys(piece.table);
  const std::span<const uint32_t> order = partition.order(piece.table);
  bytes->resize(n * sizeof(Key));
  if (order.empty()) {
    if (n > 0) std::memcpy(bytes->data(), keys.data() + piece.begin, bytes->size());
    return;
  }
  char* out = bytes->data();
  for (uint32_t i = piece.begin; i < piece.end; ++i, out += sizeof(Key)) std::memcpy(out, &keys[order[i]], sizeof(Key));
}

void GatherRows(const KeyPartition& partition, const KeyPartition::Piece& piece, uint32_t dim,
                std::span<const float> rows, std::string* bytes) {
  const uint32_t n = piece.end - piece.begin;
  const size_t row_bytes = dim * sizeof(float);
  const std::span<const uint32_t> order = partition.order(piece.table);
  bytes->resize(n * row_bytes);
  char* const out = bytes->data();
  ParallelFor(n, kCopyRowsGrain, [&](int64_t begin, int64_t end) {
    if (order.empty()) {
      std::memcpy(out + begin * row_bytes, rows.data() + (piece.begin + begin) * dim, (end - begin) * row_bytes);
      return;
    }
    for (int64_t i = begin; i < end; ++i) {
      std::memcpy(out + i * row_bytes, rows.data() + uint64_t{order[piece.begin + i]} * dim, row_bytes);
    }
  });
}

void ScatterRows(const KeyPartition& partition, const KeyPartition::Piece& piece, uint32_t dim,
                 const std::string& bytes, std::span<float> rows) {
  const size_t row_bytes = dim * sizeof(float);
  const std::span<const uint32_t> order = partition.order(piece.table);
  const char* const in = bytes.data();
  ParallelFor(piece.end - piece.begin, kCopyRowsGrain, [&](int64_t begin, int64_t end) {
    if (order.empty()) {
      std::memcpy(rows.data() + (piece.begin + begin) * dim, in + begin * row_bytes, (end - begin) * row_bytes);
      return;
    }
    for (int64_t i = begin; i < end; ++i) {
      std::memcpy(rows.data() + uint64_t{order[piece.begin + i]} * dim, in + i * row_bytes, row_bytes);
    }
  });
}

}  // namespace

PsClient::PsClient(const PsClientOptions& options, ShardAssignment shards, std::vector<PsServer> servers)
    : options_(options), shards_(std::move(shards)), servers_(std::move(servers)) {
  CHECK_EQ(servers_.size(), shards_.servers());
  CHECK(options_.chunk_bytes > 0 && options_.chunk_bytes <= kChunkBytesMax) << options_.chunk_bytes;
}

absl::StatusOr<std::vector<uint64_t>> PsClient::OpenJob(const v1::OpenJobRequest& request) {
  CallSet<v1::OpenJobRequest, v1::OpenJobResponse> calls(&servers_, &PsTransport::OpenJob, "opening the job");
  calls.Resize(servers_.size());
  for (uint32_t s = 0; s < servers_.size(); ++s) {
    v1::OpenJobRequest* own = calls.request(s);
    *own = request;
    *own->mutable_context() = options_.context;
    own->mutable_shard_map()->mutable_owner()->Assign(shards_.owner().begin(), shards_.owner().end());
    own->set_server(s);
  }
  calls.Start({options_.open_timeout, options_.unavailable_timeout}, [](size_t s) { return static_cast<uint32_t>(s); });
  RETURN_IF_ERROR(calls.Await());
  std::vector<uint64_t> rows(options_.dims.size(), 0);
  for (uint32_t s = 0; s < servers_.size(); ++s) {
    const v1::OpenJobResponse& response = calls.response(s);
    if (response.rows_size() != static_cast<int>(rows.size())) {
      return absl::InternalError(absl::StrCat("parameter server ", s, " at ", servers_[s].address,
                                              ": opening the job: answered for ", response.rows_size(), " tables of ",
                                              rows.size()));
    }
    for (size_t t = 0; t < rows.size(); ++t) rows[t] += response.rows(static_cast<int>(t));
  }
  return rows;
}

absl::StatusOr<std::vector<v1::SavedFile>> PsClient::SaveTables(const std::string& directory, uint64_t step) {
  CallSet<v1::SaveTablesRequest, v1::SaveTablesResponse> calls(&servers_, &PsTransport::SaveTables,
                                                               "saving the tables");
  calls.Resize(servers_.size());
  for (size_t s = 0; s < servers_.size(); ++s) {
    *calls.request(s)->mutable_context() = options_.context;
    calls.request(s)->set_directory(directory);
    calls.request(s)->set_step(step);
  }
  calls.Start({options_.save_timeout, options_.unavailable_timeout}, [](size_t s) { return static_cast<uint32_t>(s); });
  RETURN_IF_ERROR(calls.Await());
  std::vector<v1::SavedFile> files;
  for (size_t s = 0; s < servers_.size(); ++s) {
    files.insert(files.end(), calls.response(s).files().begin(), calls.response(s).files().end());
  }
  return files;
}

absl::Status PsClient::CloseJob() {
  CallSet<v1::CloseJobRequest, v1::CloseJobResponse> calls(&servers_, &PsTransport::CloseJob, "closing the job");
  calls.Resize(servers_.size());
  for (size_t s = 0; s < servers_.size(); ++s) *calls.request(s)->mutable_context() = options_.context;
  calls.Start({options_.close_timeout, options_.unavailable_timeout},
              [](size_t s) { return static_cast<uint32_t>(s); });
  return calls.Await();
}

void PsClient::Partition(std::span<const std::span<const Key>> keys, KeyPartition* partition) const {
  partition->Build(keys, options_.dims, shards_, options_.chunk_bytes);
}

void PsClient::Cancel() {
  for (PsServer& server : servers_) server.transport->Cancel();
}

PsPull::PsPull(PsClient* client) : client_(client), calls_(&client->servers_, &PsTransport::Pull, "pull") {}

void PsPull::Start(uint64_t step, bool create, const KeyPartition* partition) {
  partition_ = partition;
  const std::span<const KeyPartition::Chunk> chunks = partition->chunks();
  calls_.Resize(chunks.size());
  for (size_t call = 0; call < chunks.size(); ++call) {
    const KeyPartition::Chunk& chunk = chunks[call];
    v1::PullRequest* request = calls_.request(call);
    *request->mutable_context() = client_->options_.context;
    request->set_step(step);
    request->set_create(create);
    ResizeEntries(request->mutable_tables(), static_cast<int>(chunk.piece_end - chunk.piece_begin));
    for (uint32_t p = chunk.piece_begin; p < chunk.piece_end; ++p) {
      const KeyPartition::Piece& piece = partition->pieces()[p];
      v1::TableKeys* keys = request->mutable_tables(static_cast<int>(p - chunk.piece_begin));
      keys->set_table(piece.table);
      CopyKeys(*partition, piece, keys->mutable_keys());
    }
  }
  calls_.Start({client_->options_.pull_timeout, client_->options_.unavailable_timeout},
               [&](size_t call) { return chunks[call].server; });
}

absl::Status PsPull::Finish(std::span<const std::span<float>> rows) {
  CHECK(partition_ != nullptr) << "Start comes first";
  RETURN_IF_ERROR(calls_.Await());
  const std::vector<uint32_t>& dims = client_->options_.dims;
  bytes_ = 0;
  for (size_t call = 0; call < calls_.size(); ++call) {
    const KeyPartition::Chunk& chunk = partition_->chunks()[call];
    const v1::PullResponse& response = calls_.response(call);
    const auto wrong = [&](const std::string& what) {
      return absl::InternalError(absl::StrCat("parameter server ", chunk.server, " at ",
                                              client_->servers_[chunk.server].address, ": pull: answered ", what));
    };
    const uint32_t pieces = chunk.piece_end - chunk.piece_begin;
    if (response.tables_size() != static_cast<int>(pieces)) {
      return wrong(absl::StrCat(response.tables_size(), " tables where ", pieces, " were asked for"));
    }
    for (uint32_t p = 0; p < pieces; ++p) {
      const KeyPartition::Piece& piece = partition_->pieces()[chunk.piece_begin + p];
      const v1::TableRows& got = response.tables(static_cast<int>(p));
      const uint32_t dim = dims[piece.table];
      const uint64_t n = piece.end - piece.begin;
      if (got.table() != piece.table || got.dim() != dim || got.rows().size() != n * dim * sizeof(float)) {
        return wrong(absl::StrCat("table ", got.table(), " of dim ", got.dim(), " in ", got.rows().size(),
                                  " bytes where table ", piece.table, " of dim ", dim, " in ", n * dim * sizeof(float),
                                  " bytes was asked for"));
      }
      ScatterRows(*partition_, piece, dim, got.rows(), rows[piece.table]);
      bytes_ += n * (sizeof(Key) + dim * sizeof(float));
    }
  }
  partition_ = nullptr;
  return absl::OkStatus();
}

PsPush::PsPush(PsClient* client) : client_(client), calls_(&client->servers_, &PsTransport::Push, "push") {}

void PsPush::Start(const Step& step, const KeyPartition& partition, std::span<const std::span<const float>> gradients) {
  const std::span<const KeyPartition::Chunk> chunks = partition.chunks();
  calls_.Resize(chunks.size());
  bytes_ = 0;
  for (size_t c = 0; c < chunks.size(); ++c) {
    const KeyPartition::Chunk& chunk = chunks[c];
    v1::PushRequest* request = calls_.request(c);
    *request->mutable_context() = client_->options_.context;
    request->set_step(step.step);
    request->set_part(chunk.part);
    request->set_parts(chunk.parts);
    request->set_samples(step.samples);
    request->set_learning_rate_factor(step.learning_rate_factor);
    ResizeEntries(request->mutable_tables(), static_cast<int>(chunk.piece_end - chunk.piece_begin));
    for (uint32_t p = chunk.piece_begin; p < chunk.piece_end; ++p) {
      const KeyPartition::Piece& piece = partition.pieces()[p];
      const uint32_t dim = client_->options_.dims[piece.table];
      v1::TableGradients* table = request->mutable_tables(static_cast<int>(p - chunk.piece_begin));
      table->set_table(piece.table);
      CopyKeys(partition, piece, table->mutable_keys());
      GatherRows(partition, piece, dim, gradients[piece.table], table->mutable_gradients());
      bytes_ += table->keys().size() + table->gradients().size();
    }
  }
  calls_.Start({client_->options_.push_timeout, client_->options_.unavailable_timeout},
               [&](size_t c) { return chunks[c].server; });
}

absl::Status PsPush::Finish() { return calls_.Await(); }

}  // namespace sparrow
