"""The talker on stock vLLM says what the official package says, and what the torch engine says, code for code."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from vllm.v1.core.sched.scheduler import Scheduler

from support import small_talker
from support import talker_recipe as recipe
from support.talker import reference_voice, speech_request, write_checkpoint
from support.talker_lifetimes import Lifetimes, Reference
from syrinx_stages.contract.messages import End, EndReason, Sampling, SpeechRequest, TaskType
from syrinx_stages.contract.settings import VllmOptions
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.model.config import ModelType
from syrinx_stages.runtime.errors import StartError
from syrinx_stages.talker.eager_engine import EagerTalkerEngine
from syrinx_stages.talker.engine import EngineFull, TalkerEngine
from syrinx_stages.talker.prompt import Prepared, build_prompt
from syrinx_stages.talker_vllm.engine import VllmTalkerEngine
from syrinx_stages.talker_vllm.model import DIGIT_BITS, from_digits, to_digits

pytestmark = pytest.mark.vllm

RESIDENT = 8
TEXTS = (
    "Hello there.",
    "The old teacher found two heavy bags near the river.",
    "Go on.",
    "She sells sea shells by the sea shore, every day of the week.",
    "One two three four five.",
    "A dog ran by.",
    "We are here now, and nobody knows why.",
    "Nothing else.",
)
GREEDY = Sampling(temperature=0.0, residual_temperature=0.0)
Said = dict[str, list[bytes | End]]
Make = Callable[..., VllmTalkerEngine]


@pytest.fixture(scope="module")
def voice() -> Checkpoint:
    return Checkpoint("bundled")


@pytest.fixture(scope="module")
def eager(voice: Checkpoint) -> EagerTalkerEngine:
    return EagerTalkerEngine(voice)


@pytest.fixture
def make(voice: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """An engine, with arguments of vLLM's that nobody else can set. A process has one at a time."""
    engines = []

    def made(
        checkpoint: Checkpoint = voice,
        resident: int = RESIDENT,
        cap: int = RESIDENT,
        options: VllmOptions | None = None,
        **arguments: object,
    ) -> VllmTalkerEngine:
        usual = VllmTalkerEngine._arguments

        def changed(*given: object) -> object:
            found = usual(*given)
            for name, value in arguments.items():
                setattr(found, name, value)
            return found

        monkeypatch.setattr(VllmTalkerEngine, "_arguments", changed)
        engines.append(VllmTalkerEngine(checkpoint, resident, lambda: cap, options or VllmOptions()))
        return engines[-1]

    yield made
    for engine in engines:
        engine._vllm.engine_core.shutdown()


@pytest.fixture
def engine(make: Make) -> VllmTalkerEngine:
    return make()


def requests(count: int, **fields: object) -> list[SpeechRequest]:
    """Greedy, with text in the prompt or with the frames."""
    return [
        SpeechRequest(
            id=f"{number}",
            accepted_at=0.0,
            text=TEXTS[number],
            task_type=TaskType.CUSTOM_VOICE,
            voice="us",
            seed=number,
            non_streaming_text=number % 3 > 0,
            **{"sampling": GREEDY, **fields},
        )
        for number in range(count)
    ]


def frames(engine: TalkerEngine, ids: Sequence[str]) -> Iterator[Mapping[str, bytes | End]]:
    """What steps give, of whatever has not ended; a request is released at its end."""
    open_ids = list(ids)
    while open_ids:
        results = engine.read(engine.launch(open_ids))
        for request_id, result in results.items():
            if isinstance(result, End):
                open_ids.remove(request_id)
                engine.release(request_id)
        yield results


def say(engine: TalkerEngine, wanted: Sequence[SpeechRequest], codes: Mapping[str, bytes] | None = None) -> Said:
    """All that requests say together, their end last."""
    engine.admit([engine.prepare(each, (codes or {}).get(each.id, b""), None) for each in wanted])
    said: Said = {each.id: [] for each in wanted}
    for results in frames(engine, list(said)):
        for request_id, result in results.items():
            said[request_id].append(result)
    return said


@pytest.fixture(scope="module")
def expected(eager: EagerTalkerEngine) -> Said:
    """By the torch engine, each alone."""
    return {each.id: say(eager, [each])[each.id] for each in requests(RESIDENT)}


def is_empty(engine: VllmTalkerEngine) -> bool:
    generator = engine._vllm.collective_rpc(lambda worker: worker.get_model().frame_generator)[0]
    return len(engine._handles) == RESIDENT and not generator._states and not engine._vllm.has_unfinished_requests()


@pytest.mark.parametrize("kind", dict.fromkeys(kind for kind, _ in recipe.CASES.values()), ids="-".join)
def test_every_task_says_the_official_codes(kind: tuple[str, str], make: Make, tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "model", *kind)
    checkpoint = Checkpoint(str(directory))
    tokenizer, talker = checkpoint.load_tokenizer(), checkpoint.load_talker()
    # A Base checkpoint of these is without the parts that listen to a reference: its voice is given.
    voiced = Checkpoint(str(directory))
    voiced.config = msgspec.structs.replace(voiced.config, tts_model_type=ModelType.CUSTOM_VOICE)
    engine = make(voiced)
    records = np.load(recipe.RECORDS)
    cases = {name: fields for name, (of, fields) in recipe.CASES.items() if of == kind}
    for name, fields in cases.items():
        request = msgspec.structs.replace(speech_request(kind[0], fields), id=name)
        with torch.inference_mode():
            prompt = build_prompt(request, talker, tokenizer, checkpoint.config, reference_voice(kind[0], fields))
        wanted = records[f"case/{name}/codes"]
        engine.admit([Prepared(request, prompt, torch.zeros((0, 16), dtype=torch.int64), len(wanted))])
        said = [results[name] for results in frames(engine, [name])]
        found = [np.frombuffer(frame, "<i2").tolist() for frame in said if isinstance(frame, bytes)]
        assert found == wanted.tolist()


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_positions_reach_the_draws_in_any_number_format(kind: torch.dtype) -> None:
    shifts = torch.arange(0, 32, DIGIT_BITS)
    positions = torch.cat((torch.arange(70_000), torch.randint(1 << 31, (70_000,)), torch.tensor([(1 << 31) - 1])))
    assert torch.equal(from_digits(to_digits(positions, shifts).to(kind), shifts), positions)


@pytest.mark.parametrize("count", [1, 3, RESIDENT])
def test_requests_together_say_what_each_says_alone(count: int, engine: VllmTalkerEngine, expected: Said) -> None:
    said = say(engine, requests(count))
    assert said == {name: expected[name] for name in said}
    assert is_empty(engine)


def test_requests_that_come_and_go_draw_as_the_modules_would(make: Make, tmp_path: Path) -> None:
    """With the same random numbers, whatever else is in the batch, taken over or not."""
    small = Checkpoint(str(small_talker.write(tmp_path / "voice")))
    lifetimes = Lifetimes(Reference(small), make(small, resident=3), resident=3, seed=6)
    lifetimes.run(steps=60)
    assert len(lifetimes.errors) > 80 and max(lifetimes.errors) < 1e-5
    assert {End(EndReason.STOP), End(EndReason.LENGTH)} <= {spoken.end for spoken in lifetimes.all}
    assert lifetimes.resumed


def test_workers_that_share_the_layers_say_what_one_would(make: Make, tmp_path: Path) -> None:
    """In processes of their own: what is sent to them and back, and what each of them draws."""
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    small = Checkpoint(str(small_talker.write(tmp_path / "voice", **heads)))
    engine = make(small, resident=3, options=VllmOptions(tensor_parallel_size=2))
    lifetimes = Lifetimes(Reference(small), engine, resident=3, seed=6)
    lifetimes.run(steps=60)
    assert len(lifetimes.errors) > 80 and max(lifetimes.errors) < 1e-5
    answers: list[list[object]] = []
    usual = engine._vllm.collective_rpc

    def call(*given: object, **named: object) -> list[object]:
        answers.append(usual(*given, **named))
        return answers[-1]

    engine._vllm.collective_rpc = call
    assert len(say(engine, [small_talker.request("a", max_frames=3)])["a"]) == 4
    assert any(isinstance(first, list) and first[0] for first, _ in answers), "frames were read"
    assert all(first == second for first, second in answers)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (VllmOptions(tensor_parallel_size=2), r"Total number of attention heads \(5\) must be divisible by"),
        (VllmOptions(quantization="nonsense"), "Unknown quantization method: nonsense"),
        (VllmOptions(kv_cache_dtype="nonsense"), "cache_dtype: Input should be 'auto'"),
    ],
)
def test_options_that_vllm_refuses_are_told_in_its_words(options: VllmOptions, told: str, make: Make) -> None:
    with pytest.raises(StartError, match=f"^engine vllm: {told}"):
        make(options=options)


def test_a_preempted_request_goes_on_as_if_nothing_had_been(
    make: Make, expected: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    preempted = []
    preempt = Scheduler._preempt_request
    monkeypatch.setattr(
        Scheduler, "_preempt_request", lambda *given, **named: (preempted.append(1), preempt(*given, **named))
    )
    engine = make(num_gpu_blocks_override=6, block_size=32, max_model_len=160)
    assert say(engine, requests(RESIDENT)) == expected
    assert preempted


def test_prompts_in_parts(make: Make, expected: Said) -> None:
    assert say(make(options=VllmOptions(max_num_batched_tokens=16)), requests(RESIDENT)) == expected


def test_what_is_aborted_leaves_nothing_to_who_comes_after(engine: VllmTalkerEngine, expected: Said) -> None:
    first, others = requests(RESIDENT)[:4], requests(RESIDENT)[4:]
    engine.admit([engine.prepare(each, b"", None) for each in first])
    for _ in islice(frames(engine, [each.id for each in first]), 5):
        pass
    for each in first:
        engine.release(each.id)
    said = say(engine, [*others, *first])
    assert said == expected
    assert is_empty(engine)


def test_rows_that_carry_an_old_handle_are_nobodys(engine: VllmTalkerEngine, expected: Said) -> None:
    """A handle is given out anew while a row of its last request is still on its way."""
    model = engine._vllm.collective_rpc(lambda worker: worker.get_model())[0]
    engine.admit([engine.prepare(each, b"", None) for each in requests(RESIDENT)])
    old = engine._rows["0"].handle
    place = len(engine._rows["0"].prepared.prompt.embeds) - 1
    for name in expected:
        engine.release(name)
    engine.admit([engine.prepare(each, b"", None) for each in requests(RESIDENT)])
    (new,) = (row.handle for row in engine._rows.values() if row.handle.slot == old.slot)
    assert new.generation == old.generation + 1
    stale = torch.tensor([old.base + place, old.base + place + 1])
    hidden = torch.randn(2, model.frame_generator._talker.config.hidden_size)
    assert not model.frame_generator.embed_inputs(stale, hidden.clone()).any()
    assert not model.frame_generator.sample(stale, hidden).any()
    said: Said = {name: [] for name in expected}
    for results in frames(engine, list(expected)):
        for name, result in results.items():
            said[name].append(result)
    assert said == expected


def test_a_taken_over_request_goes_on_at_the_next_frame(engine: VllmTalkerEngine, expected: Said) -> None:
    begun = {name: said[: len(said) // 2] for name, said in expected.items()}
    rest = say(engine, requests(RESIDENT), {name: b"".join(said) for name, said in begun.items()})
    assert {name: begun[name] + rest[name] for name in rest} == expected


def test_no_more_than_the_cap_are_in_vllm_at_once(make: Make, expected: Said) -> None:
    engine = make(cap=3)
    engine.admit([engine.prepare(each, b"", None) for each in requests(RESIDENT)])
    said: Said = {name: [] for name in expected}
    for results in frames(engine, list(expected)):
        assert engine._vllm.get_num_unfinished_requests() <= 3
        for name, result in results.items():
            said[name].append(result)
    assert said == expected


def test_one_that_is_asked_for_alone_is_begun_whatever_else_runs(make: Make, expected: Said) -> None:
    """Those that run are ahead of their listeners: nobody asks for their frames."""
    engine = make(cap=1)
    engine.admit([engine.prepare(each, b"", None) for each in requests(2)])
    first = engine.read(engine.launch(["0"]))["0"]
    other = [results["1"] for results in frames(engine, ["1"])]
    rest = [results["0"] for results in frames(engine, ["0"])]
    assert [other, [first, *rest]] == [expected["1"], expected["0"]]


def test_the_longest_utterance_ends_by_its_length(engine: VllmTalkerEngine, expected: Said) -> None:
    (request,) = requests(1, max_frames=5)
    assert say(engine, [request])["0"] == [*expected["0"][:5], End(EndReason.LENGTH)]


def test_without_a_free_handle_there_is_no_room(engine: VllmTalkerEngine) -> None:
    engine.admit([engine.prepare(each, b"", None) for each in requests(RESIDENT)])
    (more,) = requests(1)
    with pytest.raises(EngineFull):
        engine.admit([engine.prepare(msgspec.structs.replace(more, id="more"), b"", None)])
    for request in requests(RESIDENT):
        engine.release(request.id)
    assert is_empty(engine)
