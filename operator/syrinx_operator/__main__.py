"""The programs `syrinx`, `kubectl-syrinx` and `python -m syrinx_operator`."""

import sys


def main() -> int:
    """Runs a command of `syrinx`. Returns the exit status."""
    try:
        from syrinx_operator.commands import cli
    except ModuleNotFoundError as error:
        print(f"syrinx: {error.name} is not installed: install Syrinx with its extra `all`", file=sys.stderr)
        return 1
    return cli.main(program="kubectl syrinx" if sys.argv[0].endswith("kubectl-syrinx") else "syrinx")


if __name__ == "__main__":
    sys.exit(main())
