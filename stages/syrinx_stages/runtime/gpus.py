"""Prints UUID and bytes of memory of each GPU that CUDA shows, in its order: `python -m syrinx_stages.runtime.gpus`."""

import torch


def main() -> None:
    """Prints them; nothing without a GPU."""
    for index in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(index)
        # Whether the text has the prefix depends on the version of torch.
        print(f"GPU-{str(gpu.uuid).removeprefix('GPU-')} {gpu.total_memory}")


if __name__ == "__main__":
    main()
