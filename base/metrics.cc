#include "base/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/exposer.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace sparrow {

void Counter::Add(double amount) const {
  if (counter_ != nullptr) counter_->Increment(amount);
}
double Counter::Value() const { return counter_ == nullptr ? 0 : counter_->Value(); }

void Gauge::Set(double value) const {
  if (gauge_ != nullptr) gauge_->Set(value);
}
void Gauge::Add(double amount) const {
  if (gauge_ != nullptr) gauge_->Increment(amount);
}
double Gauge::Value() const { return gauge_ == nullptr ? 0 : gauge_->Value(); }

void Histogram::Observe(double value) const {
  if (histogram_ != nullptr) histogram_->Observe(value);
}
uint64_t Histogram::Count() const { return histogram_ == nullptr ? 0 : histogram_->Collect().histogram.sample_count; }
double Histogram::Sum() const { return histogram_ == nullptr ? 0 : histogram_->Collect().histogram.sample_sum; }

std::vector<double> LatencyBuckets() {
  return {1e-5,   2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2,
          2.5e-2, 5e-2,   0.1,  0.25, 0.5,    1,    2.5,  5,      10,   60};
}

struct Metrics::State {
  std::shared_ptr<prometheus::Registry> registry =
      std::make_shared<prometheus::Registry>();  // Shared with the exposer, which keeps a weak_ptr.
  std::unique_ptr<prometheus::Exposer> exposer;
};

Metrics::Metrics() : state_(std::make_unique<State>()) {}
Metrics::~Metrics() = default;

sparrow::Counter Metrics::AddCounter(const std::string& name, const std::string& help, const MetricLabels& labels) {
  return sparrow::Counter(&prometheus::BuildCounter().Name(name).Help(help).Register(*state_->registry).Add(labels));
}

sparrow::Gauge Metrics::AddGauge(const std::string& name, const std::string& help, const MetricLabels& labels) {
  return sparrow::Gauge(&prometheus::BuildGauge().Name(name).Help(help).Register(*state_->registry).Add(labels));
}

sparrow::Histogram Metrics::AddHistogram(const std::string& name, const std::string& help, const MetricLabels& labels,
                                         const std::vector<double>& bounds) {
  return sparrow::Histogram(
      &prometheus::BuildHistogram().Name(name).Help(help).Register(*state_->registry).Add(labels, bounds));
}

absl::StatusOr<std::string> Metrics::Serve(const std::string& address) {
  CHECK(state_->exposer == nullptr) << "Serve is called once";
  try {
    state_->exposer = std::make_unique<prometheus::Exposer>(address, 1);
  } catch (const std::exception& error) {
    return absl::UnavailableError(absl::StrCat("--metrics ", address, ": cannot listen (", error.what(),
                                               "); is the port in use, or the host not this machine's?"));
  }
  state_->exposer->RegisterCollectable(state_->registry);
  const std::vector<int> ports = state_->exposer->GetListeningPorts();
  const std::string host = address.substr(0, address.rfind(':'));
  return absl::StrCat(host, ":", ports.empty() ? 0 : ports[0]);
}

std::string Metrics::Text() const { return prometheus::TextSerializer().Serialize(state_->registry->Collect()); }

}  // namespace sparrow
