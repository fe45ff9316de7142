"""Shared by all tests."""

from functools import partial

import torch
import yaml

# As every stage process does on a CPU: results do not depend on the batch only on one thread.
torch.set_num_threads(1)
# Seven times as quick, with the same result: hundreds of tests read the CRD.
yaml.safe_load = partial(yaml.load, Loader=yaml.CSafeLoader)
yaml.safe_load_all = partial(yaml.load_all, Loader=yaml.CSafeLoader)
