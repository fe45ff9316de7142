"""What tests need of the machine: a missing part is a failure, unless a developer's laptop may lack it."""

from __future__ import annotations

import os

import pytest

ALLOW_MISSING = "SYRINX_TEST_ALLOW_MISSING"


def require(part: object, problem: str) -> None:
    """Fails the test if `part` is missing (false), or skips it if SYRINX_TEST_ALLOW_MISSING is 1."""
    if part:
        return
    if os.environ.get(ALLOW_MISSING) == "1":
        pytest.skip(problem)
    pytest.fail(f"{problem}. {ALLOW_MISSING}=1 skips what needs it", pytrace=False)
