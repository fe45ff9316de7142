"""Replaces what the real services take from outside the simulation: randomness, files and the garbage collector."""

import contextlib
import functools
import logging
import random
import types
import uuid
from collections.abc import Iterator
from unittest import mock

from syrinx_stages.families import IMPLEMENTATION

LISTENER_SECONDS = 15.0
"""After this long a talker abandons a request whose gateway has crashed: longer than any fault, but not a minute."""

_describe = functools.cache(IMPLEMENTATION.describe)
_load_tokenizer = functools.cache(IMPLEMENTATION.load_tokenizer)


class _NoHttp:
    """The HTTP client for reference audio: no request here names a URL."""

    def __init__(self, **options: object) -> None:
        pass

    async def aclose(self) -> None:
        """Does nothing."""


@contextlib.contextmanager
def environment(chance: random.Random, verbose: bool) -> Iterator[None]:
    """Makes everything in the block depend on `chance` alone. Logs only if `verbose`."""

    def new_uuid() -> uuid.UUID:
        return uuid.UUID(int=chance.getrandbits(128))

    random.seed(chance.getrandbits(64))
    if not verbose:
        logging.disable(logging.CRITICAL)
    # A collection at each start of a process would take most of the time.
    no_collector = types.SimpleNamespace(collect=lambda: 0, freeze=lambda: None)
    with (
        mock.patch.object(IMPLEMENTATION, "describe", _describe),
        mock.patch.object(IMPLEMENTATION, "load_tokenizer", _load_tokenizer),
        mock.patch("syrinx_stages.gateway.http.active_requests.uuid", types.SimpleNamespace(uuid4=new_uuid)),
        mock.patch("syrinx_stages.gateway.service.httpx.AsyncClient", _NoHttp),
        mock.patch("syrinx_stages.runtime.process.gc", no_collector),
        mock.patch("syrinx_stages.scheduling.talker.LISTENER_TIMEOUT", LISTENER_SECONDS),
        # Clearing the buffers of all connections would take a tenth of the time.
        mock.patch("syrinx_stages.connector.redis.connection.RECEIVE_BYTES", 4096),
    ):
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)
