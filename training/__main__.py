"""`python -m training`."""

import sys

# The workers of `synthesis` import this module too: without the command line, and torch, they start quickly.
if __name__ == "__main__":
    from training.cli import main

    sys.exit(main(sys.argv[1:]))
