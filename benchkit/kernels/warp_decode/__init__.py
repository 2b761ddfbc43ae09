"""Warp decode: one output at a time, two kernels, no staging. ``literal`` as published (CUDA C++), ``portable`` in Triton."""
