# Tests of the CUDA halves. Compiled wherever a toolkit is; they skip, loudly, where there is no GPU.
if(SPARROW_HAS_CUDA)
  sparrow_test(dense/bce_loss_gpu sparrow::dense sparrow::dense_kernels LABELS gpu)
  sparrow_test(dense/cross_gpu sparrow::dense sparrow::dense_kernels LABELS gpu)
  sparrow_test(dense/dense_optimizer_gpu sparrow::dense sparrow::dense_kernels sparrow::embedding LABELS gpu)
  sparrow_test(dense/gradient_norm_gpu sparrow::dense sparrow::dense_kernels LABELS gpu)
  sparrow_test(dense/interaction_gpu sparrow::dense sparrow::dense_kernels LABELS gpu)
  sparrow_test(dense/last_layer_gpu sparrow::dense sparrow::dense_kernels LABELS gpu)
endif()
