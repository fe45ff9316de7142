"""The addresses that servers listen on."""

import ipaddress
import socket


def bind(host: str, port: int, shares_port: bool = False) -> socket.socket:
    """Returns a socket that does not listen yet. An empty host or `::` is all addresses, IPv4 and IPv6.

    Connections of an earlier server that have not expired yet do not keep the port. Raises `OSError`, also if another
    process listens on it.
    """
    everywhere = host in ("", "::")
    dual = everywhere and socket.has_dualstack_ipv6()
    bound = socket.socket(socket.AF_INET6 if dual or ":" in host else socket.AF_INET)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shares_port:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if bound.family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not dual)
        bound.bind(("" if everywhere else host, port))
    except OSError:
        bound.close()
        raise
    return bound


def is_loopback(host: str) -> bool:
    """Returns whether only this machine reaches a server that listens on an address."""
    return host == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)


def is_address(name: str) -> bool:
    """Returns whether a name is an IP address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
