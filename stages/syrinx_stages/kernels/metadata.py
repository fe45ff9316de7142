"""Columns of the step metadata, an int32 matrix [rows, NUM_COLUMNS + pages] that the host uploads before each step.

Each row describes one request; the pages of its key-value cache follow the columns. A row of zeros is padding: slot
and page 0 are scratch memory. Kernels use the constants directly, the host uses their `value`.
"""

import triton.language as tl

SLOT = tl.constexpr(0)
"""The request's index in all per-request tensors."""
POSITION = tl.constexpr(1)
"""The first position that the step computes."""
FRAME = tl.constexpr(2)
"""Frames generated before; in a decode step."""
NUM_POSITIONS = tl.constexpr(2)
"""Positions that the step computes; in a prefill."""
TEXT = tl.constexpr(3)
"""The text token whose embedding is added to the frame's."""
RING = tl.constexpr(4)
"""The entry of the ring of host buffers that receives the frame's codes."""

NUM_COLUMNS = 5
