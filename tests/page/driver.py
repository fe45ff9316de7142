"""The playground in a real Chromium, driven by Playwright: what it shows, asks for and plays."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from playwright.async_api import BrowserContext, Page, async_playwright, expect

DEADLINE = 60.0
expect.set_options(timeout=1000 * DEADLINE)
BINARY = shutil.which("chromium")
"""Debian's. None: the one that Playwright has downloaded."""
FLAGS = (
    "--autoplay-policy=no-user-gesture-required",
    "--use-fake-ui-for-media-stream",
    "--use-fake-device-for-media-stream",
)
SCREENSHOTS = os.environ.get("SYRINX_TEST_SCREENSHOTS")
"""Directory in which to write screenshots; None: write none."""
TAP = """
// What is sent to the loudspeakers is also sent to a recorder of the playground's own, which `prepare` has loaded.
globalThis.heard = [];
globalThis.violations = [];
document.addEventListener("securitypolicyviolation", (event) => violations.push(event.violatedDirective));
const Context = AudioContext, prepared = [], recorders = new WeakMap();
globalThis.prepare = async (rate) => {
  heard.length = 0;
  const context = new Context({sampleRate: rate});
  await context.audioWorklet.addModule("assets/recorder-worklet.js");
  const recorder = new AudioWorkletNode(context, "recorder", {numberOfOutputs: 0});
  recorder.port.onmessage = ({data}) => heard.push(data);
  recorders.set(context.destination, recorder);
  prepared.push(context);
};
globalThis.AudioContext = new Proxy(Context, {construct: (made, options) => prepared.pop() ?? new made(...options)});
const connect = AudioNode.prototype.connect;
AudioNode.prototype.connect = function (to, ...more) {
  if (recorders.has(to)) connect.call(this, recorders.get(to));
  return connect.call(this, to, ...more);
};
"""
HEARD = "[...new Uint8Array(Int16Array.from(heard.flatMap((each) => [...each]), (each) => each * 32768).buffer)]"


def sounding(pcm: bytes) -> bytes:
    """The samples that are not zero. Before, after and between those of a stream the loudspeakers get zeros."""
    samples = np.frombuffer(pcm, "<i2")
    return samples[samples != 0].tobytes()


@dataclass
class Playground:
    """One page."""

    page: Page
    url: str
    messages: list[str] = field(default_factory=list)
    """Errors and warnings of the console, and uncaught exceptions."""
    requested: list[str] = field(default_factory=list)
    """URLs, those of WebSockets included."""

    def figure(self, name: str) -> Any:
        """The locator of a measurement."""
        return self.page.locator(f"#{name}")

    def button(self, name: str) -> Any:
        """The locator of a button."""
        return self.page.get_by_role("button", name=name, exact=True)

    async def set(self, **values: str) -> None:
        """Fills fields by their labels."""
        for label, value in values.items():
            found = self.page.get_by_label(label.replace("_", " "), exact=True)
            if await found.evaluate("(each) => each.localName") == "select":
                await found.select_option(value)
            else:
                await found.fill(value)

    async def begin(self) -> None:
        """Speaks, and records what is heard."""
        await expect(self.button("Speak")).to_be_enabled()
        await self.page.evaluate("prepare(24000)")
        await self.button("Speak").click()

    async def speak(self) -> None:
        """Speaks until everything was heard."""
        await self.begin()
        await expect(self.button("Speak")).to_be_enabled()

    async def heard(self) -> bytes:
        """PCM that was sent to the loudspeakers since `begin`."""
        return bytes(await self.page.evaluate(HEARD))

    async def text(self, name: str) -> str:
        """The text of the element with this id."""
        return await self.page.locator(f"#{name}").text_content() or ""

    async def saved(self, directory: Path) -> bytes:
        """The WAV file that the page saves."""
        async with self.page.expect_download() as download:
            await self.page.get_by_role("link", name="Save as WAV").click()
        file = directory / "saved.wav"
        await (await download.value).save_as(file)
        return file.read_bytes()

    async def screenshot(self, name: str) -> None:
        """Writes a picture of the visible part, if pictures are wanted."""
        if SCREENSHOTS:
            await self.page.screenshot(path=Path(SCREENSHOTS) / f"{name}.png", animations="disabled")

    def forget_messages(self, containing: str) -> None:
        """Drops messages that a test expects; there must be some."""
        kept = [each for each in self.messages if containing not in each]
        assert len(kept) < len(self.messages), (containing, self.messages)
        self.messages[:] = kept

    async def check(self) -> None:
        """Fails if the page had problems, or asked for something elsewhere."""
        assert self.messages == []
        assert await self.page.evaluate("violations") == []
        own = urlsplit(self.url).netloc
        assert {urlsplit(each).netloc for each in self.requested if not each.startswith("blob:")} == {own}


@contextlib.asynccontextmanager
async def chromium(*flags: str, **options: Any) -> AsyncIterator[BrowserContext]:
    """Starts the browser. `options` are those of a context of Playwright."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=BINARY, args=[*FLAGS, *flags])
        try:
            yield await browser.new_context(**{"viewport": {"width": 800, "height": 900}, **options})
        finally:
            await browser.close()


@contextlib.asynccontextmanager
async def playground(url: str, *flags: str, path: str = "/", **options: Any) -> AsyncIterator[Playground]:
    """Opens a page of the gateway, and checks at the end that it had no problems."""
    async with chromium(*flags, **options) as context:
        page = await context.new_page()
        opened = Playground(page, url)
        page.set_default_timeout(1000 * DEADLINE)
        page.on("console", lambda it: opened.messages.append(it.text) if it.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: opened.messages.append(str(error)))
        page.on("request", lambda request: opened.requested.append(request.url))
        page.on("websocket", lambda socket: opened.requested.append(socket.url))
        await page.add_init_script(TAP)
        await page.goto(url + path)
        yield opened
        await opened.check()
