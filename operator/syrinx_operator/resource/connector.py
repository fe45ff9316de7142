"""Fields of the Redis between the stages."""

from typing import Annotated, Any, Literal

from msgspec import Meta

from syrinx_operator.resource import pods
from syrinx_operator.resource.pods import KUBERNETES, Object


class ConnectorSpec(Object, frozen=True, kw_only=True):
    """The Redis between the stages. Exactly one of `managed` and `url`."""

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
    """URL of an existing Redis (6.2 or newer): redis://HOST:PORT/DB, or redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DB
    with the hosts of sentinels. With TLS rediss://… or rediss+sentinel://…. Without a password."""
    password_secret: Annotated[pods.SecretKey | None, KUBERNETES] = None
    """Secret with the password of `url`. Default: no password."""
    ca_secret: Annotated[pods.SecretKey | None, KUBERNETES] = None
    """Secret with the CA certificates (PEM) that verify a server with TLS. Default: those of the image."""
    password_env: pods.EnvName | None = None
    """Environment variable of `syrinx up` with the password of `url`. Default: no password."""
