#ifndef SPARROW_TESTS_CLIENT_SMALL_JOB_H_
#define SPARROW_TESTS_CLIENT_SMALL_JOB_H_

// A job and its data, small enough to be trained in a moment, with every kind of input that an export must describe.

#include <fstream>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/random.h"
#include "client/embedded_cluster.h"
#include "client/job_file.h"

namespace sparrow {

// Writes rows of "label x1 x2 user item tags" with a header: numbers missing and negative, ids negative, above 2^63 and
// missing, bags of 0 to 3 weighted tags.
inline void WriteSmallLog(const std::string& path, int rows, uint64_t seed) {
  std::ofstream file(path);
  file << "label\tx1\tx2\tuser\titem\ttags\n";
  for (int i = 0; i < rows; ++i) {
    const auto draw = [&](uint64_t what, uint64_t n) {
      return RandomBits(seed, static_cast<uint64_t>(i) * 16 + what) % n;
    };
    const uint64_t user = draw(0, 20);
    file << (draw(1, 10) < 2 + 4 * (user % 2) ? 1 : 0) << '\t';
    if (draw(2, 5) > 0) file << static_cast<int>(draw(3, 100)) - 10;
    file << '\t' << draw(4, 1000) << ".5\t";
    if (user > 0) file << (user == 1 ? std::string("-7") : absl::StrCat(user == 2 ? 18446744073709551615u : user));
    file << '\t' << absl::StrCat(absl::Hex(draw(5, 50) * 0x9e3779b1u)) << '\t';
    const uint64_t tags = draw(6, 4);
    for (uint64_t t = 0; t < tags; ++t) {
      file << (t > 0 ? "|" : "") << draw(7 + t, 12);
      if (draw(10 + t, 2) == 0) file << ":0." << 1 + draw(13, 9);
    }
    file << '\n';
  }
  CHECK(file.good()) << path;
}

// `model` is the text of ModelConfig; the data are train.tsv and test.tsv. Vectors have 4 numbers, dense inputs are 2.
inline v1::Job SmallJob(const std::string& model) {
  const absl::StatusOr<v1::Job> job =
      ParseJob(absl::StrCat(R"pb(
                              name: "small"
                              data {
                                train { path: "train.tsv" }
                                test { path: "test.tsv" }
                                text {
                                  header: true
                                  columns {
                                    name: "label"
                                    label {}
                                  }
                                  columns {
                                    name: "x1"
                                    dense {}
                                  }
                                  columns {
                                    name: "x2"
                                    dense {}
                                  }
                                  columns {
                                    name: "user"
                                    categorical { ids: INTEGER }
                                  }
                                  columns {
                                    name: "item"
                                    categorical { ids: HEX }
                                  }
                                  columns {
                                    name: "tags"
                                    categorical { ids: INTEGER separator: "|" weight_separator: ":" }
                                  }
                                }
                              }
                              tables {
                                name: "user"
                                dim: 4
                                hashed {}
                                optimizer {
                                  learning_rate: 0.1
                                  adagrad {}
                                }
                                initializer { normal_stddev: 0.3 }
                              }
                              tables {
                                name: "item"
                                dim: 4
                                bounded_rows: 31
                                optimizer {
                                  learning_rate: 0.05
                                  adam {}
                                }
                              }
                              tables {
                                name: "tags"
                                dim: 4
                                hashed {}
                                optimizer {
                                  learning_rate: 0.1
                                  sgd {}
                                }
                                initializer { uniform_bound: 0.2 }
                              }
                              features { name: "user" }
                              features { name: "item" modulo: 31 }
                              features { name: "tags" pooling: SUM }
                              features { name: "tags_mean" column: "tags" table: "tags" pooling: MEAN }
                              train {
                                batch_size: 64
                                loss_every_steps: 1
                                optimizer {
                                  learning_rate: 0.05
                                  adam {}
                                }
                              }
                            )pb",
                            "model { ", model, " }"),
               "small");
  CHECK(job.ok()) << job.status();
  return *job;
}

// Runs the job in a cluster in this process to its end.
inline v1::JobStatus TrainEmbedded(const v1::Job& job, const EmbeddedClusterOptions& options,
                                   const std::string& restore_from = "") {
  absl::StatusOr<std::unique_ptr<EmbeddedCluster>> cluster = EmbeddedCluster::Start(options);
  CHECK(cluster.ok()) << cluster.status();
  CoordinatorLink* link = (*cluster)->link();
  v1::SubmitRequest request;
  *request.mutable_job() = job;
  request.set_restore_from(restore_from);
  const absl::StatusOr<v1::SubmitResponse> submitted = link->Submit(request);
  CHECK(submitted.ok()) << submitted.status();
  const absl::Status watched = link->WatchJob(submitted->job_id(), [](const v1::JobStatus&) { return true; });
  CHECK(watched.ok()) << watched;
  const absl::StatusOr<v1::GetJobResponse> ended = link->GetJob(submitted->job_id());
  CHECK(ended.ok()) << ended.status();
  return ended->status();
}

}  // namespace sparrow

#endif  // SPARROW_TESTS_CLIENT_SMALL_JOB_H_
