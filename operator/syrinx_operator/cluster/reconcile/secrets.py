"""Secrets of pipelines. The operator may read them only by name, so they cannot be watched."""

import logging
import secrets
from collections.abc import Awaitable, Callable

from msgspec import Struct

from syrinx_operator.cluster.objects import names
from syrinx_operator.cluster.objects.clock import monotonic
from syrinx_operator.cluster.objects.kinds import SECRET
from syrinx_operator.cluster.objects.state import REDIS, Blocked, Component, Manifest, Owner, Problem, is_owned
from syrinx_operator.cluster.plan.connector import redis, replicated_redis
from syrinx_operator.cluster.plan.settings_token import SettingsToken, token_in, token_secret
from syrinx_operator.cluster.reconcile.apply import name_conflict
from syrinx_operator.cluster.watch.api import Api, ApiError, if_found
from syrinx_operator.resource.resolve import RedisForm

log = logging.getLogger(__name__)


UNREADY_SECONDS = 10.0
"""The Secrets of a pipeline that is not ready are read this often: a pod cannot start without one that was deleted."""


class _Read(Struct, frozen=True):
    found: Manifest | None
    at: float


class Secrets:
    """Reads each Secret at most once per period; one that is missing is read again the next time."""

    def __init__(self, api: Api, seconds: float, clock: Callable[[], float] = monotonic) -> None:
        self._api = api
        self._seconds = seconds
        self._clock = clock
        self._read: dict[tuple[str, str], _Read] = {}

    async def get(self, namespace: str, name: str) -> Manifest | None:
        """Returns a Secret. Raises ApiError."""
        return await self._once(namespace, name, lambda: self._api.get(SECRET, namespace, name))

    async def get_metadata(self, namespace: str, name: str) -> Manifest | None:
        """Returns a Secret without its data. Raises ApiError."""
        return await self._once(namespace, name, lambda: self._api.get_metadata(SECRET, namespace, name))

    def forget(self, namespace: str, name: str, age: float = 0.0) -> None:
        """Makes the next call read a Secret again, if it was read at least `age` seconds ago."""
        known = self._read.get((namespace, name))
        if known is not None and self._clock() - known.at >= age:
            del self._read[namespace, name]

    async def _once(self, namespace: str, name: str, request: Callable[[], Awaitable[Manifest]]) -> Manifest | None:
        known = self._read.get((namespace, name))
        if known is None or known.found is None or self._clock() - known.at >= self._seconds:
            known = self._read[namespace, name] = _Read(await if_found(request()), self._clock())
        return known.found


class PipelineSecrets:
    """The Secrets that the operator creates for a pipeline, once, while the fence permits it."""

    def __init__(self, api: Api, seconds: float, fence: Callable[[Owner], None]) -> None:
        self._api = api
        self._secrets = Secrets(api, seconds)
        self._fence = fence

    def forget(self, namespace: str, name: str, age: float = 0.0) -> None:
        """Drops the Secrets of a pipeline that were read at least `age` seconds ago."""
        for secret in (names.token_secret(name), *(names.workload(name, form) for form in REDIS)):
            self._secrets.forget(namespace, secret, age)

    async def find_token(self, owner: Owner) -> SettingsToken | None:
        """Returns the token of the settings ports; None if there is none. Raises ApiError."""
        secret = await self._secrets.get(owner.namespace, names.token_secret(owner.name))
        return token_in(secret) if secret is not None and is_owned(secret, owner) else None

    async def token(self, owner: Owner) -> SettingsToken:
        """Returns the token of the settings ports, a new one if it has no Secret. Raises Blocked or ApiError."""
        name = names.token_secret(owner.name)
        secret = await self._secrets.get(owner.namespace, name)
        if secret is None or not is_owned(secret, owner):
            await self._create(owner, token_secret(owner, secrets.token_urlsafe(32)))
            secret = await self._api.get(SECRET, owner.namespace, name)
        if (token := token_in(secret)) is None:
            self._secrets.forget(owner.namespace, name)
            message = f"Secret {name} has no key {names.TOKEN_KEY}: delete it, and the pods restart with a new one."
            raise Blocked(Problem("InvalidSecret", message))
        return token

    async def find_password(self, owner: Owner, form: Component | None) -> str | None:
        """Returns the UID of the password Secret of a managed Redis, whose data is never read; None without one."""
        if form is None:
            return None
        found = await self._secrets.get_metadata(owner.namespace, names.workload(owner.name, form))
        return found["metadata"]["uid"] if found and is_owned(found, owner) else None

    async def password(self, owner: Owner, form: Component | None) -> str | None:
        """Returns the UID of the password Secret of a managed Redis, a new one if there is none. Raises Blocked."""
        found = await self.find_password(owner, form)
        if found is not None or form is None:
            return found
        new = secrets.token_urlsafe
        if form is RedisForm.SINGLE:
            return await self._create(owner, redis.password_secret(owner, new(32)))
        return await self._create(owner, replicated_redis.password_secret(owner, new(32), new(32)))

    async def _create(self, owner: Owner, manifest: Manifest) -> str:
        """Creates a Secret, unless another operator has meanwhile, and returns its UID. Raises Blocked."""
        self._fence(owner)
        name = manifest["metadata"]["name"]
        self._secrets.forget(owner.namespace, name)
        try:
            created = await self._api.create(SECRET, owner.namespace, manifest)
        except ApiError as error:
            if error.status != 409:
                raise
            created = await self._api.get_metadata(SECRET, owner.namespace, name)
            if not is_owned(created, owner):
                raise Blocked(name_conflict(owner, {**created, "kind": SECRET.kind})) from None
        message = "%s/%s: created the Secret %s"
        log.info(message, owner.namespace, owner.name, name, extra=owner.log_fields)
        uid: str = created["metadata"]["uid"]
        return uid
