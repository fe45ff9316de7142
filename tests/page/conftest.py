"""Pipelines for the tests in a browser."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from support.up import Up

# Only `make test-page` installs it.
collect_ignore_glob = [] if find_spec("playwright") else ["test_*.py"]


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """`syrinx up` with the bundled voice."""
    with Up(tmp_path_factory.mktemp("up")) as it:
        yield it
