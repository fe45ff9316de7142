"""The talker on a GPU: CUDA graphs over paged memory."""
