"""A pipeline in a network that has addresses of IPv6 only, or of IPv4 only."""

from pathlib import Path

import pytest

from support import one_family


@pytest.mark.night
@pytest.mark.parametrize("family", one_family.ADDRESSES)
def test_a_pipeline_speaks_and_all_ports_answer(family: str, tmp_path: Path) -> None:
    """Its stages listen on all addresses, as in a pod; Redis, probes, metrics, settings and API have the same host."""
    one_family.run_alone(family, "support.one_family_pipeline", str(tmp_path))
