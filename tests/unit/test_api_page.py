"""docs/api.md names what the gateway accepts and answers."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.routing import Route, WebSocketRoute

from syrinx_stages import gateway
from syrinx_stages.contract.api import SpeechFields
from syrinx_stages.gateway.audio.encoders import OTHER_NAMES, AudioFormat
from syrinx_stages.gateway.http import api, openapi, pages
from syrinx_stages.gateway.socket.stream_messages import CLIENT_MESSAGES, SESSION_FIELDS
from syrinx_stages.gateway.voices.voices import FIELDS
from syrinx_stages.runtime.http import server

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
NAMED = set(re.findall(r"`([^`\n]+)`", PAGE))
SOURCES = [*Path(gateway.__file__).parent.rglob("*.py"), Path(server.__file__)]
CODE_AT = {"bad_request": 2, "unavailable": 2, "_send_error": 3}
"""By function: the argument that is the code of an error."""
UNSEEN = {"client_disconnected", "unavailable"}
"""The client has left; the code of `unavailable` if none is given is not an argument."""


def codes() -> Iterator[str]:
    """Yields the codes of errors that the gateway sends."""
    for source in SOURCES:
        for call in ast.walk(ast.parse(source.read_text())):
            if not isinstance(call, ast.Call):
                continue
            function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            given = [each.value for each in call.keywords if each.arg == "code"]
            given += call.args[CODE_AT[function] :][:1] if function in CODE_AT else []
            yield from (each.value for each in given if isinstance(each, ast.Constant))


def first_column(heading: str) -> list[str]:
    """Returns the names in the first column of the table after a heading."""
    section = PAGE.partition(f"\n{heading}\n")[2].partition("\n\n¹")[0]
    return [name for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)]


def test_the_table_of_request_fields_has_each_field_once() -> None:
    assert sorted(first_column("## Request fields")) == sorted(SpeechFields.__struct_fields__)


@pytest.mark.parametrize("code", sorted(set(codes()) - UNSEEN))
def test_each_code_of_an_error_is_named(code: str) -> None:
    assert code in NAMED


def test_the_codes_are_found() -> None:
    assert {"queue_full", "overloaded", "invalid_http", "voice_exists", "not_configured", "closing"} <= set(codes())


def test_each_route_is_named() -> None:
    routes = [each for each in api._routes.routes if isinstance(each, Route | WebSocketRoute)]
    paths = {re.sub(r"/\{name:path\}", "/", each.path) for each in routes} - {pages.ASSETS_PATH}
    assert len(paths) > 10
    assert [path for path in sorted(paths) if path not in PAGE] == []


@pytest.mark.parametrize(
    "names",
    [
        AudioFormat,
        [name for name in OTHER_NAMES if "/" not in name],
        openapi.HEADERS.keys() - {"Warning"},
        CLIENT_MESSAGES,
        set(SESSION_FIELDS) - {"session"},
        FIELDS,
    ],
    ids=["formats", "other names of formats", "headers", "messages", "fields of sessions", "fields of voices"],
)
def test_each_name_is_on_the_page(names: list[str]) -> None:
    assert [name for name in names if name not in NAMED] == []
