"""The pages at `/` and `/docs`, and which pages may use the API; with scripted stages."""

from pathlib import Path

import httpx
import pytest

from support.api_keys import Keys
from support.gateway import Gateway, gateway

pytestmark = pytest.mark.virtual

POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "connect-src": "'self'",
    "media-src": "blob:",
    "img-src": "data:",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
    "require-trusted-types-for": "'script'",
    "trusted-types": "'none'",
}
FORM = {"name": (None, "anna"), "consent": (None, "cons_1"), "audio_sample": ("a.wav", b"RIFF", "audio/wav")}


async def test_without_the_playground_the_root_says_where_everything_is(running: Gateway):
    root = await running.http.get("/")
    links = root.json()
    assert (root.status_code, links.pop("name")) == (200, "Syrinx")
    for path in links.values():
        assert (await running.http.get(f"/{path}")).status_code != httpx.codes.NOT_FOUND, path
    assert (await running.http.get("/assets/style.css")).status_code == 200, "of /docs"
    for name in ("playground.js", "playground.html", "docs.html", "../pages.py", "%2e%2e/pages.py", "missing.js"):
        response = await running.http.get(f"/assets/{name}")
        assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found"), name


async def test_the_pages_are_locked_down_and_revalidated():
    async with gateway(playground=True) as running:
        for path, kind in (("/", "text/html"), ("/docs", "text/html"), ("/assets/playground.js", "text/javascript")):
            response = await running.http.get(path)
            headers = response.headers
            assert (response.status_code, headers["content-type"]) == (200, f"{kind}; charset=utf-8")
            policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
            assert policy == POLICY
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["cross-origin-resource-policy"] == headers["cross-origin-opener-policy"] == "same-origin"
            assert (headers["referrer-policy"], headers["cache-control"]) == ("no-referrer", "no-cache")
            again = await running.http.get(path, headers={"If-None-Match": headers["etag"]})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", headers["etag"])
            head = await running.http.head(path)
            assert (head.content, head.headers["content-length"]) == (b"", str(len(response.content)))
            assert (await running.http.post(path)).status_code == 405


async def test_a_visit_is_no_request_for_speech_and_needs_no_key(tmp_path: Path):
    keys = Keys(tmp_path, alice={})
    async with gateway(playground=True, api_keys_file=str(keys.file)) as running:
        for path in ("/", "/docs", "/assets/playground.js", "/assets/missing.js"):
            assert (await running.http.get(path)).status_code in (200, 404)
        assert (await running.http.get("/v1/audio/voices")).status_code == 401
        counted = {
            sample.name: sample.value
            for metric in running.registry.collect()
            for sample in metric.samples
            if sample.name in ("syrinx_requests_total", "syrinx_client_requests_total") and sample.value
        }
        assert counted == {}


async def test_a_page_of_another_origin_cannot_upload_a_voice():
    async with gateway(cors_origins=("https://app.example",)) as running:

        async def upload(headers: dict[str, str]) -> str:
            # A browser sends a form of another origin without asking the gateway first.
            response = await running.http.post("/v1/audio/voices", files=FORM, headers=headers)
            return response.json()["error"]["code"]

        for origin in ("https://evil.example", "null"):
            assert await upload({"Origin": origin}) == "origin_not_allowed"
        for headers in ({}, {"Origin": running.url}, {"Origin": "https://app.example"}):
            assert await upload(headers) == "unsupported_by_model", "it is not the origin that is refused"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "EVIL.example.", "127.0.0.1.evil.example"])
async def test_a_name_that_was_rebound_to_this_machine_is_refused(running: Gateway, host: str):
    for method, path in (("GET", "/"), ("GET", "/v1/audio/voices"), ("DELETE", "/v1/audio/voices/anna")):
        response = await running.http.request(method, path, headers={"Host": host})
        assert (response.status_code, response.json()["error"]["code"]) == (403, "host_not_allowed")
        assert response.headers["x-request-id"]


async def test_any_host_is_served_where_there_are_keys_or_proxies_or_other_machines(tmp_path: Path):
    keys = Keys(tmp_path, alice={})
    for config in ({"api_keys_file": str(keys.file)}, {"trusted_proxies": ("127.0.0.1/32",)}, {"host": "0.0.0.0"}):
        async with gateway(**config) as running:
            response = await running.http.get("/health", headers={"Host": "speech.example.org"})
            assert response.status_code != httpx.codes.FORBIDDEN, config
