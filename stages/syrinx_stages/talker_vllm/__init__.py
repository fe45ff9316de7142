"""The talker on stock vLLM, as an optional plugin. Only `families` imports this package, and only if it is configured.

vLLM's scheduler, paged KV cache and attention run the decoder layers. Syrinx embeds the inputs and samples the frames.
"""
