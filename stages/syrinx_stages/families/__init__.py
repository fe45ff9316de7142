"""The code of each model family, one module per family; `IMPLEMENTATION` is that of the family served.

`contract.family` has the facts that need no code. Importing this package imports no torch.
"""

from syrinx_stages.families import qwen3_tts as IMPLEMENTATION

__all__ = ["IMPLEMENTATION"]
