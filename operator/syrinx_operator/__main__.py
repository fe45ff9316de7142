"""`python -m syrinx_operator`."""

import sys

from syrinx_operator.cli import main

sys.exit(main())
