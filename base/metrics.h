#ifndef SPARROW_BASE_METRICS_H_
#define SPARROW_BASE_METRICS_H_

// Prometheus metrics of one process (or of one daemon inside a test process). A metric is declared once, where its
// owner is, with a name that ends in its unit (_total, _bytes, _seconds) and help that says what a rise means. Nothing
// here is global: each daemon owns a Metrics.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
}  // namespace prometheus

namespace sparrow {

using MetricLabels = std::map<std::string, std::string>;  // Bounded values only: never an id of a user or a row.

// Handles are small values; they stay valid as long as their Metrics. Thread-safe.
class Counter {
 public:
  Counter() = default;  // Counts into nothing.
  void Add(double amount) const;
  void Increment() const { Add(1); }
  double Value() const;

 private:
  friend class Metrics;
  explicit Counter(prometheus::Counter* counter) : counter_(counter) {}
  prometheus::Counter* counter_ = nullptr;
};

class Gauge {
 public:
  Gauge() = default;
  void Set(double value) const;
  void Add(double amount) const;
  double Value() const;

 private:
  friend class Metrics;
  explicit Gauge(prometheus::Gauge* gauge) : gauge_(gauge) {}
  prometheus::Gauge* gauge_ = nullptr;
};

class Histogram {
 public:
  Histogram() = default;
  void Observe(double value) const;
  uint64_t Count() const;
  double Sum() const;

 private:
  friend class Metrics;
  explicit Histogram(prometheus::Histogram* histogram) : histogram_(histogram) {}
  prometheus::Histogram* histogram_ = nullptr;
};

// Bucket bounds for latencies, 10 us to 60 s.
std::vector<double> LatencyBuckets();

// Thread-safe.
class Metrics {
 public:
  Metrics();
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // The same name and labels give the same metric. CHECKs that the name is a valid Prometheus name of one kind.
  sparrow::Counter AddCounter(const std::string& name, const std::string& help, const MetricLabels& labels = {});
  sparrow::Gauge AddGauge(const std::string& name, const std::string& help, const MetricLabels& labels = {});
  sparrow::Histogram AddHistogram(const std::string& name, const std::string& help, const MetricLabels& labels = {},
                                  const std::vector<double>& bounds = LatencyBuckets());

  // Serves GET /metrics on HOST:PORT (port 0 picks one) until destruction; returns HOST:PORT as bound. At most once.
  // What is wrong is said with the flag --metrics, the address and the reason: InvalidArgument if it is no HOST:PORT,
  // Unavailable if it cannot be bound.
  absl::StatusOr<std::string> Serve(const std::string& address);

  // What /metrics would answer.
  std::string Text() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sparrow

#endif  // SPARROW_BASE_METRICS_H_
