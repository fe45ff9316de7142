"""What authenticates the operator at a Prometheus: files of the installation, and Secrets of the pipeline.

Everyone who may write a TTSPipeline chooses the URL, and may read the Secrets of its namespace with a pod. So a
pipeline's Secrets are sent to its URL, and the installation's token only to the URL that the installation configures.
"""

import base64
import binascii
import re
import ssl
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

import httpx
from msgspec import Struct

from syrinx_operator.cluster.objects.kinds import SECRET, Kind
from syrinx_operator.cluster.objects.state import Manifest
from syrinx_operator.cluster.watch.api import ApiError, if_found
from syrinx_operator.resource.fields.pods import SecretKey
from syrinx_operator.resource.fields.tuning import PrometheusSpec

MAX_TOKEN = 16_384
_AUTHORIZATION: Final = "authorization"
_OWN_HEADERS: Final = frozenset({"accept-encoding", "connection", "content-length", "host", "transfer-encoding"})
_HEADER_VALUE: Final = re.compile(rb"[!-~]([ -~]*[!-~])?")
_USERNAME, _PASSWORD = "username", "password"
"""Keys of a Secret of type kubernetes.io/basic-auth."""

GetObject = Callable[[Kind, str, str], Awaitable[Manifest]]
"""Returns an object by kind, namespace and name. Raises ApiError."""


class PrometheusError(Exception):
    """A query failed or its response is invalid; the message says why, and `field` is the field to correct."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = ".".join(["spec.tuning.prometheus", *([field] if field else [])])


class Access(Struct, frozen=True, kw_only=True):
    """The installation's configuration for Prometheus servers that need a token or have their own CA."""

    url: str = ""
    """URL that the token is for."""
    token_file: str = ""
    ca_file: str = ""
    """CA certificates (PEM) for all https:// URLs; empty for those of the image."""


DEFAULT_ACCESS = Access()


class Credentials:
    """What a pipeline's Secrets contain. It has no `repr` of its values, so that no log can contain them."""

    def __init__(self, headers: Mapping[str, str] | None = None, tls: ssl.SSLContext | None = None) -> None:
        """`tls` verifies the server; None to verify it as the installation does."""
        self.headers = headers or {}
        self.tls = tls


def access(environment: Mapping[str, str]) -> Access:
    """Returns the access in an environment. Raises ValueError for a token without a URL."""
    variables = {field: f"SYRINX_PROMETHEUS_{field.upper()}" for field in Access.__struct_fields__}
    found = Access(**{field: environment.get(name, "") for field, name in variables.items()})
    if found.token_file and _origin(found.url) is None:
        raise ValueError("SYRINX_PROMETHEUS_TOKEN_FILE needs SYRINX_PROMETHEUS_URL, the address that the token is for")
    return found


def request_headers(url: str, mounted: Access, credentials: Credentials) -> httpx.Headers:
    """Returns the headers that authenticate. The pipeline's replace those of the installation. Reads a file."""
    token = _token(url, mounted)
    headers = httpx.Headers({_AUTHORIZATION: f"Bearer {token}"} if token else {})
    headers.update(credentials.headers)
    return headers


async def read_credentials(spec: PrometheusSpec, namespace: str, get: GetObject) -> Credentials:
    """Returns what the Secrets of a pipeline contain. Raises PrometheusError, which names what is missing."""
    headers = {}
    if spec.token_secret is not None:
        token = await _value("tokenSecret", spec.token_secret, namespace, get)
        headers[_AUTHORIZATION] = f"Bearer {_text('tokenSecret', spec.token_secret, token.strip())}"
    if (name := spec.basic_auth_secret) is not None:
        field, data = "basicAuthSecret", await _data("basicAuthSecret", name, namespace, get)
        user, password = (_of(field, data, SecretKey(name=name, key=key)) for key in (_USERNAME, _PASSWORD))
        if b":" in user:
            raise PrometheusError(f"Secret {name}: {_USERNAME} must not contain a colon", field)
        headers[_AUTHORIZATION] = f"Basic {base64.b64encode(user + b':' + password).decode()}"
    if (name := spec.headers_secret) is not None:
        if not (data := await _data("headersSecret", name, namespace, get)):
            raise PrometheusError(f"Secret {name} has no keys, which are the names of headers", "headersSecret")
        for key, value in data.items():
            if key.lower() in _OWN_HEADERS | headers.keys():
                raise PrometheusError(f"Secret {name}: the header {key} is already set", "headersSecret")
            headers[key.lower()] = _text("headersSecret", SecretKey(name=name, key=key), value.strip())
    return Credentials(headers, await _context(spec.ca_secret, namespace, get))


async def _context(ca: SecretKey | None, namespace: str, get: GetObject) -> ssl.SSLContext | None:
    if ca is None:
        return None
    value = await _value("caSecret", ca, namespace, get)
    try:
        return ssl.create_default_context(cadata=value.decode("ascii"))
    except (ssl.SSLError, ValueError):
        raise PrometheusError(f"Secret {ca.name}: {ca.key} has no certificates (PEM)", "caSecret") from None


async def _value(field: str, secret: SecretKey, namespace: str, get: GetObject) -> bytes:
    return _of(field, await _data(field, secret.name, namespace, get), secret)


async def _data(field: str, name: str, namespace: str, get: GetObject) -> dict[str, bytes]:
    """Returns the values of a Secret by key. Raises PrometheusError."""
    try:
        found = await if_found(get(SECRET, namespace, name))
    except ApiError as error:
        raise PrometheusError(f"Secret {name} cannot be read: {error} ({error.reason})", field) from None
    if found is None:
        raise PrometheusError(f"there is no Secret {name} in namespace {namespace}", field)
    try:
        return {key: base64.b64decode(value) for key, value in (found.get("data") or {}).items()}
    except binascii.Error:
        raise PrometheusError(f"Secret {name} cannot be decoded", field) from None


def _of(field: str, data: Mapping[str, bytes], secret: SecretKey) -> bytes:
    """Returns one value without a final line break, which files have. Raises PrometheusError."""
    if not (value := data.get(secret.key, b"").rstrip(b"\r\n")):
        raise PrometheusError(f"Secret {secret.name} has no key {secret.key}, or it is empty", field)
    return value


def _text(field: str, secret: SecretKey, value: bytes) -> str:
    """Returns a value that a header may have. Raises PrometheusError."""
    if len(value) > MAX_TOKEN or not _HEADER_VALUE.fullmatch(value):
        message = f"Secret {secret.name}: {secret.key} must be a line of up to {MAX_TOKEN} ASCII characters"
        raise PrometheusError(message, field)
    return value.decode("ascii")


def _token(url: str, access: Access) -> str:
    if not access.token_file or _origin(url) != _origin(access.url):
        return ""
    with Path(access.token_file).open("rb") as file:
        token = file.read(MAX_TOKEN).strip()
    if not re.fullmatch(rb"[!-~]+", token):
        raise PrometheusError(f"{access.token_file} contains no token")
    return token.decode("ascii")


def _origin(url: str) -> tuple[str, str, int | None] | None:
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL:
        return None
    return (parts.scheme, parts.host, parts.port) if parts.scheme in ("http", "https") and parts.host else None
