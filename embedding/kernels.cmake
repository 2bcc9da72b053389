# The CUDA half of this folder: needs CUDA and base/cuda only.
if(SPARROW_HAS_CUDA)
  add_library(sparrow_embedding_kernels STATIC bag_gpu.cu dedup_gpu.cu group_lookups.cu lookup_slots_gpu.cu replica_gpu.cu row_cache_gpu.cu row_cache_insert.cu row_parcel_gpu.cu sparse_update_gpu.cu)
  add_library(sparrow::embedding_kernels ALIAS sparrow_embedding_kernels)
  target_link_libraries(sparrow_embedding_kernels PUBLIC sparrow::cuda)
  # As the CPU's loops over rows: without fused multiply-add, so that a row's bits do not tell where it was pooled or updated.
  set_source_files_properties(bag_gpu.cu sparse_update_gpu.cu PROPERTIES COMPILE_OPTIONS "-fmad=false")
endif()
