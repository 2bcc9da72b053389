# The file that remembers the CUDA half's choices, and what products cost. Needs nothing.
add_library(sparrow_product_plans STATIC product_cost.cc product_plans.cc ${CMAKE_SOURCE_DIR}/base/check.cc)
add_library(sparrow::product_plans ALIAS sparrow_product_plans)
target_include_directories(sparrow_product_plans PUBLIC ${CMAKE_SOURCE_DIR})

# The CUDA half of this folder: needs CUDA and base/cuda only.
if(SPARROW_HAS_CUDA)
  add_library(sparrow_dense_kernels STATIC activation_gpu.cu add_floats.cu attention_gpu.cu cast_gpu.cu column_sums.cu cross_gpu.cu dense_optimizer_gpu.cu gelu_gpu.cu gradient_norm_gpu.cu interaction_gpu.cu last_layer_gpu.cu layer_norm_gpu.cu loss_scale_gpu.cu softmax_loss_gpu.cu step_gate_gpu.cu step_totals_gpu.cu token_embedding_gpu.cu linear_gpu.cu)
  add_library(sparrow::dense_kernels ALIAS sparrow_dense_kernels)
  add_library(sparrow_cublas_lt STATIC cublas_lt.cc)  # The library itself is loaded at run time.
  target_include_directories(sparrow_cublas_lt PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  target_link_libraries(sparrow_cublas_lt PUBLIC sparrow::cuda PRIVATE ${CMAKE_DL_LIBS})
  target_link_libraries(sparrow_dense_kernels PUBLIC sparrow::cuda sparrow_cublas_lt PRIVATE sparrow::product_plans)
endif()
