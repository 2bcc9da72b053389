#include "base/metrics.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

namespace sparrow {
namespace {

using testing::HasSubstr;

// GET /metrics by hand, so that the test needs no client library.
std::string Get(const std::string& address) {
  const size_t colon = address.rfind(':');
  sockaddr_in peer{};
  peer.sin_family = AF_INET;
  peer.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(colon + 1))));
  inet_pton(AF_INET, address.substr(0, colon).c_str(), &peer.sin_addr);
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&peer), sizeof(peer)), 0);
  const std::string request = "GET /metrics HTTP/1.0\r\nConnection: close\r\n\r\n";
  EXPECT_EQ(write(fd, request.data(), request.size()), static_cast<ssize_t>(request.size()));
  std::string answer;
  char block[4096];
  for (ssize_t got; (got = read(fd, block, sizeof(block))) > 0;) answer.append(block, static_cast<size_t>(got));
  close(fd);
  return answer;
}

TEST(Metrics, EachKindCountsAndNoNeighbourMoves) {
  Metrics metrics;
  const Counter counter = metrics.AddCounter("x_total", "Rises.", {{"kind", "a"}});
  const Counter neighbour = metrics.AddCounter("x_total", "Rises.", {{"kind", "b"}});
  const Gauge gauge = metrics.AddGauge("x_bytes", "Held.");
  const Histogram histogram = metrics.AddHistogram("x_seconds", "Takes.", {}, {0.1, 1});
  counter.Increment();
  counter.Add(2.5);
  gauge.Set(7);
  gauge.Add(-2);
  histogram.Observe(0.5);
  histogram.Observe(2);
  EXPECT_EQ(counter.Value(), 3.5);
  EXPECT_EQ(neighbour.Value(), 0);
  EXPECT_EQ(gauge.Value(), 5);
  EXPECT_EQ(histogram.Count(), 2u);
  EXPECT_EQ(histogram.Sum(), 2.5);
  const std::string text = metrics.Text();
  EXPECT_THAT(text, HasSubstr("x_total{kind=\"a\"} 3.5"));
  EXPECT_THAT(text, HasSubstr("x_seconds_bucket{le=\"1\"} 1"));
  EXPECT_THAT(text, HasSubstr("# HELP x_bytes Held."));
}

TEST(Metrics, TheSameNameAndLabelsAreTheSameMetric) {
  Metrics metrics;
  metrics.AddCounter("x_total", "h").Increment();
  EXPECT_EQ(metrics.AddCounter("x_total", "h").Value(), 1);
}

TEST(Metrics, AHandleWithoutAMetricCountsIntoNothing) {
  Counter().Increment();
  Gauge().Set(1);
  Histogram().Observe(1);
  EXPECT_EQ(Counter().Value(), 0);
  EXPECT_EQ(Histogram().Count(), 0u);
}

TEST(Metrics, TwoOfThemInOneProcessAreApart) {
  Metrics first;
  Metrics second;
  first.AddCounter("x_total", "h").Increment();
  EXPECT_EQ(second.AddCounter("x_total", "h").Value(), 0);
}

TEST(Metrics, ThreadsLoseNoCount) {
  Metrics metrics;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      const Counter counter = metrics.AddCounter("x_total", "h");
      for (int i = 0; i < 1000; ++i) counter.Increment();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(metrics.AddCounter("x_total", "h").Value(), 4000);
}

TEST(Metrics, TheyAreServedOverHttpAndAPortInUseIsNamed) {
  Metrics metrics;
  metrics.AddGauge("x_bytes", "Held.").Set(42);
  const absl::StatusOr<std::string> address = metrics.Serve("127.0.0.1:0");
  ASSERT_TRUE(address.ok()) << address.status();
  EXPECT_THAT(*address, testing::Not(HasSubstr(":0")));
  EXPECT_THAT(Get(*address), HasSubstr("x_bytes 42"));
  Metrics second;
  const absl::Status status = second.Serve(*address).status();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_EQ(status.message(), "--metrics " + *address +
                                  ": cannot listen: Address already in use: choose another port, "
                                  "or 0 for a free one");
}

TEST(Metrics, AnAddressThatWillNotDoIsNamedWithFlagAndReason) {
  const auto refusal = [](const std::string& address) {
    return std::string(Metrics().Serve(address).status().message());
  };
  EXPECT_THAT(refusal("foo"), testing::StartsWith("--metrics: \"foo\": the port is missing"));
  EXPECT_THAT(refusal("127.0.0.1:99999"), HasSubstr("0 to 65535"));
  EXPECT_THAT(refusal("192.0.2.1:80"),
              testing::StartsWith("--metrics 192.0.2.1:80: cannot listen: Cannot assign requested address"));
  EXPECT_THAT(refusal("host.invalid:80"), testing::StartsWith("--metrics host.invalid:80: cannot listen: the host"));
  EXPECT_TRUE(Metrics().Serve("localhost:0").ok());
}

TEST(Metrics, LatencyBucketsRise) {
  const std::vector<double> bounds = LatencyBuckets();
  for (size_t i = 1; i < bounds.size(); ++i) EXPECT_LT(bounds[i - 1], bounds[i]);
  EXPECT_EQ(bounds.front(), 1e-5);
  EXPECT_EQ(bounds.back(), 60);
}

}  // namespace
}  // namespace sparrow
