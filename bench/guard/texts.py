"""`python -m guard.texts`: speaks texts of several sentences, and looks for each sentence in the audio.

Run it in the project's root with PYTHONPATH=.:bench:tests and the extra `training`, after `python -m guard`, into whose
results it writes. A pipeline of processes speaks the texts as streams. The judge knows nothing of segments' checks:
espeak-ng reads each sentence, and a sentence is missing if what was spoken for it is nearer to a reading of another.
"""

import argparse
import asyncio
import itertools
import json
import random
from base64 import b64decode
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path

import httpx
import numpy as np
from msgspec import Struct, field, structs

from guard.report import RESULTS, Made, Report, Texts, write
from support.local_pipeline import local_pipeline
from syrinx_operator.commands.bench.report import load
from syrinx_operator.resource.spec import default_pipeline
from syrinx_stages.contract.silence import AUDIBLE_PEAK
from training.config import SynthesisConfig
from training.data.corpus import HELD_OUT, Sentence, finish, held_out
from training.data.grammar import Grammar
from training.data.synthesis import Samples, reading
from training.judging.intelligibility import ReadingMatcher

VOICES = ("us", "us_f", "us_m", "gb")
DECOYS = 40
"""Sentences of other texts among which a sentence is looked for."""
SYNTHESIS = SynthesisConfig()
BETWEEN = ("{} ", "{} ", "{} ", "{}\n", "{}\n\n", '"{}" ', "\n- {}\n", "\n* {}\n", "\n# {}\n\n", "  {}\t", "{}\r\n")
"""How a sentence and what separates it from the next one are written."""


class Text(Struct):
    """A text of several sentences, and what was spoken for it."""

    sentences: list[Sentence]
    text: str
    starts: list[int]
    """The first character of each sentence."""
    voice: str
    seed: int
    spoken: list[tuple[int, int, bytes]] = field(default_factory=list)
    """The characters of each segment, and its 16-bit PCM at 24 kHz."""
    finish_reason: str = ""


class Judged(Struct, frozen=True):
    """What a judge says about a text."""

    missing: list[str]
    """Sentences that were not found."""
    over_needed: dict[str, float]
    """The duration of each sentence that was found, by that of espeak-ng's reading."""
    text_over_needed: float
    """The same of the whole text."""


def draw(number: int, rng: random.Random) -> Iterator[Text]:
    """Yields random texts of 2 to 12 different sentences, in one of the bundled voice's languages."""
    grammars = {language: Grammar(language, rng, []) for language in ("english", "german")}
    fixed = {name: held_out(name) for name in HELD_OUT}
    for seed in range(number):
        language = rng.choices(("english", "german"), (0.8, 0.2))[0]
        pool = [each for name, sentences in fixed.items() if HELD_OUT[name] == language for each in sentences]
        sentences = rng.sample(pool, rng.randint(1, 4))
        sentences += (_generated(grammars[language]) for _ in range(rng.randint(1, 8)))
        rng.shuffle(sentences)
        text, starts = "", []
        for each in sentences:
            before, after = rng.choice(BETWEEN).split("{}")
            starts.append(len(text + before))
            text += before + each.text + after
        yield Text(sentences, text, starts, rng.choice(VOICES) if language == "english" else VOICES[0], seed)


def _generated(grammar: Grammar) -> Sentence:
    return finish(Sentence(finish(Sentence(grammar.sentence(), grammar.language)).text, grammar.language))


async def speak(client: httpx.AsyncClient, text: Text) -> None:
    """Speaks a text as a stream of events."""
    body = {
        "input": text.text,
        "voice": text.voice,
        "seed": text.seed,
        "language": text.sentences[0].language,
        "response_format": "pcm",
        "stream_format": "sse",
    }
    async with client.stream("POST", "/v1/audio/speech", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                _add(text, json.loads(line.removeprefix("data: ")))


def _add(text: Text, event: dict[str, object]) -> None:
    match event:
        case {"type": "speech.audio.delta", "audio": str(audio), "text_range": [int(start), int(end)]}:
            if not text.spoken or text.spoken[-1][0] != start:
                text.spoken.append((start, end, b""))
            text.spoken[-1] = start, end, text.spoken[-1][2] + b64decode(audio)
        case {"type": "speech.audio.done", "finish_reason": str(reason)}:
            text.finish_reason = reason
        case _:
            raise ValueError(f"unexpected event: {event}")


def judge(text: Text, decoys: Sequence[Sentence]) -> Judged:
    """Looks for each sentence of a text in the segments that have its characters."""
    parts = _parts(text)
    readings = [np.concatenate([_reading(each, text.voice) for each in sentences]) for sentences, _ in parts]
    matcher = ReadingMatcher(readings + [_reading(each, text.voice) for each in decoys])
    names = [" ".join(each.text for each in sentences) for sentences, _ in parts] + [each.text for each in decoys]
    missing: list[str] = []
    over: dict[str, float] = {}
    spoken = 0
    for number, (_, pcm) in enumerate(parts):
        samples = audible(np.frombuffer(pcm, "<i2"))
        spoken += len(samples)
        if (nearest := matcher.match(samples)) == number:
            over[names[number]] = len(samples) / len(readings[number])
        else:
            instead = names[nearest] if len(samples) and nearest >= 0 else "nothing"
            missing.append(f"{names[number]} ({text.voice}, seed {text.seed}: {instead})")
    return Judged(missing, over, spoken / sum(map(len, readings)))


def _parts(text: Text) -> list[tuple[list[Sentence], bytes]]:
    """Returns the sentences with the audio of their segments; sentences of one segment together."""
    firsts = {first for first, _, _ in text.spoken}
    groups: list[tuple[int, list[Sentence]]] = []
    before = 0
    for sentence, start in zip(text.sentences, text.starts, strict=True):
        if not groups or any(before <= first <= start + 1 for first in firsts):
            groups.append((start, []))
        groups[-1][1].append(sentence)
        before = start + len(sentence.text) - 1
    bounds = itertools.pairwise([0, *(start for start, _ in groups[1:]), len(text.text)])
    audio = (
        b"".join(pcm for first, last, pcm in text.spoken if start <= (first + last) // 2 < end) for start, end in bounds
    )
    return [(sentences, pcm) for (_, sentences), pcm in zip(groups, audio, strict=True)]


@cache
def _reading(sentence: Sentence, voice: str) -> Samples:
    return audible(reading(SYNTHESIS, sentence, voice, SYNTHESIS.mean_words_per_minute))


def audible(samples: Samples) -> Samples:
    """Returns 16-bit samples without the silence at both ends."""
    loud = np.flatnonzero(np.abs(samples.astype(np.int32)) >= AUDIBLE_PEAK)
    return samples[loud[0] : loud[-1] + 1] if len(loud) else samples[:0]


async def measure(url: str, concurrency: int, texts: Sequence[Text], decoys: Sequence[Sentence]) -> Texts:
    """Speaks all texts with a running service, some at a time, and judges them."""
    loop, limit = asyncio.get_running_loop(), asyncio.Semaphore(concurrency)
    result = Texts()

    async def one(client: httpx.AsyncClient, text: Text) -> None:
        async with limit:
            await speak(client, text)
            judged = await loop.run_in_executor(judges, judge, text, decoys)
        text.spoken.clear()
        result.add(judged.missing, judged.over_needed, judged.text_over_needed, text.finish_reason)
        if result.texts % 50 == 0:
            print(f"{result.texts} texts, {result.texts_incomplete} lack a sentence", flush=True)

    limits = httpx.Limits(max_connections=concurrency)
    with ProcessPoolExecutor() as judges:
        async with httpx.AsyncClient(base_url=url, timeout=None, limits=limits, trust_env=False) as client:
            await asyncio.gather(*(one(client, text) for text in texts))
    return result


async def run(arguments: argparse.Namespace) -> Texts:
    """Measures the bundled voice of a service, by default of a pipeline that runs meanwhile."""
    rng = random.Random(arguments.seed)
    texts = list(draw(arguments.texts, rng))
    decoys = [each for text in draw(DECOYS, rng) for each in text.sentences[:1]]
    if arguments.url is not None:
        return await measure(arguments.url, arguments.concurrency, texts, decoys)
    async with local_pipeline(default_pipeline()) as running:
        return await measure(running.gateway_url, arguments.concurrency, texts, decoys)


def main() -> None:
    """Measures, and adds the result to those of the segments."""
    parser = argparse.ArgumentParser(prog="python -m guard.texts", description=__doc__)
    parser.add_argument("--texts", type=int, default=1000, help="to speak (default: 1000)")
    parser.add_argument("--seed", type=int, default=24, help="of the texts (default: 24)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="their directory (default: bench/results)")
    parser.add_argument("--concurrency", type=int, default=16, help="texts at once (default: 16)")
    parser.add_argument("--url", help="of a running service (default: a pipeline on this machine's CPU)")
    arguments = parser.parse_args()
    before = load(arguments.results / "guard.json", Report)
    found = structs.asdict(asyncio.run(run(arguments)))
    made = {**before.made, "texts": Made.now("guard.texts")}
    write(structs.replace(before, **found, made=made), arguments.results)


if __name__ == "__main__":
    main()
