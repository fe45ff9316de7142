"""Who can use the playground: with a keyboard, a screen reader, bad eyes, a phone."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from playwright.async_api import expect

from page.driver import Playground, playground
from support.up import Up

pytestmark = pytest.mark.page
WORDS = "word by word, as an LLM writes"
INTERACTIVE = {
    "button",
    "link",
    "textbox",
    "combobox",
    "radio",
    "spinbutton",
    "slider",
    "group",
    "image",
    "progressbar",
}
CONTRASTS = Path(__file__).with_name("contrasts.js").read_text()
FOCUSED = """() => {
  const element = document.activeElement, {outlineStyle, outlineWidth} = getComputedStyle(element);
  const name = element.ariaLabel ?? element.labels?.[0]?.textContent.trim() ?? element.textContent.trim();
  return [name, outlineStyle !== "none" && parseFloat(outlineWidth) >= 2];
}"""


async def check_contrasts(it: Playground) -> None:
    """Fails if a text, a placeholder or the edge of a control is too faint, in either scheme."""
    await it.page.locator("#error").evaluate("(each) => { each.textContent = 'As if something had failed.'; }")
    for scheme in ("light", "dark"):
        await it.page.emulate_media(color_scheme=scheme)
        measured = await it.page.evaluate(CONTRASTS)
        assert len(measured) > 20
        faint = [each for each in measured if each[2] < (3 if each[1] == "edge" else 4.5)]
        assert faint == [], scheme


async def check_names(it: Playground) -> None:
    """Fails if something in the accessibility tree that a user can reach or must know has no name."""
    session = await it.page.context.new_cdp_session(it.page)
    nodes = (await session.send("Accessibility.getFullAXTree"))["nodes"]
    kept = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node["ignored"]]
    assert {role for role, _ in kept} >= {"main", "navigation", "banner", "status", "alert", "image", "button"}
    assert [role for role, name in kept if role in INTERACTIVE and not name] == []
    assert sum(role == "main" for role, _ in kept) == 1
    headings = [
        int(level)
        for level in await it.page.locator(":is(h1, h2, h3):visible").evaluate_all(
            "(all) => all.map((each) => each.localName[1])"
        )
    ]
    assert headings[0] == 1 and headings.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(headings)), headings


async def check_width(it: Playground) -> None:
    """Fails if a phone would have to scroll to the side, or has targets that are too small for a finger."""
    for width in (320, 360):
        await it.page.set_viewport_size({"width": width, "height": 740})
        assert await it.page.evaluate("document.documentElement.scrollWidth") == width
        heights = await it.page.locator("button:visible").evaluate_all("(all) => all.map((each) => each.offsetHeight)")
        assert min(heights) >= 44


async def test_the_accessibility_tree_contrasts_and_phones(up: Up):
    async with playground(up.url) as it:
        await expect(it.button("Speak")).to_be_enabled()
        await check_names(it)
        await it.page.get_by_role("radio", name=WORDS).check()
        await it.set(Text="She waited for two long days.", Words_per_second="50")
        await it.speak()
        await it.page.get_by_role("heading", name="The same in code").wait_for()
        await check_names(it)
        await check_contrasts(it)
        await check_width(it)
    async with playground(up.url, path="/docs") as it:
        await it.page.get_by_role("heading", name="GET /v1/models", exact=True).wait_for()
        await check_width_of_docs(it)


async def check_width_of_docs(it: Playground) -> None:
    await it.page.set_viewport_size({"width": 360, "height": 740})
    assert await it.page.evaluate("document.documentElement.scrollWidth") == 360


async def test_everything_works_by_keyboard(up: Up):
    async with playground(up.url) as it:
        await expect(it.button("Speak")).to_be_enabled()
        visited = []
        for _ in range(9):
            await it.page.keyboard.press("Tab")
            name, is_visible = await it.page.evaluate(FOCUSED)
            assert is_visible, name
            visited.append(name)
        assert visited == ["API", "Text", "Voice", "Language", "Speed", "Seed", "at once", "API key", "Speak"]
        await it.page.keyboard.press("Shift+Tab")
        await it.page.keyboard.press("Shift+Tab")
        await it.page.keyboard.press("ArrowDown")
        assert await it.page.get_by_role("radio", name=WORDS).is_checked()
        await it.page.keyboard.press("Tab")
        await it.set(Text="She waited for two long days at the river. " * 4)
        await it.page.keyboard.press("Control+Enter")
        await expect(it.button("Stop")).to_be_enabled()
        await expect(it.figure("first")).to_contain_text("ms")
        await it.button("Stop").focus()
        await it.page.keyboard.press("Enter")
        await expect(it.figure("reason")).to_have_text("canceled")
        await expect(it.button("Speak")).to_be_focused()
        await it.page.keyboard.press("Enter")
        await expect(it.button("Stop")).to_be_focused()
        await it.page.keyboard.press("Escape")
        await expect(it.button("Speak")).to_be_focused()


async def test_screenshots(up: Up):
    phone = {"viewport": {"width": 360, "height": 740}, "color_scheme": "dark"}
    for name, options in (("light", {"viewport": {"width": 720, "height": 1000}}), ("dark-phone", phone)):
        async with playground(up.url, **options) as it:
            await it.set(Seed="7")
            await it.speak()
            await expect(it.page.get_by_role("img", name="Waveform: 6")).to_be_visible()
            if name == "dark-phone":
                await it.page.locator("#status").evaluate("(each) => each.scrollIntoView()")
            await it.screenshot(name)
