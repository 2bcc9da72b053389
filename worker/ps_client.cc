#include "worker/ps_client.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "embedding/row_codec.h"

namespace sparrow {
namespace {

// Makes *tables have n entries; those that stay keep their memory.
template <typename Entries>
void ResizeEntries(Entries* entries, int n) {
  while (entries->size() > n) entries->RemoveLast();
  while (entries->size() < n) entries->Add();
}

void SetKeys(std::span<const Key> keys, std::string* bytes) {
  bytes->assign(reinterpret_cast<const char*>(keys.data()), keys.size_bytes());
}

std::span<const Key> KeysOf(const KeyPartition& partition, const KeyPartition::Piece& piece) {
  return partition.keys(piece.table).subspan(piece.begin, piece.end - piece.begin);
}

// The part of a table's rows that belongs to a piece.
template <typename T>
std::span<T> RowsOf(std::span<T> rows, const KeyPartition::Piece& piece, uint32_t dim) {
  return rows.subspan(size_t{piece.begin} * dim, size_t{piece.end - piece.begin} * dim);
}

// The i-th position of a `pending` field.
uint32_t PendingOf(const std::string& pending, uint64_t i) {
  uint32_t position;
  std::memcpy(&position, pending.data() + i * sizeof(position), sizeof(position));
  return position;
}

std::vector<TableShape> RecordShapes(std::vector<TableShape> tables) {
  for (TableShape& table : tables) table.dim = table.record_floats;
  return tables;
}

}  // namespace

PsClient::PsClient(const PsClientOptions& options, ShardAssignment shards, std::vector<PsServer> servers)
    : options_(options),
      record_shapes_(RecordShapes(options.tables)),
      shards_(std::move(shards)),
      servers_(std::move(servers)) {
  CHECK_EQ(servers_.size(), shards_.servers());
  uint64_t liked = kChunkBytesMax;
  for (const PsServer& server : servers_) liked = std::min(liked, server.transport->ChunkBytes());
  chunk_bytes_ = {.pull = options_.pull_chunk_bytes == 0 ? liked : options_.pull_chunk_bytes,
                  .push = options_.push_chunk_bytes == 0 ? liked : options_.push_chunk_bytes};
  for (const uint64_t bytes : {chunk_bytes_.pull, chunk_bytes_.push}) {
    CHECK(bytes > 0 && bytes <= kChunkBytesMax) << bytes;
  }
  Partition(std::vector<std::span<const Key>>(options_.tables.size()), nullptr, &no_rows_);
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
  std::vector<uint64_t> rows(options_.tables.size(), 0);
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

void PsClient::Partition(std::span<const std::span<const Key>> keys, const KeyFilter* before,
                         KeyPartition* partition) const {
  partition->Build(keys, options_.tables, shards_, chunk_bytes_, before);
}

void PsClient::PartitionRecords(std::span<const std::span<const Key>> keys, const KeyFilter* before,
                                KeyPartition* partition) const {
  partition->Build(keys, record_shapes_, shards_, chunk_bytes_, before);
}

void PsClient::Cancel() {
  for (PsServer& server : servers_) server.transport->Cancel();
}

PsPull::PsPull(PsClient* client)
    : client_(client),
      calls_(&client->servers_, &PsTransport::Pull, "pull"),
      again_(&client->servers_, &PsTransport::Pull, "pull") {}

void PsPull::SetHead(v1::PullRequest* request) const {
  *request->mutable_context() = client_->options_.context;
  request->set_step(ask_.step);
  request->set_create(ask_.create);
  request->set_row_type(ask_.records ? v1::FLOAT32 : static_cast<v1::RowType>(client_->options_.pull_type));
  request->set_records(ask_.records);
}

uint32_t PsPull::Width(uint32_t table) const {
  return ask_.records ? client_->options_.tables[table].record_floats : client_->options_.tables[table].dim;
}

uint64_t PsPull::WireBytes(uint32_t table) const {
  return RowWireBytes(ask_.records ? RowType::kFloat32 : client_->options_.pull_type, Width(table));
}

void PsPull::Start(const Ask& ask, const KeyPartition* partition, std::span<const std::span<float>> rows) {
  ask_ = ask;
  partition_ = partition;
  asked_again_ = false;
  bytes_ = 0;
  const KeyPartition::Cut& cut = partition->pulls();
  calls_.Resize(cut.chunks.size());
  for (size_t call = 0; call < cut.chunks.size(); ++call) {
    const KeyPartition::Chunk& chunk = cut.chunks[call];
    RowPull* pull = calls_.request(call);
    v1::PullRequest* request = &pull->message;
    SetHead(request);
    request->set_part(ask.beside ? 0 : chunk.part);
    request->set_parts(ask.beside ? 0 : chunk.parts);
    request->set_ahead(ask.ahead && !chunk.late);
    ResizeEntries(request->mutable_tables(), static_cast<int>(chunk.piece_end - chunk.piece_begin));
    pull->rows.clear();
    for (uint32_t p = chunk.piece_begin; p < chunk.piece_end; ++p) {
      const KeyPartition::Piece& piece = cut.pieces[p];
      v1::TableKeys* keys = request->mutable_tables(static_cast<int>(p - chunk.piece_begin));
      keys->set_table(piece.table);
      SetKeys(KeysOf(*partition, piece), keys->mutable_keys());
      pull->rows.push_back(RowsOf(rows[piece.table], piece, Width(piece.table)));
      bytes_ += keys->keys().size() + (piece.end - piece.begin) * WireBytes(piece.table);
    }
  }
  calls_.Start({client_->options_.pull_timeout, client_->options_.unavailable_timeout},
               [&](size_t call) { return cut.chunks[call].server; });
}

void PsPull::AskForPending() {
  if (asked_again_) return;
  for (size_t call = 0; call < calls_.size(); ++call) {
    if (!calls_.request(call)->message.ahead()) continue;
    if (!calls_.Answered(call) || !CheckAnswer(calls_, call).ok()) return;  // Finish tells what is wrong.
  }
  StartAgain();
}

absl::Status PsPull::Finish() {
  CHECK(partition_ != nullptr) << "Start comes first";
  partition_ = nullptr;
  RETURN_IF_ERROR(calls_.Await());
  for (size_t call = 0; call < calls_.size(); ++call) RETURN_IF_ERROR(CheckAnswer(calls_, call));
  if (!asked_again_) StartAgain();
  return FinishAgain();
}

absl::Status PsPull::CheckAnswer(const Calls& calls, size_t call) const {
  const v1::PullRequest& request = calls.request(call).message;
  const v1::PullResponse& response = calls.response(call);
  const uint32_t server = calls.server(call);
  const auto wrong = [&](const auto&... what) {
    return absl::InternalError(absl::StrCat("parameter server ", server, " at ", client_->servers_[server].address,
                                            ": pull: answered ", what...));
  };
  if (response.tables_size() != request.tables_size()) {
    return wrong(response.tables_size(), " tables where ", request.tables_size(), " were asked for");
  }
  for (int t = 0; t < request.tables_size(); ++t) {
    const uint32_t table = request.tables(t).table();
    const v1::TableRows& got = response.tables(t);
    if (got.table() != table || got.dim() != client_->options_.tables[table].dim) {
      return wrong("table ", got.table(), " of dim ", got.dim(), " where table ", table, " of dim ",
                   client_->options_.tables[table].dim, " was asked for");
    }
    if (got.pending().empty()) continue;
    const uint64_t n = request.tables(t).keys().size() / sizeof(Key);
    const uint64_t pending = got.pending().size() / sizeof(uint32_t);
    if (got.pending().size() % sizeof(uint32_t) != 0 || !request.ahead()) {
      return wrong(got.pending().size(), " bytes of pending positions of table ", table,
                   request.ahead() ? ", not a multiple of 4" : " to a pull that is not ahead");
    }
    uint64_t least = 0;
    for (uint64_t i = 0; i < pending; ++i) {
      const uint32_t position = PendingOf(got.pending(), i);
      if (position < least || position >= n) {
        return wrong("pending position ", position, " of table ", table, ", expected ", least, " to ", n - 1);
      }
      least = uint64_t{position} + 1;
    }
  }
  return absl::OkStatus();
}

void PsPull::StartAgain() {
  asked_again_ = true;
  // The calls with a pending key, each asked again for those alone.
  first_.clear();
  for (size_t call = 0; call < calls_.size(); ++call) {
    if (!calls_.request(call)->message.ahead()) continue;
    for (const v1::TableRows& table : calls_.response(call).tables()) {
      if (table.pending().empty()) continue;
      first_.push_back(call);
      break;
    }
  }
  again_.Resize(first_.size());
  if (first_.empty()) return;
  size_t buffers = 0;
  for (size_t c = 0; c < first_.size(); ++c) {
    const RowPull& first = *calls_.request(first_[c]);
    RowPull* pull = again_.request(c);
    v1::PullRequest* request = &pull->message;
    SetHead(request);
    request->set_part(0);
    request->set_parts(0);  // Keys that have been named before.
    request->clear_tables();
    pull->rows.clear();
    for (int t = 0; t < first.message.tables_size(); ++t) {
      const std::string& pending = calls_.response(first_[c]).tables(t).pending();
      const uint32_t table = first.message.tables(t).table();
      const uint64_t n = pending.size() / sizeof(uint32_t);
      v1::TableKeys* keys = request->add_tables();
      keys->set_table(table);
      for (uint64_t i = 0; i < n; ++i) {
        keys->mutable_keys()->append(first.message.tables(t).keys(), PendingOf(pending, i) * sizeof(Key), sizeof(Key));
      }
      if (buffers == pending_rows_.size()) pending_rows_.emplace_back();
      pending_rows_[buffers].resize(n * Width(table));
      pull->rows.push_back(pending_rows_[buffers++]);
      bytes_ += n * (sizeof(Key) + WireBytes(table));
    }
  }
  again_.Start({client_->options_.pull_timeout, client_->options_.unavailable_timeout},
               [&](size_t c) { return calls_.server(first_[c]); });
}

absl::Status PsPull::FinishAgain() {
  if (first_.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(again_.Await());
  for (size_t c = 0; c < first_.size(); ++c) {
    RETURN_IF_ERROR(CheckAnswer(again_, c));
    for (int t = 0; t < again_.response(c).tables_size(); ++t) {
      const std::string& pending = calls_.response(first_[c]).tables(t).pending();
      const uint32_t width = Width(again_.response(c).tables(t).table());
      const std::span<float> from = again_.request(c)->rows[static_cast<size_t>(t)];
      const std::span<float> to = calls_.request(first_[c])->rows[static_cast<size_t>(t)];
      for (uint64_t i = 0; i * sizeof(uint32_t) < pending.size(); ++i) {
        std::copy_n(from.data() + i * width, width, to.data() + size_t{PendingOf(pending, i)} * width);
      }
    }
  }
  return absl::OkStatus();
}

PsPush::PsPush(PsClient* client) : client_(client), calls_(&client->servers_, &PsTransport::Push, "push") {}

void PsPush::Prepare(size_t calls, size_t pieces) {
  calls_.Resize(calls);
  encoded_.resize(std::max(encoded_.size(), pieces));
  bytes_ = 0;
  saturated_ = 0;
}

void PsPush::SetHead(size_t call, const Step& step, uint32_t part, uint32_t parts) {
  RowPush* push = calls_.request(call);
  v1::PushRequest* request = &push->message;
  *request->mutable_context() = client_->options_.context;
  request->set_step(step.step);
  request->set_part(part);
  request->set_parts(parts);
  request->set_samples(step.samples);
  request->set_learning_rate_factor(step.learning_rate_factor);
  request->set_complete(false);
  push->beside.clear();
}

void PsPush::PutGradients(size_t call, const KeyPartition& partition, const KeyPartition::Chunk& chunk,
                          std::span<const std::span<const float>> gradients) {
  const RowType type = client_->options_.push_type;
  RowPush* push = calls_.request(call);
  v1::PushRequest* request = &push->message;
  ResizeEntries(request->mutable_tables(), static_cast<int>(chunk.piece_end - chunk.piece_begin));
  request->clear_records();
  for (uint32_t p = chunk.piece_begin; p < chunk.piece_end; ++p) {
    const KeyPartition::Piece& piece = partition.pushes().pieces[p];
    const uint32_t dim = client_->options_.tables[piece.table].dim;
    const std::span<const float> rows = RowsOf(gradients[piece.table], piece, dim);
    v1::TableGradients* table = request->mutable_tables(static_cast<int>(p - chunk.piece_begin));
    table->set_table(piece.table);
    table->set_row_type(static_cast<v1::RowType>(type));
    SetKeys(KeysOf(partition, piece), table->mutable_keys());
    if (type == RowType::kFloat32) {
      push->beside.emplace_back(reinterpret_cast<const char*>(rows.data()), rows.size_bytes());
    } else {
      encoded_[p].resize((piece.end - piece.begin) * RowWireBytes(type, dim));
      EncodeRows(type, rows, dim, encoded_[p].data(), &saturated_);
      push->beside.emplace_back(encoded_[p]);
    }
    bytes_ += table->keys().size() + push->beside.back().size();
  }
}

void PsPush::PutRecords(size_t call, const KeyPartition& partition, const KeyPartition::Chunk& chunk, bool keep,
                        std::span<const std::span<const char>> records) {
  RowPush* push = calls_.request(call);
  v1::PushRequest* request = &push->message;
  request->clear_tables();
  ResizeEntries(request->mutable_records(), static_cast<int>(chunk.piece_end - chunk.piece_begin));
  for (uint32_t p = chunk.piece_begin; p < chunk.piece_end; ++p) {
    const KeyPartition::Piece& piece = partition.pushes().pieces[p];
    const uint32_t record_bytes = client_->record_shapes_[piece.table].dim * uint32_t{sizeof(float)};
    v1::TableRecords* table = request->mutable_records(static_cast<int>(p - chunk.piece_begin));
    table->set_table(piece.table);
    table->set_keep(keep);
    SetKeys(KeysOf(partition, piece), table->mutable_keys());
    push->beside.push_back(RowsOf(records[piece.table], piece, record_bytes));
    bytes_ += table->keys().size() + push->beside.back().size();
  }
}

template <typename ServerOf>
void PsPush::Send(const ServerOf& server_of) {
  calls_.Start({client_->options_.push_timeout, client_->options_.unavailable_timeout}, server_of);
}

void PsPush::Start(const Step& step, const KeyPartition& partition, std::span<const std::span<const float>> gradients) {
  const KeyPartition::Cut& cut = partition.pushes();
  Prepare(cut.chunks.size(), cut.pieces.size());
  for (size_t c = 0; c < cut.chunks.size(); ++c) {
    SetHead(c, step, cut.chunks[c].part, cut.chunks[c].parts);
    PutGradients(c, partition, cut.chunks[c], gradients);
  }
  Send([&](size_t c) { return cut.chunks[c].server; });
}

void PsPush::StartReturn(const Step& step, const KeyPartition& partition,
                         std::span<const std::span<const char>> records) {
  StartRecords(step, /*keep=*/false, partition, records);
}

void PsPush::StartWithReturn(const Step& step, const KeyPartition& partition,
                             std::span<const std::span<const float>> gradients, const KeyPartition& returned,
                             std::span<const std::span<const char>> records) {
  const KeyPartition::Cut& cut = partition.pushes();
  std::vector<KeyPartition::Chunk> chunks = cut.chunks;
  std::vector<uint32_t> parts(client_->servers_.size());
  for (const KeyPartition::Chunk& chunk : cut.chunks) parts[chunk.server] = chunk.parts;
  // Those with records come behind the server's other parts.
  for (KeyPartition::Chunk chunk : returned.pushes().chunks) {
    if (chunk.piece_begin == chunk.piece_end) continue;
    chunk.part = parts[chunk.server]++;
    chunks.push_back(chunk);
  }
  Prepare(chunks.size(), cut.pieces.size());
  for (size_t c = 0; c < chunks.size(); ++c) {
    SetHead(c, step, chunks[c].part, parts[chunks[c].server]);
    if (c < cut.chunks.size()) {
      PutGradients(c, partition, chunks[c], gradients);
    } else {
      PutRecords(c, returned, chunks[c], /*keep=*/false, records);
    }
  }
  Send([&](size_t c) { return chunks[c].server; });
}

void PsPush::StartWriteBack(uint64_t step, const KeyPartition& partition,
                            std::span<const std::span<const char>> records) {
  StartRecords({.step = step}, /*keep=*/true, partition, records);
}

void PsPush::StartRecords(const Step& step, bool keep, const KeyPartition& partition,
                          std::span<const std::span<const char>> records) {
  // Of a step every server gets a part, if only an empty one; of a write-back those with rows.
  std::vector<KeyPartition::Chunk> chunks = partition.pushes().chunks;
  if (keep) std::erase_if(chunks, [](const KeyPartition::Chunk& c) { return c.piece_begin == c.piece_end; });
  Prepare(chunks.size(), /*pieces=*/0);
  for (size_t c = 0; c < chunks.size(); ++c) {
    SetHead(c, step, keep ? 0 : chunks[c].part, keep ? 0 : chunks[c].parts);
    PutRecords(c, partition, chunks[c], keep, records);
  }
  Send([&](size_t c) { return chunks[c].server; });
}

void PsPush::StartComplete(uint64_t step) {
  calls_.Resize(client_->servers_.size());
  bytes_ = 0;
  saturated_ = 0;
  for (size_t s = 0; s < client_->servers_.size(); ++s) {
    RowPush* push = calls_.request(s);
    push->message.Clear();
    *push->message.mutable_context() = client_->options_.context;
    push->message.set_step(step);
    push->message.set_complete(true);
    push->beside.clear();
  }
  Send([](size_t s) { return static_cast<uint32_t>(s); });
}

absl::Status PsPush::Finish() { return calls_.Await(); }

}  // namespace sparrow
