# Tests of the CUDA wrappers; they skip, loudly, where there is no GPU.
if(SPARROW_HAS_CUDA)
  add_library(sparrow_failing_kernels STATIC failing_kernels.cu)
  target_link_libraries(sparrow_failing_kernels PUBLIC sparrow::cuda)
  sparrow_test(base/cuda_errors sparrow::base sparrow::cuda sparrow_failing_kernels LABELS gpu)
endif()
