# Every library that Sparrow stands on, and why. All are Debian 12 packages; ARCHITECTURE.md has the list with its reasons.

find_package(Threads REQUIRED)
find_package(ZLIB REQUIRED)                 # CRC-32 of checkpoint files, gzip output.
find_package(absl CONFIG REQUIRED)          # Status, synchronisation with thread annotations, hash maps, time.
find_package(Protobuf REQUIRED)             # Configuration and wire.
find_package(PkgConfig REQUIRED)
pkg_check_modules(GRPC REQUIRED IMPORTED_TARGET grpc++)  # RPC. By pkg-config: Debian's gRPCConfig.cmake drags in static targets that are not there.
find_program(SPARROW_GRPC_PLUGIN grpc_cpp_plugin REQUIRED)
pkg_check_modules(ROCKSDB REQUIRED IMPORTED_TARGET rocksdb)  # Cold rows, the coordinator's state.
find_package(prometheus-cpp CONFIG REQUIRED)  # /metrics.
find_path(DNNL_INCLUDE_DIR oneapi/dnnl/dnnl.hpp REQUIRED)  # oneDNN: matrix products on the CPU. Debian's dnnl-config.cmake wants OpenCL.
find_library(DNNL_LIBRARY dnnl REQUIRED)
add_library(sparrow_dnnl INTERFACE)
target_include_directories(sparrow_dnnl SYSTEM INTERFACE ${DNNL_INCLUDE_DIR})
target_link_libraries(sparrow_dnnl INTERFACE ${DNNL_LIBRARY})
find_package(OpenMP REQUIRED)               # Data-parallel loops, on the threads that oneDNN uses.
find_package(nlohmann_json REQUIRED)        # Summaries, safetensors headers.
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)  # The fixed hash of string ids.
pkg_check_modules(ISAL REQUIRED IMPORTED_TARGET libisal)  # gzip input, inflated at more than twice zlib's rate.
pkg_check_modules(ICU REQUIRED IMPORTED_TARGET icu-uc)  # Which characters are letters, numbers and white space.
find_path(GLOO_INCLUDE_DIR gloo/context.h REQUIRED)  # All-reduce between CPU workers. Debian's GlooConfig.cmake wants its CUDA build.
find_library(GLOO_LIBRARY gloo REQUIRED)
add_library(sparrow_gloo INTERFACE)
target_include_directories(sparrow_gloo SYSTEM INTERFACE ${GLOO_INCLUDE_DIR})
target_link_libraries(sparrow_gloo INTERFACE ${GLOO_LIBRARY})
find_library(JEMALLOC_LIBRARY jemalloc REQUIRED)  # Keeps its pages: fresh ones cost more than the copy (ARCHITECTURE.md, "Memory").
add_library(sparrow_jemalloc INTERFACE)
target_link_libraries(sparrow_jemalloc INTERFACE -Wl,--no-as-needed ${JEMALLOC_LIBRARY} -Wl,--as-needed)
if(SPARROW_TESTS)
  find_package(GTest REQUIRED)
endif()
if(SPARROW_BENCH)
  find_package(benchmark REQUIRED)
endif()

# CUDA is found, not required. sm_90a for the machine it is tuned on, PTX so that newer ones run it.
set(SPARROW_HAS_CUDA OFF)
if(NOT SPARROW_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  if(NOT CMAKE_CUDA_COMPILER AND NOT ENV{CUDACXX} AND EXISTS /usr/local/cuda/bin/nvcc)
    set(CMAKE_CUDA_COMPILER /usr/local/cuda/bin/nvcc)
  endif()
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES "90a-real;90-virtual")
  endif()
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    # CMake 3.25 does not know how nvcc 12 and later spell C++20.
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    find_package(CUDAToolkit REQUIRED)
    set(SPARROW_HAS_CUDA ON)
  elseif(SPARROW_CUDA STREQUAL "ON")
    message(FATAL_ERROR "SPARROW_CUDA=ON, but no CUDA compiler was found; install a CUDA toolkit, set CUDACXX to its nvcc, or use SPARROW_CUDA=AUTO")
  endif()
endif()
# Its header is found, not required; the library is loaded at run time (dense/nccl.cc). Without either GPUs of several
# workers sum their gradients through the host.
set(SPARROW_HAS_NCCL OFF)
if(SPARROW_HAS_CUDA)
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  if(NCCL_INCLUDE_DIR)
    add_library(sparrow_nccl INTERFACE)  # All-reduce between GPUs.
    target_include_directories(sparrow_nccl SYSTEM INTERFACE ${NCCL_INCLUDE_DIR})
    set(SPARROW_HAS_NCCL ON)
  endif()
endif()
message(STATUS "Sparrow: CUDA halves ${SPARROW_HAS_CUDA}, NCCL ${SPARROW_HAS_NCCL}, sanitizers '${SPARROW_SANITIZE}', ${CMAKE_BUILD_TYPE}")
