"""GPU models to choose tiles and to compile kernels for: at least one of each supported architecture."""

from syrinx_stages.kernels.gpu import H200, Gpu

GPUS = {
    "A100": Gpu((8, 0), 163 << 10, 108),
    "A10": Gpu((8, 6), 99 << 10, 72),
    "L4": Gpu((8, 9), 99 << 10, 58),
    "L40S": Gpu((8, 9), 99 << 10, 142),
    "H200": H200,
    "B200": Gpu((10, 0), 227 << 10, 148),
    "RTX 5090": Gpu((12, 0), 99 << 10, 170),
}
"""Shared memory per block: CUDA C++ Programming Guide, "Compute Capabilities"."""
