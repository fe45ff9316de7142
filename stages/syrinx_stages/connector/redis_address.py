"""From the URL of a Redis to its address."""

from syrinx_stages.connector import redis_cluster, redis_sentinel
from syrinx_stages.connector.redis_connection import Address


def redis_address(url: str, password: str = "", ca_file: str | None = None) -> Address:
    """Returns the address of a URL: of a server, sentinels or the nodes of a Cluster. Raises ValueError if invalid."""
    scheme = url.partition("://")[0]
    if scheme in redis_sentinel.SCHEMES:
        return redis_sentinel.SentinelAddress(url, password, ca_file)
    if scheme in redis_cluster.SCHEMES:
        return redis_cluster.ClusterAddress(url, password, ca_file)
    return Address(url, password, ca_file)
