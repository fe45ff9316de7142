"""The page at `/docs`, with scripted stages."""

import re
from pathlib import Path

import pytest

from support.chromium import BINARY, browser
from support.gateway import Gateway, Script

with_chromium = pytest.mark.skipif(BINARY is None, reason="needs chromium")
STATUS = "document.getElementById('status').textContent"
"""What the page says about the request."""


async def test_the_page_is_at_the_root_too_and_loads_nothing_from_elsewhere(running: Gateway):
    page, root = await running.http.get("/docs"), await running.http.get("/")
    assert (page.status_code, root.status_code) == (200, 200)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.content == root.content
    assert not re.search("https?://|@import|src=", page.text)
    policy = dict(part.split(" ", 1) for part in page.headers["content-security-policy"].split("; "))
    assert policy.pop("script-src").startswith("'sha256-")
    assert policy.pop("style-src").startswith("'sha256-")
    assert policy == {
        "default-src": "'none'",
        "img-src": "data:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }


@with_chromium
async def test_a_browser_shows_the_api_and_plays_speech_while_it_is_generated(running: Gateway, tmp_path: Path):
    running.stages.script = script = Script(pause_after=4)
    async with browser(tmp_path) as page:
        await page.open(f"{running.url}/docs")
        await page.until("document.querySelectorAll('#reference h3').length > 5")
        headings = await page.run("[...document.querySelectorAll('#reference h3')].map((each) => each.textContent)")
        assert "POST /v1/audio/speech/batch" in headings
        assert await page.run("[...form.elements.voice.options].map((each) => each.value)[0]") == "us"
        await page.run("form.elements.voice.value = 'gb'; form.elements.seed.value = '9007199254740993'; 1")
        await page.run("form.elements.play.click(); 1")
        shown = await page.until(f"{STATUS}.includes('received') && {STATUS}")
        assert re.fullmatch(r"First audio after \d+ ms; 0\.\d s received…", shown)
        script.go.set()
        done = await page.until("form.elements.stop.disabled && " + STATUS)
        assert re.fullmatch(r"First audio after \d+ ms; 0\.80 s of speech in [\d.]+ s; seed 9007199254740993\.", done)
        await page.run("form.elements.speed.value = '9'; run(play)")
        assert "speed" in await page.run(STATUS)
        failed = [problem for problem in page.problems() if "400" not in problem]
        assert failed == []
        assert all(url.startswith((running.url, "data:", "about:")) for url in page.requests())
    [request] = running.stages.seen
    assert (request.voice, request.seed, request.live) == ("gb", 9007199254740993, True)
