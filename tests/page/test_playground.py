"""Speech on the playground, with the bundled voice: what is heard is what the API and the code shown make."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest
from playwright.async_api import expect

from page.driver import DEADLINE, Playground, chromium, playground, sounding
from support.api_keys import Keys
from support.gateway import pcm_of
from support.up import Up, example

pytestmark = pytest.mark.page
TEXT = "It's \"late\" – she \\ waited at the old bridge's end; 日本. Then she carried the bags home."
WORDS = "The old teacher found two heavy bags near the river. She carried them home before the rain began."
SENTENCE = "The old teacher carried two heavy bags home before the rain began."
LONG = " ".join([WORDS] * 8)


def say(url: str, key: str | None = None, **fields: object) -> bytes:
    """PCM of a streamed request."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    body = {"input": WORDS, "response_format": "pcm", **fields}
    response = httpx.post(f"{url}/v1/audio/speech", json=body, headers=headers, timeout=DEADLINE, trust_env=False)
    assert response.status_code == 200, response.text
    return response.content


async def run_code(it: Playground, directory: Path, key: str = "") -> list[bytes]:
    """Runs the code that the page shows; returns the PCM of each piece of code."""
    made = []
    environment = {**os.environ, "SYRINX_API_KEY": key, "NO_PROXY": "*"}
    for shell in (["bash", "-c", await it.text("curl")], [sys.executable, "-c", await it.text("python")]):
        code = await asyncio.create_subprocess_exec(
            *shell, cwd=directory, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        async with asyncio.timeout(DEADLINE):
            output, _ = await code.communicate()
        assert code.returncode == 0, output.decode()
        made.append(pcm_of((directory / "speech.wav").read_bytes()))
        (directory / "speech.wav").unlink()
    return made


async def test_what_is_heard_is_what_the_api_makes_and_so_is_the_code(up: Up, tmp_path: Path):
    async with playground(up.url) as it:
        await it.set(Text=TEXT, Voice="gb", Seed="9007199254740993", Speed="1.1")
        await it.begin()
        await expect(it.figure("first")).to_have_text(re.compile(r"\d+ ms"))
        assert await it.text("reason") == "–", "it is heard while it is made"
        await expect(it.button("Speak")).to_be_enabled()
        expected = say(up.url, input=TEXT, voice="gb", seed=9007199254740993, speed=1.1)
        assert sounding(await it.heard()) == sounding(expected)
        assert pcm_of(await it.saved(tmp_path)) == expected
        assert await run_code(it, tmp_path) == [expected, expected]
        figures = {name: await it.text(name) for name in ("duration", "factor", "reason", "seed")}
        assert figures.pop("duration") == f"{len(expected) / 48_000:.2f} s"
        assert float(figures.pop("factor")) > 0
        assert figures == {"reason": "stop", "seed": "9007199254740993"}
        assert re.fullmatch(r"none|\d+, \d+ ms", await it.text("gaps"))
        assert re.fullmatch(
            r"[\d.]+ seconds of speech; first audio after \d+ ms; finish reason stop\.", await it.text("status")
        )


async def test_a_seed_that_the_gateway_has_drawn_is_in_the_code(up: Up, tmp_path: Path):
    async with playground(up.url) as it:
        await it.speak()
        saved = pcm_of(await it.saved(tmp_path))
        assert await run_code(it, tmp_path) == [saved, saved]
        assert f'"seed":{await it.text("seed")}' in await it.text("curl")


async def test_words_are_spoken_while_they_are_written(up: Up, tmp_path: Path):
    async with playground(up.url) as it:
        await it.set(Text=SENTENCE, Voice="us_f", Seed="11")
        await it.page.get_by_role("radio", name="word by word, as an LLM writes").check()
        await it.set(Words_per_second="6")
        await it.begin()
        await expect(it.figure("first")).to_have_text(re.compile(r"\d+ ms"))
        sent = float(await it.page.locator("progress").get_attribute("value") or 0)
        assert 1 <= sent < len(SENTENCE.split()), "speech begins before the text is complete"
        await expect(it.button("Speak")).to_be_enabled()
        expected = say(up.url, input=SENTENCE, voice="us_f", seed=11, non_streaming_mode=False)
        assert sounding(await it.heard()) == sounding(expected)
        assert pcm_of(await it.saved(tmp_path)) == expected
        assert await run_code(it, tmp_path) == [expected, expected]
        assert (await it.text("reason"), await it.text("seed")) == ("stop", "11")
        [socket] = [each for each in it.requested if each.startswith("ws")]
        assert socket == up.url.replace("http", "ws") + "/v1/audio/speech/stream"


@pytest.mark.parametrize("mode", ["at once", "word by word, as an LLM writes"])
async def test_cancel_is_silent_at_once_and_the_next_speech_works(up: Up, mode: str):
    async with playground(up.url) as it:
        await it.set(Text=LONG)
        await it.page.get_by_role("radio", name=mode).check()
        await it.begin()
        await expect(it.figure("duration")).to_have_text(re.compile(r"[1-9]\d*\.\d+ s"))
        await it.page.keyboard.press("Escape")
        await expect(it.figure("reason")).to_have_text("canceled")
        await expect(it.button("Speak")).to_be_enabled()
        heard, duration = await it.heard(), await it.text("duration")
        await it.page.wait_for_timeout(300)
        assert (await it.heard(), await it.text("duration")) == (heard, duration), "nothing is heard after it"
        status = await it.text("status")
        if mode == "at once":
            assert status == "Canceled."
        else:
            read = status.removeprefix("Canceled. The model had read up to: “").removesuffix("”")
            assert LONG.startswith(read) and 0 < len(read) < len(LONG)
        await it.set(Text="She waited.", Seed="3")
        await it.page.get_by_role("radio", name="at once").check()
        await it.speak()
        assert sounding(await it.heard()) == sounding(say(up.url, input="She waited.", voice="us", seed=3))


async def test_an_error_is_shown_in_words(up: Up):
    async with playground(up.url) as it:
        # Nine quintillion fit into 63 bits, ten do not.
        await it.set(Seed="10000000000000000000")
        for mode in ("at once", "word by word, as an LLM writes"):
            await it.page.get_by_role("radio", name=mode).check()
            await it.begin()
            await expect(it.page.get_by_role("alert").filter(has_text="seed")).to_contain_text("seed")
            await expect(it.button("Speak")).to_be_enabled()
            assert await it.text("reason") == "error"
        it.forget_messages("status of 400")
        await it.set(Seed="1", Text="  ")
        for mode, message in (("at once", "input"), ("word by word, as an LLM writes", "There is nothing to speak.")):
            await it.page.get_by_role("radio", name=mode).check()
            await it.begin()
            await expect(it.page.locator("#error")).to_contain_text(message)
            await expect(it.button("Speak")).to_be_enabled()
        it.forget_messages("status of 400")


async def test_a_text_is_as_long_as_its_way_to_the_gateway_permits(up: Up):
    async with playground(up.url) as it:
        text = it.page.get_by_label("Text", exact=True)
        for mode, limit in (("word by word, as an LLM writes", 4096), ("at once", 100_000)):
            await it.page.get_by_role("radio", name=mode).check()
            await expect(text).to_have_attribute("maxlength", str(limit))
        await text.fill("")
        await it.page.keyboard.insert_text("word " * 900)
        assert len(await text.input_value()) == 4500
        await it.page.get_by_role("radio", name="word by word, as an LLM writes").check()
        assert await text.evaluate("each => each.validity.tooLong"), "the browser says so, and nothing is sent"


async def test_a_key_is_sent_where_it_belongs_and_nowhere_else(tmp_path: Path):
    keys = Keys(tmp_path, alice={})
    key = keys.keys["alice"]
    with Up(tmp_path, example(tmp_path, apiKeys={"file": str(keys.file)})) as up:
        async with playground(up.url) as it:
            await expect(it.page.get_by_role("alert").filter(has_text="key")).to_have_text(
                "This gateway needs an API key: enter it above."
            )
            await expect(it.button("Speak")).to_be_disabled()
            field = it.page.get_by_label("API key")
            await field.fill("sk-wrong")
            await field.press("Tab")
            await expect(it.page.locator("#error")).to_have_text("This API key is not valid.")
            await field.fill(key)
            await field.press("Tab")
            expected = say(up.url, key, input=SENTENCE, voice="us", seed=5, non_streaming_mode=False)
            await it.set(Text=SENTENCE, Seed="5")
            await it.page.get_by_role("radio", name="word by word, as an LLM writes").check()
            await it.set(Words_per_second="20")
            await it.speak()
            assert sounding(await it.heard()) == sounding(expected)
            assert await run_code(it, tmp_path, key) == [expected, expected]
            await it.page.get_by_role("radio", name="at once").check()
            await it.speak()
            assert sounding(await it.heard()) == sounding(say(up.url, key, input=SENTENCE, voice="us", seed=5))
            shown = await it.page.locator("body").inner_text()
            stored = await it.page.evaluate("JSON.stringify([localStorage, sessionStorage, document.cookie])")
            assert "$SYRINX_API_KEY" in shown
            assert not any(key in text for text in (shown, stored, up.text, *it.requested))
            it.forget_messages("status of 401")


async def test_the_spectrum_is_that_of_numpy(up: Up):
    samples = np.random.default_rng(1).integers(-32768, 32768, 700).astype(np.int16)
    script = """async (samples) => {
      const {Spectrum} = await import("./assets/fft.js");
      return [...new Spectrum(512).of(Int16Array.from(samples), 100)];
    }"""
    async with playground(up.url) as it:
        found = np.array(await it.page.evaluate(script, samples.tolist()))
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(512) / 512)
    expected = np.abs(np.fft.rfft(window * samples[100:612] / 32768))[:256] * 4 / 512
    np.testing.assert_allclose(found, expected, atol=1e-6)


async def test_plots_show_the_speech_and_say_it_in_words(up: Up):
    colors = """(id) => {
      const {width, height} = document.getElementById(id);
      const {data} = document.getElementById(id).getContext("2d").getImageData(0, 0, width, height);
      const columns = new Set();
      for (let i = 0; i < data.length; i += 4) if (data[i + 3] && data[i] < 200) columns.add((i / 4) % width);
      return columns.size / width;
    }"""
    async with playground(up.url) as it:
        await it.page.get_by_role("img", name="Waveform: nothing yet").wait_for()
        await it.speak()
        seconds = (await it.text("duration")).removesuffix(" s")
        await it.page.get_by_role("img", name=f"Waveform: {seconds} seconds, peak").wait_for()
        name = await it.page.locator("#spectrogram").get_attribute("aria-label") or ""
        found = re.fullmatch(rf"Spectrogram: {seconds} seconds, up to 12000 Hz, strongest near (\d+) Hz", name)
        assert found and 50 < int(found[1]) < 1000, "voices are strongest there"
        assert await it.page.evaluate(colors, "waveform") > 0.9
        assert await it.page.evaluate(colors, "spectrogram") > 0.5


async def test_it_works_over_plain_http_by_a_name_but_does_not_record(up: Up):
    port = up.url.rpartition(":")[2]
    url = f"http://speech.internal:{port}"
    flags = ("--host-resolver-rules=MAP speech.internal 127.0.0.1, MAP evil.example 127.0.0.1",)
    # Without a secure context there are no worklets to record what is heard.
    async with playground(url, *flags) as it:
        await expect(it.button("Speak")).to_be_enabled()
        await it.button("Speak").click()
        await expect(it.figure("reason")).to_have_text("stop")
        await expect(it.button("Speak")).to_be_enabled()
        assert await it.page.evaluate("isSecureContext") is False
        await expect(it.button("Copy curl")).to_be_hidden()
        it.forget_messages("Cross-Origin-Opener-Policy")
    async with chromium(*flags) as context:
        response = await (await context.new_page()).goto(f"http://evil.example:{port}/")
        assert response is not None and response.status == 403
