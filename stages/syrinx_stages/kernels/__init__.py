"""Triton kernels of the CUDA engines: each file has those of one subject, and the functions that launch them."""
