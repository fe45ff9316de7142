"""Fields of the Redis between the stages."""

from typing import Annotated, Any, Literal

from msgspec import Meta

from syrinx_operator.resource.fields import pods
from syrinx_operator.resource.fields.pods import KUBERNETES, Object
from syrinx_stages.contract.keys import MAX_CELLS

CELL = "{cell}"
"""Stands for the number of a cell in a URL."""


class ConnectorSpec(Object, frozen=True, kw_only=True):
    """The Redis between the stages. Exactly one of `managed` and `url`."""

    cells: Annotated[int, Meta(ge=1, le=MAX_CELLS)] = 1
    """Number of cells. Each has a Redis of its own, or its own slots of a Redis Cluster, and every cells-th talker and
    codec: there must be at least as many of each. Gateways distribute requests to all cells, so that the loss of one
    Redis concerns only the streams of its cell. A change is a roll-out of all stages."""
    managed: bool = False
    """Run a dedicated Redis for this pipeline."""
    image: Annotated[pods.Image | None, KUBERNETES] = None
    """Image of the managed Redis (6.2 or newer). Default: configured in the operator."""
    replicas: Annotated[Literal[1, 3], KUBERNETES] = 1
    """Number of servers of the managed Redis. 3: a primary and two replicas, each with a sentinel, so that streams
    continue within seconds if a server or its node is lost. A change is a roll-out of all stages."""
    resources: Annotated[pods.Resources, KUBERNETES] = pods.Resources(
        requests={"cpu": "50m", "memory": "64Mi"}, limits={"memory": "512Mi"}
    )
    """CPU and memory of the managed Redis. Its maxmemory is three quarters of the memory limit."""
    storage: Annotated[pods.Storage | None, KUBERNETES] = None
    """A volume for each server of the managed Redis, so that streams survive a restart of all of them. It can grow if
    its StorageClass allows it. Default: none."""
    pod_template: Annotated[dict[str, Any] | None, KUBERNETES] = None
    """Changes of the managed Redis's pod template, with metadata and spec, for example its placement. Containers,
    volumes and variables are merged by name. Default: none."""
    url: Annotated[str, Meta(min_length=1, max_length=512)] | None = None
    """URL of an existing Redis (6.2 or newer) or Valkey: redis://HOST:PORT/DB,
    redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DB with the hosts of sentinels, or redis+cluster://HOST:PORT,HOST:PORT
    with some nodes of a Redis Cluster. With TLS rediss… instead of redis…. Without a password. {cell} stands for the
    number of a cell, from 0: redis://redis-{cell}.example:6379/0. Several cells need it, except in a Redis Cluster."""
    password_secret: Annotated[pods.SecretKey | None, KUBERNETES] = None
    """Secret with the password of `url`. Default: no password."""
    ca_secret: Annotated[pods.SecretKey | None, KUBERNETES] = None
    """Secret with the CA certificates (PEM) that verify a server with TLS. Default: those of the image."""
    password_env: pods.EnvName | None = None
    """Environment variable of `syrinx up` with the password of `url`. Default: no password."""

    def urls(self) -> list[str]:
        """Returns the addresses for `REDIS_URL` with `url`: one for each cell, or one for all."""
        assert self.url is not None
        cells = self.cells if CELL in self.url else 1
        return [self.url.replace(CELL, str(cell)) for cell in range(cells)]
