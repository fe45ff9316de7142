"""Label selectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Object = dict[str, Any]
Test = Callable[[Object], bool]


def by_query(labels: str) -> Test:
    """Returns a matcher for a selector of parts `NAME=VALUE` and, for any value, `NAME`."""
    parts = [part.partition("=") for part in labels.split(",") if part]

    def test(obj: Object) -> bool:
        found: dict[str, str] = obj["metadata"].get("labels", {})
        return all(name in found and (not equals or found[name] == value) for name, equals, value in parts)

    return test
