"""Triton kernels of the CUDA engines. Each file has kernels of one subject and the Python functions that launch them."""
