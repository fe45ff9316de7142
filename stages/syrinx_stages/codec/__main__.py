"""`python -m syrinx_stages.codec CONFIG.json`: one codec replica."""

import sys

from syrinx_stages.codec.service import build
from syrinx_stages.runtime.process import run

if __name__ == "__main__":
    sys.exit(run("codec", build))
