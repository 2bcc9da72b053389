if(SPARROW_HAS_CUDA)
  sparrow_library(gpu_steps SOURCES gpu_step_parts.cc table_step.cc
    DEPS sparrow::dense_gpu sparrow::embedding_kernels sparrow::bench_support)
  add_executable(worker_gpu_step_bench gpu_step_bench.cc slots_of_lookups.cu)
  target_link_libraries(worker_gpu_step_bench PRIVATE sparrow::gpu_steps)
endif()
