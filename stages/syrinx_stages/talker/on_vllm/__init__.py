"""The talker on stock vLLM: its scheduler, paged cache and attention run the decoder layers, Syrinx does the rest."""
