"""What kernels stand on: the compiler and its cache, pointers and frames, BLAS, teams of threads, memory."""
