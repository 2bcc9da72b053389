// Runs a fuzz target (LLVMFuzzerTestOneInput) without libFuzzer: on the files or directories named, and then on seeded
// mutations of its own corpus for a while. Flags, as libFuzzer's: -max_total_time=SECONDS (default 2), -seed=N.

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

std::string Mutated(std::string bytes, std::mt19937_64* random) {
  const auto below = [random](size_t n) { return static_cast<size_t>((*random)() % n); };
  for (size_t changes = 1 + below(4); changes > 0; --changes) {
    if (bytes.empty()) bytes.push_back('\0');
    const size_t at = below(bytes.size());
    switch (below(6)) {
      case 0:
        bytes[at] = static_cast<char>((*random)());
        break;
      case 1:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      case 2:
        bytes.erase(at, 1 + below(8));
        break;
      case 3:
        bytes.insert(at, bytes.substr(below(bytes.size()), 1 + below(16)));
        break;
      case 4:
        bytes.resize(at);
        break;
      default:  // A large number where one may stand.
        bytes.replace(at, 1, std::string(below(11), '\xff') + static_cast<char>((*random)() & 0x7f));
    }
  }
  return bytes;
}

void Run(const std::string& bytes) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t seed = 1;
  double seconds = 2;
  std::vector<std::string> corpus = sparrow::FuzzCorpus();
  for (int i = 1; i < argc; ++i) {
    if (std::sscanf(argv[i], "-seed=%" SCNu64, &seed) == 1) continue;
    if (std::sscanf(argv[i], "-max_total_time=%lf", &seconds) == 1) continue;
    if (!std::filesystem::exists(argv[i])) {
      std::fprintf(stderr, "%s: no such file or flag\n", argv[i]);
      return 2;
    }
    std::vector<std::filesystem::path> files = {argv[i]};
    if (std::filesystem::is_directory(argv[i])) {
      files.assign(std::filesystem::directory_iterator(argv[i]), std::filesystem::directory_iterator());
    }
    for (const std::filesystem::path& path : files) {
      std::ifstream file(path, std::ios::binary);
      corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
  }
  for (const std::string& bytes : corpus) Run(bytes);
  std::mt19937_64 random(seed);
  uint64_t runs = 0;
  const absl::Time end = absl::Now() + absl::Seconds(seconds);
  for (; absl::Now() < end; ++runs) Run(Mutated(corpus[random() % corpus.size()], &random));
  std::printf("seed %" PRIu64 ": %zu inputs and %" PRIu64 " mutations\n", seed, corpus.size(), runs);
  return 0;
}
