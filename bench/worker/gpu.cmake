if(SPARROW_HAS_CUDA)
  sparrow_library(gpu_steps SOURCES gpu_step_parts.cc table_step.cc
    DEPS sparrow::dense_gpu sparrow::embedding_kernels sparrow::bench_support)
  add_executable(worker_gpu_step_bench gpu_step_bench.cc)
  target_link_libraries(worker_gpu_step_bench PRIVATE sparrow::gpu_steps)
  add_executable(worker_gpt2_bench gpt2_bench.cc)
  target_link_libraries(worker_gpt2_bench PRIVATE sparrow::language_trainer sparrow::bench_report sparrow::bench_support sparrow::kernel_trace)
endif()
