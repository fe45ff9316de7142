"""`syrinx up` with a setting: under a load, and its capacity."""

import asyncio
import contextlib
import datetime
import hashlib
import itertools
import os
import tempfile
from collections.abc import AsyncIterator, Collection
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from live_tuning.draws import Load
from live_tuning.scores import Request
from support.tuned import VOICE, Up, pcm
from syrinx_operator.commands.bench.load import Limit, Script, closed_loop, corpus, make_sender, open_loop
from syrinx_operator.commands.bench.stats import Outcome
from syrinx_operator.commands.client import SpeechClient, SpeechError
from syrinx_operator.commands.tune.plot import read_audit
from syrinx_operator.local.tuning_files import audit_files
from syrinx_operator.resource.fields.tuning import SloSpec, TtfaMs, TtfaObjective, TuningSpec
from syrinx_operator.resource.knobs import Setting
from syrinx_operator.resource.spec import CodecSpec, PipelineSpec, TalkerSpec, default_pipeline

SAMPLES = corpus()[::40]
"""Texts whose audio is compared. The index is the seed of the request."""
SAMPLE_SECONDS = 3.0
"""Pause between two samples, which add to the load."""
GROWTH = 1.1
"""Twice as many clients are tried while they complete this many times the requests."""


class Service(Struct, frozen=True, kw_only=True):
    """A pipeline of the bundled voice."""

    setting: Setting | None = None
    """None: the defaults."""
    objective_ms: TtfaMs | None = None
    """TTFA objective of the tuner; None: tuning is off."""

    @contextlib.asynccontextmanager
    async def running(self, cores: Collection[int]) -> AsyncIterator[Up]:
        """Runs it on these cores."""
        spec = PipelineSpec(tuning=TuningSpec(mode="Off" if self.objective_ms is None else "Auto"))
        if self.objective_ms is not None:
            objective = TtfaObjective(task_type="CustomVoice", ttfa_p95_ms=self.objective_ms)
            spec = replace(spec, slo=SloSpec(ttfa=(objective,)))
        if (setting := self.setting) is not None:
            talker = TalkerSpec(max_num_seqs=setting.talker_max_num_seqs)
            codec = CodecSpec(max_num_seqs=setting.codec_max_num_seqs, chunk_ramp=setting.chunk_ramp)
            spec = replace(spec, talker=talker, codec=codec)
        with tempfile.TemporaryDirectory(prefix="syrinx-bench-") as directory:
            up = Up(Path(directory), replace(default_pipeline("live"), spec=spec))
            try:
                os.sched_setaffinity(up.process.pid, cores)  # The stages, which it has not started yet, inherit it.
                await asyncio.to_thread(lambda: up.url)  # Waits until it is ready.
                yield up
            finally:
                await asyncio.to_thread(up.__exit__)


class Run(Struct, frozen=True, kw_only=True):
    """A service under a load."""

    service: Service
    load: Load


class Result(Struct, frozen=True, kw_only=True):
    """What clients heard in a run, and what the tuner did."""

    requests: tuple[Request, ...]
    samples: tuple[tuple[int, str], ...]
    """Index and hash of the audio of each sample, or the kind of its failure."""
    chosen: Setting | None
    """By the tuner, at the end; None: it has changed nothing."""
    decisions: tuple[tuple[float, str], ...]
    """Of the tuner: seconds from the start, and the reason."""


async def measure(run: Run, cores: Collection[int]) -> Result:
    """Returns the result of a run."""
    requests, samples = run.load.requests((VOICE,)), list[tuple[int, str]]()
    async with run.service.running(cores) as up, SpeechClient(up.url) as client:

        async def send(number: int, due: float) -> Outcome:
            _, script, index = requests[number]
            return await make_sender(client, script)(index, due)

        begin = datetime.datetime.now(datetime.UTC)
        sampling = asyncio.create_task(_sample(up.url, samples))
        try:
            outcomes, _ = await open_loop(send, [at for at, *_ in requests], awake=0)
        finally:
            sampling.cancel()
        audit = read_audit(files, None) if (files := audit_files(up.directory)) else []
        chosen = up.state.chosen
    heard = [
        Request(at, playback.ttfa, playback.underruns) if (playback := each.playback) else Request(at, None)
        for (at, *_), each in zip(requests, outcomes, strict=True)
    ]
    decisions = [((each.time - begin).total_seconds(), each.reason) for each in audit if each.reason != "Compared"]
    return Result(requests=tuple(heard), samples=tuple(samples), chosen=chosen, decisions=tuple(decisions))


async def _sample(url: str, samples: list[tuple[int, str]]) -> None:
    for index in itertools.cycle(range(len(SAMPLES))):
        try:
            audio = await pcm(url, SAMPLES[index], index)
        except SpeechError as error:
            samples.append((index, error.kind))
        else:
            if audio is not None:  # Not refused.
                samples.append((index, hashlib.sha256(audio).hexdigest()[:16]))
        await asyncio.sleep(SAMPLE_SECONDS)


async def measure_capacity(limit: Limit, cores: Collection[int]) -> float:
    """Returns the requests per second that the defaults complete in the best closed loop. limit: of each."""
    rates: list[float] = []
    async with Service().running(cores) as up, SpeechClient(up.url) as client:
        send = make_sender(client, Script(corpus(), (VOICE,), 1))
        while len(rates) < 2 or rates[-1] >= GROWTH * rates[-2]:
            outcomes, wall = await closed_loop(send, 4 * 2 ** len(rates), limit)
            rates.append(round(sum(each.playback is not None for each in outcomes) / wall, 2))
    return max(rates)
