# The CUDA half of this folder: needs CUDA and base/cuda only.
if(SPARROW_HAS_CUDA)
  add_library(sparrow_embedding_kernels STATIC bag_gpu.cu)
  add_library(sparrow::embedding_kernels ALIAS sparrow_embedding_kernels)
  target_link_libraries(sparrow_embedding_kernels PUBLIC sparrow::cuda)
endif()
