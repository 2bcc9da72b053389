#include "coordinator/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/text.h"

namespace sparrow {
namespace {

using testing::ElementsAre;

v1::Job Wants(uint32_t workers, uint32_t servers) {
  v1::Job job;
  job.mutable_cluster()->set_workers(workers);
  job.mutable_cluster()->set_servers(servers);
  return job;
}

Supply Free(int workers, int servers) {
  Supply supply;
  for (int i = 1; i <= workers; ++i) supply.workers.push_back({absl::StrCat("worker-", i), "", false});
  for (int i = 1; i <= servers; ++i) supply.servers.push_back({absl::StrCat("server-", i), 0});
  return supply;
}

TEST(Placement, ZeroMeansAllThatAreThereAndAtLeastOne) {
  const Placement all = Place(Wants(0, 0), Free(3, 2));
  EXPECT_THAT(all.workers, ElementsAre("worker-1", "worker-2", "worker-3"));
  EXPECT_THAT(all.servers, ElementsAre("server-1", "server-2"));
  EXPECT_EQ(Place(Wants(0, 0), Free(0, 0)).waits_for, "needs 1 worker, none is there; needs 1 server, none is there");
}

TEST(Placement, TheServersWithTheFewestJobsComeFirstAndStayInOrder) {
  Supply supply = Free(1, 4);
  supply.servers[0].jobs = 2;
  supply.servers[1].jobs = 1;
  supply.servers[3].jobs = 1;
  EXPECT_THAT(Place(Wants(1, 2), supply).servers, ElementsAre("server-2", "server-3"));
  EXPECT_THAT(Place(Wants(1, 3), supply).servers, ElementsAre("server-2", "server-3", "server-4"));
}

TEST(Placement, ALanguageModelTakesWorkersAlone) {
  v1::Job job = Wants(0, 0);
  job.mutable_model()->mutable_gpt2();
  const Placement placement = Place(job, Free(2, 3));
  EXPECT_EQ(placement.waits_for, "");
  EXPECT_THAT(placement.workers, ElementsAre("worker-1", "worker-2"));
  EXPECT_TRUE(placement.servers.empty());
  EXPECT_EQ(Place(job, Free(1, 0)).waits_for, "");
  EXPECT_EQ(Place(job, Free(0, 0)).waits_for, "needs 1 worker, none is there");
  EXPECT_EQ(RowWiseShardMap(7, 0).owner_size(), 0);
}

TEST(Placement, OnlyFreeWorkersAreTaken) {
  Supply supply = Free(4, 1);
  supply.workers[1].job_id = "job-1";
  EXPECT_THAT(Place(Wants(2, 1), supply).workers, ElementsAre("worker-1", "worker-3"));
  EXPECT_THAT(Place(Wants(0, 1), supply).workers, ElementsAre("worker-1", "worker-3", "worker-4"));
  EXPECT_EQ(Place(Wants(4, 1), supply).waits_for, "needs 4 workers, 3 of 4 are free");
}

TEST(Placement, AllWorkersMeansAlsoThoseThatAreAboutToBeFree) {
  Supply supply = Free(2, 1);
  supply.workers[1] = {"worker-2", "job-1", true};
  EXPECT_EQ(Place(Wants(0, 1), supply).waits_for, "waits for worker-2 to end job-1");
  EXPECT_THAT(Place(Wants(1, 1), supply).workers, ElementsAre("worker-1"));
}

TEST(Placement, BucketsAreCutIntoContiguousRangesThatDifferByAtMostOne) {
  for (const uint32_t servers : {1u, 2u, 3u, 5u, 6u, 7u, 1000u, 4095u, 4096u}) {
    const v1::ShardMap map = RowWiseShardMap(9, servers);
    EXPECT_EQ(map.version(), 9u);
    ASSERT_EQ(map.owner_size(), 4096);
    std::vector<uint32_t> buckets(servers);
    for (int b = 0; b < 4096; ++b) {
      ASSERT_LT(map.owner(b), servers);
      ASSERT_GE(map.owner(b), map.owner(std::max(0, b - 1)));
      ++buckets[map.owner(b)];
    }
    for (const uint32_t n : buckets) {
      EXPECT_GE(n, 4096 / servers);
      EXPECT_LE(n, (4096 + servers - 1) / servers);
    }
  }
}

TEST(Text, ALineIsCutBetweenCharactersAndHasNoControlCharacters) {
  EXPECT_EQ(OneLine("a\nb\tc", 100), "a b c");
  EXPECT_EQ(OneLine("\xc3\xa4\xc3\xb6", 3), "\xc3\xa4...");
  EXPECT_EQ(OneLine("abc", 3), "abc");
}

TEST(Text, QuotesEscapeAndShorten) {
  EXPECT_EQ(Quoted("a\"\n"), "\"a\\\"\\n\"");
  EXPECT_EQ(Quoted(std::string(100, 'x')), absl::StrCat("\"", std::string(64, 'x'), "...\""));
}

}  // namespace
}  // namespace sparrow
