// What a libFuzzer program begins with if it is given no file or directory: a directory beside it, PROGRAM-corpus,
// which has FuzzCorpus() and keeps what libFuzzer finds from one run to the next.

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  for (int i = 1; i < *argc; ++i) {
    if ((*argv)[i][0] != '-') return 0;
  }
  static const std::string& directory = *new std::string(absl::StrCat((*argv)[0], "-corpus"));
  std::filesystem::create_directories(directory);
  const std::vector<std::string> corpus = sparrow::FuzzCorpus();
  for (size_t i = 0; i < corpus.size(); ++i) {
    std::ofstream(absl::StrCat(directory, "/seed-", i), std::ios::binary) << corpus[i];
  }
  static std::vector<char*>& arguments = *new std::vector<char*>(*argv, *argv + *argc);
  arguments.push_back(const_cast<char*>(directory.c_str()));
  arguments.push_back(nullptr);
  *argv = arguments.data();
  ++*argc;
  return 0;
}
