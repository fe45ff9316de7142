"""A local pipeline on a Redis Cluster, of Redis and of Valkey."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from support.redis_cluster import Cluster, find_valkey_server, redis_cluster
from support.up import Up, example
from support.waiting import DEADLINE


@pytest.fixture(scope="module", params=["redis", "valkey"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A Cluster of the redis-server that other tests use, and one of a valkey-server."""
    binary = find_valkey_server() if request.param == "valkey" else None
    with redis_cluster(tmp_path_factory.mktemp(request.param), binary=binary) as cluster:
        yield cluster


def test_syrinx_up_uses_a_cluster(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.until_ready()
    monkeypatch.setenv("CLUSTER_PASSWORD", cluster.password)
    file = example(tmp_path)
    resource = yaml.safe_load(file.read_text())
    url = cluster.url.replace(f":{cluster.password}@", "")
    resource["spec"]["connector"] = {"url": url, "passwordEnv": "CLUSTER_PASSWORD"}
    file.write_text(yaml.safe_dump(resource))
    with Up(tmp_path, file) as running:
        body = {"input": "Hello.", "response_format": "pcm"}
        response = httpx.post(f"{running.url}/v1/audio/speech", json=body, timeout=DEADLINE, trust_env=False)
        assert response.status_code == 200 and response.content, response.text
