# How everything here is compiled, and the one-line forms of a library, a program, a test and a benchmark.

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
# -O1: sanitized tests train whole models, and -O0 would take minutes for each.
set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g1 -fno-omit-frame-pointer")

find_program(SPARROW_CCACHE ccache)
if(SPARROW_CCACHE)
  # Relative paths, so that several build folders and clones share their objects.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${SPARROW_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()
find_program(SPARROW_MOLD mold)
if(SPARROW_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

add_compile_options(
  $<$<COMPILE_LANGUAGE:CXX>:-Wall> $<$<COMPILE_LANGUAGE:CXX>:-Wextra> $<$<COMPILE_LANGUAGE:CXX>:-Werror>
  $<$<COMPILE_LANGUAGE:CXX>:-march=${SPARROW_MARCH}>
  "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Werror all-warnings -Xcompiler=-Wall,-Wextra,-Werror>")
if(SPARROW_SANITIZE)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${SPARROW_SANITIZE}> $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=all>)
  add_link_options(-fsanitize=${SPARROW_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # Its -Wmaybe-uninitialized and -Wrestrict misfire on instrumented code.
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wno-maybe-uninitialized> $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict> $<$<COMPILE_LANGUAGE:CXX>:-Wno-tsan>)
  endif()
endif()
if(SPARROW_LIBFUZZER)
  # What is fuzzed is in the libraries, so these count their branches, too; tests/fuzz links libFuzzer itself.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fsanitize=fuzzer-no-link>)
  add_link_options(-fsanitize=fuzzer-no-link)
endif()

if(SPARROW_SANITIZE MATCHES thread)
  # Under __SANITIZE_THREAD__ protobuf's map fields have two members more, which Debian's libprotobuf does not know of.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-U__SANITIZE_THREAD__> $<$<COMPILE_LANGUAGE:CXX>:-D_GLIBCXX_TSAN=1>
                      $<$<COMPILE_LANGUAGE:CXX>:-DSPARROW_TSAN=1>)
  # Goes into every program: without it each access under an absl::Mutex is reported as a race.
  add_library(sparrow_tsan OBJECT base/tsan_absl_mutex.cc)
  target_include_directories(sparrow_tsan PRIVATE ${CMAKE_SOURCE_DIR})
endif()
function(sparrow_sanitizer_objects target)
  if(TARGET sparrow_tsan)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:sparrow_tsan>)
  endif()
endfunction()

# sparrow_library(name SOURCES a.cc b.cc DEPS public... PRIVATE_DEPS private...): static library sparrow_name, alias sparrow::name.
function(sparrow_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(sparrow_${name} STATIC ${ARG_SOURCES})
  add_library(sparrow::${name} ALIAS sparrow_${name})
  target_include_directories(sparrow_${name} PUBLIC ${CMAKE_SOURCE_DIR})
  target_link_libraries(sparrow_${name} PUBLIC ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS})
endfunction()

# sparrow_program(sparrow-server main.cc sparrow::server_lib ...): a program with jemalloc (not under sanitizers, which bring their own allocator).
function(sparrow_program name main)
  add_executable(${name} ${main})
  sparrow_sanitizer_objects(${name})
  target_link_libraries(${name} PRIVATE ${ARGN})
  if(NOT SPARROW_SANITIZE)
    target_link_libraries(${name} PRIVATE sparrow_jemalloc)
  endif()
endfunction()

# sparrow_test(embedding/optimizer sparrow::embedding ...): tests/embedding/optimizer_test.cc as the CTest embedding/optimizer.
# Keywords after the libraries: LABELS, TIMEOUT (seconds, default 120), ENV (A=B ...).
function(sparrow_test path)
  cmake_parse_arguments(ARG "" "TIMEOUT" "LABELS;ENV" ${ARGN})
  # Under TSan only tests that have more than one thread.
  if(SPARROW_SANITIZE MATCHES thread AND NOT path IN_LIST SPARROW_THREADED_TESTS)
    return()
  endif()
  string(REPLACE "/" "_" target ${path}_test)
  add_executable(${target} ${CMAKE_SOURCE_DIR}/tests/${path}_test.cc)
  sparrow_sanitizer_objects(${target})
  target_link_libraries(${target} PRIVATE ${ARG_UNPARSED_ARGUMENTS} sparrow_test_main)
  target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR})
  # Only where it is used: the other tests are the same objects in every clone.
  file(READ ${CMAKE_SOURCE_DIR}/tests/${path}_test.cc text)
  if(text MATCHES "SPARROW_SOURCE_DIR")
    target_compile_definitions(${target} PRIVATE SPARROW_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  endif()
  add_test(NAME ${path} COMMAND ${target})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  # libgomp's futexes are invisible to TSan, so one thread there; passive waiting, since tests run side by side.
  set(env OMP_WAIT_POLICY=passive TSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/tests/support/tsan.supp:halt_on_error=1:second_deadlock_stack=1
      ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1 LSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/tests/support/lsan.supp ${ARG_ENV})
  if(SPARROW_SANITIZE MATCHES thread)
    list(APPEND env OMP_NUM_THREADS=1)
  endif()
  # Nothing runs beside a test that fills the GPU.
  if(text MATCHES "tests/support/gpu_hog.h")
    set_tests_properties(${path} PROPERTIES RUN_SERIAL ON)
  endif()
  # 77: all of its tests were skipped (tests/support/test_main.cc).
  set_tests_properties(${path} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}" ENVIRONMENT "${env}" SKIP_RETURN_CODE 77)
endfunction()

# sparrow_test_runs(client/sparrowctl sparrowctl ...): the test starts these programs, so they are built before it runs.
function(sparrow_test_runs path)
  string(REPLACE "/" "_" target ${path}_test)
  if(TARGET ${target})
    add_dependencies(${target} ${ARGN})
  endif()
endfunction()

# Tests with threads of their own or of what they test.
set(SPARROW_THREADED_TESTS
  base/bounded_queue base/metrics base/parallel base/rpc base/task_pool base/thread_team
  client/direct_transport client/embedded_cluster
  coordinator/control_plane coordinator/fuzz coordinator/link coordinator/stress
  dense/collective dense/reduction_terms
  embedding/background_writer embedding/cold_store embedding/host_table embedding/key_filter embedding/model_checker embedding/page_pool
  embedding/row_ledger embedding/table_model embedding/table_stress embedding/tiered_table embedding/write_back
  server/call_memory server/checkpoint_files server/lent_rows server/loans server/parallel_tables server/pull_ahead server/push_parts server/server server/service server/shard server/shared_loans server/wire_rows
  server/wire_types
  worker/batch_reader worker/grpc_transport worker/hot_rows worker/language_ranks worker/language_trainer worker/language_training worker/npy_source worker/parse_threads worker/ps_client worker/replicated_rows worker/side_thread
  worker/token_shards worker/trainer worker/worker)

# sparrow_bench(embedding/table sparrow::embedding ...): bench/embedding/table_bench.cc as program embedding_table_bench, and its smoke size
# (--benchmark_min_time tiny, SPARROW_BENCH_SMOKE=1) as the CTest bench/embedding/table.
function(sparrow_bench path)
  string(REPLACE "/" "_" target ${path}_bench)
  add_executable(${target} ${CMAKE_SOURCE_DIR}/bench/${path}_bench.cc)
  sparrow_sanitizer_objects(${target})
  target_link_libraries(${target} PRIVATE ${ARGN} benchmark::benchmark)
  target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR})
  if(NOT SPARROW_SANITIZE)
    target_link_libraries(${target} PRIVATE sparrow_jemalloc)
  endif()
  if(SPARROW_TESTS)
    add_test(NAME bench/${path} COMMAND ${target} --benchmark_min_time=0.001)
    set_tests_properties(bench/${path} PROPERTIES TIMEOUT 120 LABELS bench ENVIRONMENT "SPARROW_BENCH_SMOKE=1;OMP_WAIT_POLICY=passive")
  endif()
endfunction()
