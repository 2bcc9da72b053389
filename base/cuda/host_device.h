#ifndef SPARROW_BASE_CUDA_HOST_DEVICE_H_
#define SPARROW_BASE_CUDA_HOST_DEVICE_H_

// Marks a function that both halves of a twin compile. The only header with a compiler switch in it.
#ifdef __CUDACC__
#define SPARROW_HOST_DEVICE __host__ __device__
#else
#define SPARROW_HOST_DEVICE
#endif

#endif  // SPARROW_BASE_CUDA_HOST_DEVICE_H_
