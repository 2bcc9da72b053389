if(SPARROW_HAS_CUDA)
  add_executable(worker_gpu_step_bench gpu_step_bench.cc gpu_step_parts.cc)
  target_link_libraries(worker_gpu_step_bench PRIVATE sparrow::dense_gpu sparrow::embedding_kernels sparrow::bench_support)
endif()
