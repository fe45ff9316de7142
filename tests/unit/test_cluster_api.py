"""The Kubernetes client: error decoding, pagination and kinds' paths, with canned responses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from syrinx_operator.cluster.objects.kinds import PIPELINE, POD
from syrinx_operator.cluster.watch.api import Api, ApiError
from syrinx_operator.cluster.watch.telemetry import Telemetry


class CannedApi(Api):
    """Returns the given responses in order and records the queries."""

    def __init__(self, *responses: tuple[int, bytes, Mapping[str, str]]) -> None:
        super().__init__(Telemetry())
        self.responses = list(responses)
        self.queries: list[Mapping[str, str] | None] = []

    async def request(self, method, path, *, query=None, body=None, headers=None, seconds=0.0):
        self.queries.append(dict(query) if query else None)
        return self.responses.pop(0)


def response(status: int, body: Any, **headers: str) -> tuple[int, bytes, Mapping[str, str]]:
    return status, body if isinstance(body, bytes) else json.dumps(body).encode(), headers


async def error_of(*answer: Any, **headers: str) -> ApiError:
    with pytest.raises(ApiError) as found:
        await CannedApi(response(*answer, **headers)).get(POD, "voices", "demo")
    return found.value


async def test_an_error_has_the_servers_reason_and_message():
    error = await error_of(404, {"kind": "Status", "reason": "NotFound", "message": 'pods "demo" not found'})
    assert (error.status, error.reason, str(error)) == (404, "NotFound", 'pods "demo" not found')
    assert error.not_found and not error.unavailable and error.retry_after is None


@pytest.mark.parametrize(
    ("body", "reason", "message"),
    [
        (b"upstream connect error", "HTTP503", "upstream connect error"),
        (b"", "HTTP503", "HTTP status 503"),
        ({"reason": None, "message": None}, "HTTP503", "HTTP status 503"),
        (["odd"], "HTTP503", '["odd"]'),
    ],
)
async def test_an_error_without_a_status_object(body, reason, message):
    error = await error_of(503, body)
    assert (error.reason, str(error), error.unavailable) == (reason, message, True)


@pytest.mark.parametrize(("header", "seconds"), [("7", 7.0), ("soon", None), ("-1", None)])
async def test_retry_after_is_read_from_the_header(header, seconds):
    error = await error_of(429, {}, **{"Retry-After": header})
    assert (error.retry_after, error.affects_all_requests) == (seconds, True)


@pytest.mark.parametrize("body", [b"ok", b"[]", b""])
async def test_a_response_that_is_no_object_is_an_error(body):
    error = await error_of(200, body)
    assert (error.status, error.unavailable) == (0, True)


def page(*names: str, token: str = "") -> tuple[int, bytes, Mapping[str, str]]:
    metadata = {"continue": token, "resourceVersion": "7"}
    return response(200, {"metadata": metadata, "items": [{"metadata": {"name": name}} for name in names]})


async def test_a_list_reads_all_pages_and_adds_the_kind():
    api = CannedApi(page("a", token="t"), page("b"))
    found = await api.list_objects(POD, "voices", "app=demo")
    assert [(each["kind"], each["metadata"]["name"]) for each in found.items] == [("Pod", "a"), ("Pod", "b")]
    assert found.version == "7"
    assert api.queries == [
        {"limit": "500", "labelSelector": "app=demo"},
        {"limit": "500", "labelSelector": "app=demo", "continue": "t"},
    ]


async def test_a_list_starts_over_once_if_its_token_expires():
    expired = response(410, {"reason": "Expired"})
    api = CannedApi(page("a", token="t"), expired, page("a"))
    assert [each["metadata"]["name"] for each in (await api.list_objects(POD, "voices")).items] == ["a"]
    with pytest.raises(ApiError):
        await CannedApi(expired, expired).list_objects(POD, "voices")


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
async def test_a_server_that_cannot_answer_now_is_unavailable(status):
    assert (await error_of(status, {"message": "etcdserver: request timed out"})).unavailable


async def test_a_field_that_the_crd_does_not_know_is_not_an_outage():
    """The API server answers 500."""
    message = (
        "failed to create typed patch object (v/demo; syrinx.dev/v1beta1): .status.x: field not declared in schema"
    )
    assert not (await error_of(500, {"message": message})).unavailable


def test_paths():
    assert POD.path(None) == "/api/v1/pods"
    assert POD.path("voices", "demo") == "/api/v1/namespaces/voices/pods/demo"
    assert PIPELINE.path("voices") == "/apis/syrinx.dev/v1beta1/namespaces/voices/ttspipelines"
    assert (
        PIPELINE.path("v/x", "demo", "status") == "/apis/syrinx.dev/v1beta1/namespaces/v%2Fx/ttspipelines/demo/status"
    )
    assert (POD.group, PIPELINE.group) == ("", "syrinx.dev")
