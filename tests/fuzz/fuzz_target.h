#ifndef SPARROW_TESTS_FUZZ_FUZZ_TARGET_H_
#define SPARROW_TESTS_FUZZ_FUZZ_TARGET_H_

// What each *_fuzz.cc defines. A finding is a CHECK that fails or a sanitizer's report.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace sparrow {

// Inputs to begin with.
std::vector<std::string> FuzzCorpus();

}  // namespace sparrow

#endif  // SPARROW_TESTS_FUZZ_FUZZ_TARGET_H_
