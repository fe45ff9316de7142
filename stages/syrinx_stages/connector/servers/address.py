"""From the URL of a Redis to its address."""

from syrinx_stages.connector.redis.connection import Address
from syrinx_stages.connector.servers import cluster, sentinel


def redis_address(url: str, password: str = "", ca_file: str | None = None) -> Address:
    """Returns the address of a URL: of a server, sentinels or the nodes of a Cluster. Raises ValueError if invalid."""
    scheme = url.partition("://")[0]
    if scheme in sentinel.SCHEMES:
        return sentinel.SentinelAddress(url, password, ca_file)
    if scheme in cluster.SCHEMES:
        return cluster.ClusterAddress(url, password, ca_file)
    return Address(url, password, ca_file)
