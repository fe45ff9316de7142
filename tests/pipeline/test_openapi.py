"""The description of the API, and what Schemathesis finds when it tries everything that it describes."""

import asyncio
import os
import re
import sys
from pathlib import Path

import httpx
import pytest
from starlette.routing import WebSocketRoute

from support.api_keys import Keys
from support.gateway import Script, gateway
from support.waiting import DEADLINE
from syrinx_stages.contract.family import FAMILY
from syrinx_stages.gateway.fields.peers import FOREIGN
from syrinx_stages.gateway.http import api, pages
from syrinx_stages.gateway.http.openapi import document

EXAMPLES = os.environ.get("SYRINX_TEST_FUZZ", "15")
"""Requests for each operation and kind of data; `make fuzz` sends more."""
CONFIGURATION = """
[checks.negative_data_rejection]
expected-statuses = [400, 401, 403, 404, 405, 409, 413, 415, 422, 429, 503]
"""
"""Schemathesis does not expect 413 of a body that is invalid and too large."""


@pytest.mark.parametrize("with_keys", [False, True], ids=["without keys", "with keys"])
async def test_every_response_is_as_described(tmp_path: Path, with_keys: bool) -> None:
    (tmp_path / "schemathesis.toml").write_text(CONFIGURATION)
    keys = Keys(tmp_path, alice={})
    # A schema cannot say which voices, texts and combinations a checkpoint accepts.
    excluded = "positive_data_acceptance" if with_keys else "positive_data_acceptance,ignored_auth"
    async with gateway(**({"api_keys_file": str(keys.file)} if with_keys else {})) as running:
        running.stages.script = Script(frames=2)
        schemathesis = await asyncio.create_subprocess_exec(
            *(str(Path(sys.executable).parent / "schemathesis"), "run", f"{running.url}/openapi.json"),
            *("--max-examples", EXAMPLES, "--seed", "1", "--exclude-checks", excluded, "--no-color"),
            *(("--header", f"Authorization: Bearer {keys.keys['alice']}") if with_keys else ()),
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await schemathesis.communicate()
        assert schemathesis.returncode == 0, output.decode()
        assert running.metric("syrinx_requests_total", task_type="CustomVoice", outcome="stop"), "some were served"
        served = running.metric("syrinx_client_requests_total", client="alice", outcome="stop")
        assert bool(served) == with_keys


async def test_every_route_is_described() -> None:
    async with gateway() as running, httpx.AsyncClient(base_url=running.url, timeout=DEADLINE) as client:
        found = (await client.get("/openapi.json")).json()
        described = found["paths"]
        # The playground's field accepts no more, at once and word by word.
        text = found["components"]["schemas"]["SpeechFields"]["properties"]["input"]
        assert (text["maxLength"], text["x-maxLengthOfTokens"]) == (100_000, 4096)
        for path, operations in described.items():
            allowed = (
                (await client.request("PATCH", path.format(model="syrinx-us", voice="us"))).headers["allow"].split(", ")
            )
            assert {method.upper() for method in operations} == set(allowed), path


def test_no_path_is_left_out() -> None:
    """But for the files that pages load. WebSockets, which have no operations, are named."""
    described = document(needs_key=False, text_limit=100)
    routes = api._routes.routes
    sockets = {each.path for each in routes if isinstance(each, WebSocketRoute)}
    assert len(sockets) == 2 and all(path in described["info"]["description"] for path in sockets)
    left = {re.sub(r"{.*}", "{}", path) for path in {each.path for each in routes} - sockets - {pages.ASSETS_PATH}}
    assert left == {re.sub(r"{.*}", "{}", path) for path in described["paths"]}


def test_each_operation_has_the_errors_that_it_can_have() -> None:
    for needs_key in (False, True):
        paths = document(needs_key, text_limit=100)["paths"]
        having = {
            status: {
                (method, path) for path, each in paths.items() for method in each if status in each[method]["responses"]
            }
            for status in ("401", "409", "429")
        }
        below = {(method, path) for path, each in paths.items() for method in each if path.startswith("/v1/")}
        assert having["401"] == (below if needs_key else set())
        assert having["429"] == ({each for each in below if each[0] == "post"} if needs_key else set())
        assert having["409"] == {("post", "/v1/audio/voices")}


def test_every_field_of_a_request_is_described() -> None:
    properties = document(needs_key=False, text_limit=100)["components"]["schemas"]["SpeechFields"]["properties"]
    assert properties.keys() == {*FAMILY.request_fields.__struct_fields__, *FOREIGN}
    assert all(each["description"] for each in properties.values())


def test_the_page_of_the_api_can_name_every_type() -> None:
    """A list without items is none that it can name: other spellings of a value are marked, and left out."""
    schemas = document(False, 4096)["components"]["schemas"]
    fields = [field for schema in schemas.values() for field in schema.get("properties", {}).values()]
    shown = [each for field in fields for each in field.get("anyOf", [field]) if not each.get("deprecated")]
    assert len(shown) > 60
    assert all("items" in each for each in shown if each.get("type") == "array")
