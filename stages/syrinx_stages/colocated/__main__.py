"""`python -m syrinx_stages.colocated TALKER.json CODEC.json`: the two stages of a pod."""

import sys

from syrinx_stages.runtime.signals import exit_on_signals

if __name__ == "__main__":
    exit_on_signals()
    from syrinx_stages.colocated.pod import main

    sys.exit(main())
