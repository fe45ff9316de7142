"""`python -m syrinx_operator`."""

import sys

from syrinx_operator.commands.cli import main

sys.exit(main())
