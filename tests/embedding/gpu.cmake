# Tests of the CUDA halves. Compiled wherever a toolkit is; they skip, loudly, where there is no GPU.
if(SPARROW_HAS_CUDA)
  sparrow_test(embedding/bag_gpu sparrow::embedding sparrow::embedding_kernels LABELS gpu)
  sparrow_test(embedding/dedup_gpu sparrow::embedding sparrow::embedding_kernels sparrow::kernel_trace LABELS gpu)
  sparrow_test(embedding/row_cache_gpu sparrow::embedding sparrow::embedding_kernels sparrow::kernel_trace LABELS gpu)
  sparrow_test(embedding/far_slots_gpu sparrow::embedding sparrow::embedding_kernels LABELS gpu)
  sparrow_test(embedding/sparse_update_gpu sparrow::embedding sparrow::embedding_kernels LABELS gpu)
endif()
