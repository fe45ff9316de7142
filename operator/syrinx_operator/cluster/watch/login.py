"""kopf's connection to the API server, which outlives refused credentials. `Api` has one of its own."""

import asyncio
import logging
import random
from typing import Any

import aiohttp
import kopf
from kubernetes.aio import client, config

from syrinx_operator.cluster.watch.api import load_configuration
from syrinx_operator.cluster.watch.backoff import backoff

log = logging.getLogger(__name__)


class Login:
    """Connects kopf with the same configuration as `Api`. `connect` is a kopf handler."""

    def __init__(self, max_backoff_seconds: float) -> None:
        self._max_backoff_seconds = max_backoff_seconds

    async def connect(self, **_: Any) -> kopf.AiohttpSession:
        """Returns the connection. Raises ConfigException."""
        found = await load_configuration()
        ssl_context = client.rest.RESTClientObject(found).ssl_context
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=ssl_context),
            proxy=found.proxy,
            trust_env=True,
            middlewares=(self._send,),
        )
        return kopf.AiohttpSession(server=found.host, aiohttp_session=session)

    async def _send(self, request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        """Sends a request of kopf with the current token until it is accepted: a 401 would end the process."""
        failures = 0
        while True:
            if token := await _token():
                request.headers["Authorization"] = token
            response = await send(request)
            if response.status != 401:
                return response
            response.close()
            failures += 1
            log.warning("the API server refuses the operator's credentials (401); trying again")
            await asyncio.sleep(backoff(failures, random.random(), self._max_backoff_seconds))


async def _token() -> str:
    """Returns the header with the current token; empty if there is none."""
    try:
        return (await load_configuration()).api_key.get("BearerToken") or ""
    except (config.ConfigException, OSError) as error:
        log.warning("no credentials for the API server: %s", error)
        return ""
