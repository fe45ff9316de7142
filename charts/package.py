"""Packages the charts: `python charts/package.py DIRECTORY`. Fails if `helm lint --strict` would."""

import sys
from pathlib import Path

import helm_python

HERE = Path(__file__).resolve().parent


def main(directory: str) -> None:
    """Writes NAME-VERSION.tgz of each chart to a directory."""
    for chart in sorted(each.parent for each in HERE.glob("*/Chart.yaml")):
        report = helm_python.lint(chart, strict=True)
        if report["errors"]:
            sys.exit(f"{chart.name}: {'; '.join(report['errors'])}")
        print(helm_python.package(chart, destination=directory))


if __name__ == "__main__":
    main(sys.argv[1])
