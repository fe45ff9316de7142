"""The Secret with the token of the stages' settings ports. Pure."""

import base64
import binascii

from msgspec import Struct

from syrinx_operator.cluster.objects import names
from syrinx_operator.cluster.objects.state import Manifest, Owner
from syrinx_operator.cluster.plan.objects import secret


class SettingsToken(Struct, frozen=True):
    """The token that the operator sends to the settings ports."""

    uid: str
    """UID of its Secret."""
    value: str


def token_secret(owner: Owner, token: str) -> Manifest:
    """Returns the Secret that operator and stages share. Deleting it creates a new token and restarts the pods."""
    return secret(owner, "stages", {names.TOKEN_KEY: token})


def token_in(secret: Manifest) -> SettingsToken | None:
    """Returns the token in a live Secret; None if it holds none."""
    try:
        value = base64.b64decode((secret.get("data") or {}).get(names.TOKEN_KEY, ""), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
    is_header_value = bool(value) and value.isascii() and value.isprintable()
    return SettingsToken(secret["metadata"]["uid"], value) if is_header_value else None
