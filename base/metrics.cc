#include "base/metrics.h"

#include <netdb.h>
#include <prometheus/counter.h>
#include <prometheus/exposer.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/address.h"
#include "base/check.h"
#include "base/status_macros.h"

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

namespace {

// Binds and lets go: CivetWeb, which listens afterwards, does not say why it cannot.
absl::Status TryToBind(const HostPort& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(address.host.c_str(), absl::StrCat(address.port).c_str(), &hints, &found);
  if (error != 0) return absl::UnavailableError(absl::StrCat("the host is not found: ", gai_strerror(error)));
  absl::Cleanup free_found = [found] { freeaddrinfo(found); };
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return absl::UnavailableError(std::strerror(errno));
  absl::Cleanup close_fd = [fd] { close(fd); };
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(fd, found->ai_addr, found->ai_addrlen) == 0 && listen(fd, 1) == 0) return absl::OkStatus();
  const char* remedy = "";
  if (errno == EADDRINUSE) remedy = ": choose another port, or 0 for a free one";
  if (errno == EADDRNOTAVAIL) remedy = ": name a host or address of this machine";
  if (errno == EACCES) remedy = ": choose a port from 1024 on";
  return absl::UnavailableError(absl::StrCat(std::strerror(errno), remedy));
}

}  // namespace

absl::StatusOr<std::string> Metrics::Serve(const std::string& address) {
  CHECK(state_->exposer == nullptr) << "Serve is called once";
  RETURN_IF_ERROR(Annotate(CheckAddress(address, AddressUse::kListenOnTcp), "--metrics"));
  ASSIGN_OR_RETURN(const HostPort parsed, ParseHostPort(address));
  RETURN_IF_ERROR(Annotate(TryToBind(parsed), absl::StrCat("--metrics ", address, ": cannot listen")));
  try {
    state_->exposer = std::make_unique<prometheus::Exposer>(address, 1);
  } catch (const std::exception&) {  // Its words say nothing of the reason.
    return absl::UnavailableError(absl::StrCat("--metrics ", address,
                                               ": the web server cannot listen there; write an IP address of this ",
                                               "machine for the host, and a free port"));
  }
  state_->exposer->RegisterCollectable(state_->registry);
  const std::vector<int> ports = state_->exposer->GetListeningPorts();
  const std::string host = address.substr(0, address.rfind(':'));
  return absl::StrCat(host, ":", ports.empty() ? 0 : ports[0]);
}

std::string Metrics::Text() const { return prometheus::TextSerializer().Serialize(state_->registry->Collect()); }

}  // namespace sparrow
