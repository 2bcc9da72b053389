# The CUDA half of this folder: needs CUDA and base/cuda only.
if(SPARROW_HAS_CUDA)
  add_library(sparrow_dense_kernels STATIC bce_loss_gpu.cu cross_gpu.cu dense_optimizer_gpu.cu gradient_norm_gpu.cu interaction_gpu.cu last_layer_gpu.cu)
  add_library(sparrow::dense_kernels ALIAS sparrow_dense_kernels)
  target_link_libraries(sparrow_dense_kernels PUBLIC sparrow::cuda)
endif()
