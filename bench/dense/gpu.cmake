if(SPARROW_HAS_CUDA)
  add_executable(dense_optimizer_gpu_bench dense_optimizer_gpu_bench.cc)
  target_link_libraries(dense_optimizer_gpu_bench PRIVATE sparrow::dense_kernels)
endif()
