"""The codec on a GPU: a CUDA graph for each shape of a call."""
