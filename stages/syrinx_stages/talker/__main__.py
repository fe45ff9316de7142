"""`python -m syrinx_stages.talker CONFIG.json`: one talker replica."""

import sys

from syrinx_stages.runtime.process import run
from syrinx_stages.talker.service import build

if __name__ == "__main__":
    sys.exit(run("talker", build))
