"""Prints the UUIDs of the GPUs that CUDA shows, one a line in its order: `python -m syrinx_stages.runtime.gpus`."""

import torch


def main() -> None:
    """Prints them; nothing without a GPU."""
    for index in range(torch.cuda.device_count()):
        # Whether the text has the prefix depends on the version of torch.
        print(f"GPU-{str(torch.cuda.get_device_properties(index).uuid).removeprefix('GPU-')}")


if __name__ == "__main__":
    main()
