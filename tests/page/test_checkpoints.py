"""The playground of other checkpoints than the bundled voice: cloned and described voices. They speak noise."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import expect

from page.driver import playground, sounding
from page.test_access import check_contrasts, check_names, check_width
from support import small_checkpoint
from support.cloning import TRANSCRIPT, Cloning, gateway_of, sample, stages_of
from support.up import Up
from syrinx_stages.model.checkpoint import Checkpoint

pytestmark = pytest.mark.page


@contextlib.asynccontextmanager
async def serving(directory: Path, kind: str) -> AsyncIterator[Cloning]:
    checkpoint = Checkpoint(str(small_checkpoint.write(directory, kind)))
    async with stages_of(checkpoint) as stages, gateway_of(stages, playground=True) as it:
        yield it


@pytest.fixture
async def cloning(tmp_path: Path) -> AsyncIterator[Cloning]:
    async with serving(tmp_path / "model", "base") as it:
        yield it


async def test_a_voice_is_uploaded_spoken_with_and_deleted(cloning: Cloning):
    async with playground(str(cloning.http.base_url).rstrip("/")) as it:
        await expect(it.page.get_by_label("Voice", exact=True)).to_have_text("none: clone one below")
        await it.page.get_by_label(re.compile("Reference")).set_input_files(
            {"name": "anna.wav", "mimeType": "audio/wav", "buffer": sample()}
        )
        await it.set(Name="Anna", Consent="cons_1", Transcript_of_the_reference=TRANSCRIPT)
        await it.button("Keep the voice").click()
        await expect(it.page.locator("#kept")).to_have_text(re.compile("Anna is kept and chosen above"))
        [voice] = (await cloning.http.get("/v1/audio/voices")).json()["uploaded_voices"]
        assert (voice["name"], voice["consent"], voice["ref_text"]) == ("Anna", "cons_1", TRANSCRIPT)
        assert await it.page.get_by_label("Voice", exact=True).input_value() == voice["id"]
        await check_names(it)
        # The noise has no end.
        await it.set(Text="Hello.", Seed="3")
        await it.begin()
        await expect(it.figure("duration")).to_have_text(re.compile(r"[1-9]\d*\.\d+ s"))
        await it.page.keyboard.press("Escape")
        await expect(it.figure("reason")).not_to_have_text("–")
        heard = sounding(await it.heard())
        said = (await cloning.say(voice="anna", max_new_tokens=100)).content
        assert len(heard) > 2400 and sounding(said)[: len(heard)] == heard[: len(sounding(said))]
        await it.button("Keep the voice").click()
        await expect(it.page.locator("#clone-error")).to_contain_text("Anna")
        it.forget_messages("status of 409")
        await check_contrasts(it)
        await check_width(it)
        await it.button("Delete Anna").click()
        await expect(it.page.locator("#kept")).to_have_text("Anna is deleted.")
        await expect(it.page.get_by_label("Voice", exact=True)).to_have_text("none: clone one below")
        assert (await cloning.http.get("/v1/audio/voices")).json()["uploaded_voices"] == []


async def test_a_voice_is_recorded(cloning: Cloning, tmp_path: Path):
    file = tmp_path / "microphone.wav"
    file.write_bytes(sample(seconds=3.0))
    flag = f"--use-file-for-fake-audio-capture={file}"
    async with playground(str(cloning.http.base_url).rstrip("/"), flag) as it:
        await it.button("Record instead").click()
        await it.page.get_by_role("button", name=re.compile(r"Stop recording \([2-9] s\)")).click()
        await expect(it.page.locator("#recorded")).to_have_text("The recording is the reference.")
        await it.set(Name="Ben", Consent="myself")
        await it.button("Keep the voice").click()
        await expect(it.page.locator("#kept")).to_have_text(re.compile("Ben is kept"))
        [voice] = (await cloning.http.get("/v1/audio/voices")).json()["uploaded_voices"]
        assert voice["seconds"] > 1.5 and "ref_text" not in voice
        await it.set(Name="Clara")
        await it.page.get_by_label(re.compile("Reference")).set_input_files(
            {"name": "noise.wav", "mimeType": "audio/wav", "buffer": b"RIFF and nothing else"}
        )
        await it.button("Keep the voice").click()
        await expect(it.page.locator("#clone-error")).to_contain_text("audio_sample")
        it.forget_messages("status of 400")


async def test_another_checkpoint_says_why_it_clones_none(up: Up):
    async with playground(up.url) as it:
        await expect(it.page.locator("#clone-note")).to_have_text(
            "This checkpoint clones no voices: its task is CustomVoice. A Base checkpoint does."
        )
        await expect(it.button("Keep the voice")).to_be_hidden()


async def test_a_described_voice_needs_its_description(tmp_path: Path):
    async with (
        serving(tmp_path / "model", "voice_design") as gateway,
        playground(str(gateway.http.base_url).rstrip("/")) as it,
    ):
        await expect(it.button("Speak")).to_be_enabled()
        await expect(it.page.get_by_label("Voice", exact=True)).to_be_hidden()
        await it.button("Speak").click()
        await expect(it.button("Stop")).to_be_disabled()
        assert await it.page.get_by_label("Style").evaluate("(each) => each.validity.valueMissing")
        await it.set(Style="A calm, low voice.", Seed="4", Text="Hello.")
        await it.begin()
        await expect(it.figure("duration")).to_have_text(re.compile(r"[1-9]\d*\.\d+ s"))
        await it.page.keyboard.press("Escape")
        await expect(it.figure("reason")).not_to_have_text("–")
        heard = sounding(await it.heard())
        described = {"instructions": "A calm, low voice.", "seed": 4, "max_new_tokens": 100}
        said = sounding((await gateway.say(**described)).content)
        assert len(heard) > 2400 and said[: len(heard)] == heard[: len(said)]
        assert 'instructions="A calm, low voice."' in await it.text("python")
