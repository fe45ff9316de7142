"""Secrets of pipelines. The operator may read them only by name, so they cannot be watched."""

import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from msgspec import Struct

from syrinx_operator.cluster.objects import names
from syrinx_operator.cluster.objects.clock import monotonic
from syrinx_operator.cluster.objects.kinds import SECRET, Kind
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


@dataclass
class Secrets:
    """The Secrets that the operator creates for pipelines, once, while the fence permits it.

    Each is read at most once per period; one that is missing is read again the next time.
    """

    _api: Api
    _seconds: float
    """The period."""
    _fence: Callable[[Owner], None]
    _clock: Callable[[], float] = monotonic
    _read: dict[tuple[str, str], _Read] = field(default_factory=dict)

    def forget(self, namespace: str, name: str, age: float = 0.0) -> None:
        """Drops the Secrets of a pipeline that were read at least `age` seconds ago."""
        for secret in (names.token_secret(name), *(names.workload(name, form) for form in REDIS)):
            known = self._read.get((namespace, secret))
            if known is not None and self._clock() - known.at >= age:
                del self._read[namespace, secret]

    async def find_token(self, owner: Owner) -> SettingsToken | None:
        """Returns the token of the settings ports; None if there is none. Raises ApiError."""
        secret = await self._find(owner, names.token_secret(owner.name), self._api.get)
        return None if secret is None else token_in(secret)

    async def token(self, owner: Owner) -> SettingsToken:
        """Returns the token of the settings ports, a new one if it has no Secret. Raises Blocked or ApiError."""
        name = names.token_secret(owner.name)
        if await self._find(owner, name, self._api.get) is None:
            await self._create(owner, token_secret(owner, secrets.token_urlsafe(32)))
        if (token := await self.find_token(owner)) is None:
            self._read.pop((owner.namespace, name), None)
            message = f"Secret {name} has no key {names.TOKEN_KEY}: delete it, and the pods restart with a new one."
            raise Blocked(Problem("InvalidSecret", message))
        return token

    async def find_password(self, owner: Owner, form: Component | None) -> str | None:
        """Returns the UID of the password Secret of a managed Redis, whose data is never read; None without one."""
        if form is None:
            return None
        found = await self._find(owner, names.workload(owner.name, form), self._api.get_metadata)
        return found["metadata"]["uid"] if found is not None else None

    async def password(self, owner: Owner, form: Component | None) -> str | None:
        """Returns the UID of the password Secret of a managed Redis, a new one if there is none. Raises Blocked."""
        found = await self.find_password(owner, form)
        if found is not None or form is None:
            return found
        new = secrets.token_urlsafe
        if form is RedisForm.SINGLE:
            return await self._create(owner, redis.password_secret(owner, new(32)))
        return await self._create(owner, replicated_redis.password_secret(owner, new(32), new(32)))

    async def _find(
        self, owner: Owner, name: str, get: Callable[[Kind, str, str], Awaitable[Manifest]]
    ) -> Manifest | None:
        """Returns a Secret of the pipeline. Raises ApiError."""
        key, known = (owner.namespace, name), self._read.get((owner.namespace, name))
        if known is None or known.found is None or self._clock() - known.at >= self._seconds:
            known = self._read[key] = _Read(await if_found(get(SECRET, *key)), self._clock())
        return known.found if known.found is not None and is_owned(known.found, owner) else None

    async def _create(self, owner: Owner, manifest: Manifest) -> str:
        """Creates a Secret, unless another operator has meanwhile, and returns its UID. Raises Blocked."""
        self._fence(owner)
        name = manifest["metadata"]["name"]
        self._read.pop((owner.namespace, name), None)
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
