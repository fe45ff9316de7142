"""Shared by all tests."""

import torch

# As every stage process does on a CPU: results do not depend on the batch only on one thread.
torch.set_num_threads(1)
