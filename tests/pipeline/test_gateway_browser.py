"""The description of the API and the access of web pages, in a real browser; with scripted stages."""

import json
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from support.api_keys import Keys
from support.chromium import browser
from support.gateway import Gateway, gateway, tone
from support.http_server import RecordedRequest, ScriptedResponse, http_server

SPEECH = "/v1/audio/speech"


@pytest.mark.night
async def test_a_browser_shows_the_api(running: Gateway, tmp_path: Path):
    async with browser(tmp_path) as page:
        await page.open(f"{running.url}/docs")
        await page.until("document.querySelectorAll('#reference h2').length > 5")
        headings = await page.run("[...document.querySelectorAll('#reference h2')].map((each) => each.textContent)")
        assert "POST /v1/audio/speech/batch" in headings
        assert page.problems() == []
        assert all(url.startswith((running.url, "data:", "about:")) for url in page.requests())


@pytest.mark.night
async def test_a_browser_lets_only_pages_of_allowed_origins_read_the_audio(tmp_path: Path) -> None:
    keys = Keys(tmp_path, alice={})

    def page(request: RecordedRequest) -> ScriptedResponse:
        return ScriptedResponse(b"<!doctype html><title>A page</title>", headers={"Content-Type": "text/html"})

    def speak(running: Gateway) -> str:
        """Returns a script with the size, rate and status of a response, or the error of a request that is blocked."""
        headers = keys.of("alice") | {"Content-Type": "application/json"}
        options = json.dumps({"method": "POST", "headers": headers, "body": '{"input": "Hello."}'})
        read = "async (r) => [(await r.arrayBuffer()).byteLength, r.headers.get('X-Sample-Rate'), r.status]"
        return f"fetch('{running.url}{SPEECH}', {options}).then({read}).catch((error) => error.name)"

    async with (
        http_server(page) as allowed,
        http_server(page) as other,
        gateway(api_keys_file=str(keys.file), cors_origins=(allowed.url,)) as running,
    ):
        for origin, expected in ((allowed, [44 + len(tone(10)), "24000", 200]), (other, "TypeError")):
            async with browser(tmp_path / urlsplit(origin.url).netloc) as tab:
                await tab.open(origin.url)
                await tab.until(f"location.origin === '{origin.url}' && document.readyState === 'complete'")
                assert await tab.run(speak(running)) == expected
        assert len(running.stages.seen) == 1
