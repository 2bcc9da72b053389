if(SPARROW_HAS_CUDA)
  add_executable(embedding_bag_gpu_bench bag_gpu_bench.cc)
  target_link_libraries(embedding_bag_gpu_bench PRIVATE sparrow::embedding_kernels)
endif()
