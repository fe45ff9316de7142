"""`python -m syrinx_operator.resource crd|fields` prints `crds/ttspipelines.syrinx.dev.yaml` or `docs/fields.md`."""

from __future__ import annotations

import sys

from syrinx_operator.resource.crd import crd_file
from syrinx_operator.resource.fields import fields_file


def main() -> None:
    """Prints a generated file."""
    files = {"crd": crd_file, "fields": fields_file}
    if len(sys.argv) != 2 or sys.argv[1] not in files:
        sys.exit(f"usage: python -m syrinx_operator.resource {'|'.join(files)}")
    sys.stdout.write(files[sys.argv[1]]())


if __name__ == "__main__":
    main()
