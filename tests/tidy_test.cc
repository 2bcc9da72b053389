// What the style promises and a program can check: which folder may include which, which header of a library may appear
// where, that each test is built, that each CUDA half has its CPU twin and a test of both.

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace sparrow {
namespace {

namespace fs = std::filesystem;

const fs::path kRoot = SPARROW_SOURCE_DIR;
const std::vector<std::string> kFolders = {"base",        "proto",  "embedding", "dense", "server",
                                           "coordinator", "worker", "client",    "tests", "bench"};

std::string Read(const fs::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Source files of the project: path relative to the root -> contents.
const std::map<std::string, std::string>& Sources() {
  static const auto& sources = *new std::map<std::string, std::string>([] {
    std::map<std::string, std::string> found;
    for (const std::string& folder : kFolders) {
      for (const fs::directory_entry& entry : fs::recursive_directory_iterator(kRoot / folder)) {
        static const std::set<std::string> kEndings = {".h", ".cc", ".cu", ".cuh"};
        if (kEndings.count(entry.path().extension().string()) == 0) continue;
        found[fs::relative(entry.path(), kRoot).string()] = Read(entry.path());
      }
    }
    return found;
  }());
  return sources;
}

std::string FolderOf(const std::string& path) { return path.substr(0, path.find('/')); }

std::vector<std::string> IncludesOf(const std::string& text) {
  static const std::regex kInclude(R"re((^|\n)#include ["<]([^">]+)[">])re");
  std::vector<std::string> includes;
  for (auto it = std::sregex_iterator(text.begin(), text.end(), kInclude); it != std::sregex_iterator(); ++it) {
    includes.push_back((*it)[2]);
  }
  return includes;
}

TEST(Tidy, TheSourcesWereFound) { EXPECT_GT(Sources().size(), 100u); }

TEST(Tidy, FoldersIncludeOnlyWhatLiesBelowThem) {
  // server and worker know the coordinator's member end alone; the client knows all daemons, tests and benchmarks know
  // everything.
  const std::map<std::string, std::set<std::string>> allowed = {
      {"base", {"base"}},
      {"proto", {"base", "proto"}},
      {"embedding", {"base", "embedding"}},
      {"dense", {"base", "dense"}},
      {"coordinator", {"base", "proto", "embedding", "coordinator"}},
      {"server", {"base", "proto", "embedding", "server", "coordinator"}},
      {"worker", {"base", "proto", "embedding", "dense", "worker", "coordinator"}},
      {"client", {"base", "proto", "embedding", "dense", "server", "coordinator", "worker", "client"}},
      {"tests", {kFolders.begin(), kFolders.end()}},
      {"bench", {kFolders.begin(), kFolders.end()}},
  };
  const std::set<std::string> member_end = {"coordinator/link.h", "coordinator/version.h"};
  const std::set<std::string> folders(kFolders.begin(), kFolders.end());
  for (const auto& [path, text] : Sources()) {
    for (const std::string& include : IncludesOf(text)) {
      const std::string to = FolderOf(include);
      if (folders.count(to) == 0 || include.find('/') == std::string::npos) continue;
      EXPECT_TRUE(allowed.at(FolderOf(path)).count(to) > 0) << path << " includes " << include;
      if (to == "coordinator" && (FolderOf(path) == "server" || FolderOf(path) == "worker")) {
        EXPECT_TRUE(member_end.count(include) > 0)
            << path << " includes " << include << ", but only the member's end is shared";
      }
    }
  }
}

TEST(Tidy, LibrariesAppearOnlyBehindTheirFiles) {
  struct Rule {
    std::string include;
    std::vector<std::string> where;  // Regular expressions of paths.
  };
  const std::vector<Rule> rules = {
      {"rocksdb/",
       {"embedding/rocks_[a-z_]+\\.(h|cc)", "coordinator/[a-z_]*store\\.cc", "bench/support/cold_reads\\.cc"}},
      {"prometheus/", {"base/metrics\\.cc"}},
      {"gloo/", {"dense/[a-z_]*gloo\\.cc"}},
      {"oneapi/dnnl", {"dense/.*\\.cc", "bench/dense/.*"}},
      {"unicode/", {"client/gpt2_split\\.cc"}},
      {"omp.h", {"base/parallel\\.cc", "tests/.*"}},
      {"cuda_runtime.h", {".*\\.cu", ".*\\.cuh"}},
      {"cublasLt.h", {"dense/linear_product\\.cuh", "dense/cublas_lt\\.cc"}},
      {"nccl", {"dense/device_collective_nccl\\.cc", "dense/nccl\\.cc"}},
      {"cupti", {"base/cuda/kernel_trace\\.cc"}},
      {"grpcpp/",
       {"base/rpc\\..*", "proto/row_message\\..*", "coordinator/.*", "server/(server|service)\\..*",
        "worker/(worker|grpc_transport)\\..*", "client/.*", "tests/.*", "bench/.*"}},
  };
  for (const auto& [path, text] : Sources()) {
    for (const std::string& include : IncludesOf(text)) {
      for (const Rule& rule : rules) {
        if (include.rfind(rule.include, 0) != 0) continue;
        bool fits = FolderOf(path) == "tests" && rule.include == "rocksdb/";
        for (const std::string& where : rule.where) fits = fits || std::regex_match(path, std::regex(where));
        EXPECT_TRUE(fits) << path << " includes " << include;
      }
    }
  }
}

TEST(Tidy, WordsThatHaveAReplacementAreNotUsed) {
  struct Ban {
    std::string word;
    std::string instead;
    std::string except;  // Regular expression of paths.
  };
  const std::vector<Ban> bans = {
      {"getenv(", "an option (base/options.h)", "base/process\\.cc|tests/.*|bench/.*"},
      {"<<<", "Launch (base/cuda/launch.cuh)", "base/cuda/launch\\.cuh|tests/tidy_test\\.cc"},
      {"cudaDeviceSynchronize", "Stream::Synchronize", "tests/tidy_test\\.cc"},
      {"FIXME", "mend it", "tests/tidy_test\\.cc"},
      {"TODO", "mend it, or file an issue", "tests/tidy_test\\.cc"},
      {"std::cout", "std::printf in a main, LOG elsewhere", "tests/.*|bench/.*"},
  };
  for (const auto& [path, text] : Sources()) {
    for (const Ban& ban : bans) {
      if (!ban.except.empty() && std::regex_match(path, std::regex(ban.except))) continue;
      EXPECT_EQ(text.find(ban.word), std::string::npos) << path << " uses " << ban.word << "; use " << ban.instead;
    }
  }
}

// So that a profile knows what it moves (base/cuda/operation.h).
TEST(Tidy, EachFileThatLaunchesKernelsStatesTheirCost) {
  for (const auto& [path, text] : Sources()) {
    const std::string folder = FolderOf(path);
    if (!path.ends_with(".cu") || (folder != "dense" && folder != "embedding")) continue;
    const bool launches =
        text.find("  Launch(") != std::string::npos || text.find("LaunchGradients") != std::string::npos ||
        text.find("LaunchEarly(") != std::string::npos || text.find("LaunchWith(") != std::string::npos;
    EXPECT_TRUE(!launches || text.find("const Operation operation(") != std::string::npos) << path;
  }
}

TEST(Tidy, EachTestIsBuilt) {
  std::string lists;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(kRoot / "tests")) {
    const std::string name = entry.path().filename().string();
    if (name == "CMakeLists.txt" || entry.path().extension() == ".cmake") lists += Read(entry.path());
  }
  for (const auto& [path, text] : Sources()) {
    static const std::regex kTest("tests/(.*)_test\\.cc");
    std::smatch match;
    if (!std::regex_match(path, match, kTest)) continue;
    EXPECT_TRUE(std::regex_search(lists, std::regex("sparrow_test\\(\\s*" + match[1].str() + "\\s")))
        << path << " is in no CMakeLists.txt";
  }
}

TEST(Tidy, EachCudaHalfHasItsCpuTwinAndATestOfBoth) {
  for (const auto& [path, text] : Sources()) {
    static const std::regex kGpu("(embedding|dense)/(.*)_gpu\\.cu");
    std::smatch match;
    if (!std::regex_match(path, match, kGpu)) continue;
    const std::string stem = match[1].str() + "/" + match[2].str();
    EXPECT_TRUE(Sources().count(stem + "_cpu.cc") > 0) << path << " has no " << stem << "_cpu.cc";
    EXPECT_TRUE(Sources().count("tests/" + stem + "_gpu_test.cc") > 0) << path << " has no twin test";
  }
}

// The names of kernels in a source file; one called plainly Kernel with its namespace before it.
std::vector<std::string> KernelsOf(const std::string& text) {
  static const std::regex kKernel(R"re(__global__[^;{]*?\b(\w*Kernel)\()re"), kNamespace(R"re(namespace (\w+) \{)re");
  std::vector<std::string> kernels;
  for (auto it = std::sregex_iterator(text.begin(), text.end(), kKernel); it != std::sregex_iterator(); ++it) {
    std::string within;
    for (auto n = std::sregex_iterator(text.begin(), text.begin() + it->position(), kNamespace);
         n != std::sregex_iterator(); ++n) {
      within = (*n)[1];
    }
    const std::string name = (*it)[1];
    kernels.push_back(name == "Kernel" ? within + "::Kernel" : name);
  }
  return kernels;
}

// A kernel that nobody measures is one that nobody knows to be slow.
TEST(Tidy, EachKernelIsMeasuredBesideItsBound) {
  const std::map<std::string, std::string> measured_in = {
      {"base", "kernels_"}, {"dense", "kernels_dense"}, {"embedding", "kernels_sparse"}, {"worker", "kernels_"}};
  size_t kernels = 0;
  for (const auto& [path, text] : Sources()) {
    const auto where = measured_in.find(FolderOf(path));
    if (where == measured_in.end()) continue;
    std::string measures;
    for (const auto& [bench, calls] : Sources()) {
      if (bench.rfind("bench/sparrow_bench/" + where->second, 0) == 0) measures += calls;
    }
    const std::vector<std::string> names = KernelsOf(text);
    static const std::regex kGlobal("(^|\n)__global__ ");
    const auto globals = std::distance(std::sregex_iterator(text.begin(), text.end(), kGlobal), std::sregex_iterator());
    EXPECT_EQ(static_cast<size_t>(globals), names.size()) << path << " has kernels whose names do not end in Kernel";
    for (const std::string& name : names) {
      ++kernels;
      EXPECT_TRUE(std::regex_search(measures, std::regex("[\" ]" + name + "[\" ]")))
          << path << ": name " << name << " in the .kernels of a call in bench/sparrow_bench/" << where->second
          << "*.cc";
    }
  }
  EXPECT_GT(kernels, 30u);
}

TEST(Tidy, HeadersHaveTheirGuard) {
  for (const auto& [path, text] : Sources()) {
    if (!path.ends_with(".h") && !path.ends_with(".cuh")) continue;
    std::string guard = "SPARROW_";
    for (const char c : path)
      guard += std::isalnum(static_cast<unsigned char>(c)) ? static_cast<char>(std::toupper(c)) : '_';
    guard += '_';
    EXPECT_NE(text.find("#ifndef " + guard + "\n#define " + guard), std::string::npos)
        << path << " lacks the guard " << guard;
  }
}

TEST(Tidy, FilesHoldOneIdea) {
  for (const auto& [path, text] : Sources()) {
    const auto lines = std::count(text.begin(), text.end(), '\n');
    EXPECT_LE(lines, 650) << path << ": which second idea moved in?";
  }
}

}  // namespace
}  // namespace sparrow
