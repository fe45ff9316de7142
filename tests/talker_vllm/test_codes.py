"""The talker on stock vLLM generates the same codes as the official package and as the torch engine."""

from collections.abc import Callable, Iterator, Mapping, Sequence
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
from syrinx_stages.talker.inputs import embed
from syrinx_stages.talker.prompt import Prepared, PromptBuilder
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
Results = dict[str, list[bytes | End]]
CreateEngine = Callable[..., VllmTalkerEngine]


@pytest.fixture(scope="module")
def voice() -> Checkpoint:
    return Checkpoint("bundled")


@pytest.fixture(scope="module")
def eager(voice: Checkpoint) -> EagerTalkerEngine:
    return EagerTalkerEngine(voice)


@pytest.fixture
def create_engine(voice: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> Iterator[CreateEngine]:
    """Creates an engine; `arguments` override those passed to vLLM. A process has one engine at a time."""
    engines = []

    def create(
        checkpoint: Checkpoint = voice,
        resident: int = RESIDENT,
        max_num_seqs: int = RESIDENT,
        options: VllmOptions | None = None,
        **arguments: object,
    ) -> VllmTalkerEngine:
        original = VllmTalkerEngine._arguments

        def overridden(*args: object) -> object:
            engine_args = original(*args)
            for name, value in arguments.items():
                setattr(engine_args, name, value)
            return engine_args

        monkeypatch.setattr(VllmTalkerEngine, "_arguments", overridden)
        engines.append(VllmTalkerEngine(checkpoint, resident, lambda: max_num_seqs, options or VllmOptions()))
        return engines[-1]

    yield create
    for engine in engines:
        engine._vllm.engine_core.shutdown()


@pytest.fixture
def engine(create_engine: CreateEngine) -> VllmTalkerEngine:
    return create_engine()


def requests(count: int, **fields: object) -> list[SpeechRequest]:
    """Greedy requests, with streaming and non-streaming text."""
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
    """Yields the results of each step of the requests that have not ended; releases a request at its end."""
    open_ids = list(ids)
    while open_ids:
        results = engine.read(engine.launch(open_ids))
        for request_id, result in results.items():
            if isinstance(result, End):
                open_ids.remove(request_id)
                engine.release(request_id)
        yield results


def generate(engine: TalkerEngine, wanted: Sequence[SpeechRequest]) -> Results:
    """Returns the frames of requests that run together; the last item of each is its end."""
    engine.admit([engine.prepare(each, b"", None) for each in wanted])
    return collect(engine, [each.id for each in wanted])


def collect(engine: TalkerEngine, ids: Sequence[str]) -> Results:
    """Returns the results of requests in progress."""
    collected: Results = {request_id: [] for request_id in ids}
    for results in frames(engine, ids):
        for request_id, result in results.items():
            collected[request_id].append(result)
    return collected


@pytest.fixture(scope="module")
def expected(eager: EagerTalkerEngine) -> Results:
    """The results of the torch engine, each request alone."""
    return {each.id: generate(eager, [each])[each.id] for each in requests(RESIDENT)}


def is_empty(engine: VllmTalkerEngine) -> bool:
    generator = engine._vllm.collective_rpc(lambda worker: worker.get_model().frame_generator)[0]
    return len(engine._handles) == RESIDENT and not generator._states and not engine._vllm.has_unfinished_requests()


@pytest.mark.parametrize("kind", dict.fromkeys(kind for kind, _ in recipe.CASES.values()), ids="-".join)
def test_codes_equal_the_official_ones_for_every_task(
    kind: tuple[str, str], create_engine: CreateEngine, tmp_path: Path
) -> None:
    directory = write_checkpoint(tmp_path / "model", *kind)
    checkpoint = Checkpoint(str(directory))
    tokenizer, talker = checkpoint.load_tokenizer(), checkpoint.load_talker()
    # The Base checkpoints of the recipe have no reference encoders, so the voice is passed in.
    voiced = Checkpoint(str(directory))
    voiced.config = msgspec.structs.replace(voiced.config, tts_model_type=ModelType.CUSTOM_VOICE)
    engine = create_engine(voiced)
    records = np.load(recipe.RECORDS)
    cases = {name: fields for name, (of, fields) in recipe.CASES.items() if of == kind}
    for name, fields in cases.items():
        request = msgspec.structs.replace(speech_request(kind[0], fields), id=name)
        with torch.inference_mode():
            prompt = PromptBuilder(tokenizer, checkpoint.config).build(request, reference_voice(kind[0], fields))
            embedded = embed(talker, prompt)
        wanted = records[f"case/{name}/codes"]
        none = torch.zeros((0, 16), dtype=torch.int64)
        engine.admit([Prepared(request, prompt, none, len(wanted), embedded=embedded)])
        collected = [results[name] for results in frames(engine, [name])]
        found = [np.frombuffer(frame, "<i2").tolist() for frame in collected if isinstance(frame, bytes)]
        assert found == wanted.tolist()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_positions_survive_every_dtype(dtype: torch.dtype) -> None:
    shifts = torch.arange(0, 32, DIGIT_BITS)
    positions = torch.cat((torch.arange(70_000), torch.randint(1 << 31, (70_000,)), torch.tensor([(1 << 31) - 1])))
    assert torch.equal(from_digits(to_digits(positions, shifts).to(dtype), shifts), positions)


@pytest.mark.parametrize("count", [1, 3, RESIDENT])
def test_batched_requests_get_the_codes_of_single_requests(
    count: int, engine: VllmTalkerEngine, expected: Results
) -> None:
    collected = generate(engine, requests(count))
    assert collected == {name: expected[name] for name in collected}
    assert is_empty(engine)


def test_codes_equal_the_modules_for_any_order_of_requests(create_engine: CreateEngine, tmp_path: Path) -> None:
    """With the same random numbers, in any batch, with and without takeovers."""
    small = Checkpoint(str(small_talker.write(tmp_path / "voice")))
    lifetimes = Lifetimes(Reference(small), create_engine(small, resident=3), resident=3, seed=6)
    lifetimes.run(steps=60)
    assert len(lifetimes.errors) > 80 and max(lifetimes.errors) < 1e-5
    assert {End(EndReason.STOP), End(EndReason.LENGTH)} <= {request.end for request in lifetimes.all}
    assert lifetimes.resumed


def test_tensor_parallel_workers_agree(create_engine: CreateEngine, tmp_path: Path) -> None:
    """The workers are processes; all of them return the same answers."""
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    small = Checkpoint(str(small_talker.write(tmp_path / "voice", **heads)))
    engine = create_engine(small, resident=3, options=VllmOptions(tensor_parallel_size=2))
    lifetimes = Lifetimes(Reference(small), engine, resident=3, seed=6)
    lifetimes.run(steps=60)
    assert len(lifetimes.errors) > 80 and max(lifetimes.errors) < 1e-5
    answers: list[list[object]] = []
    original = engine._vllm.collective_rpc

    def call(*args: object, **kwargs: object) -> list[object]:
        answers.append(original(*args, **kwargs))
        return answers[-1]

    engine._vllm.collective_rpc = call
    assert len(generate(engine, [small_talker.request("a", max_frames=3)])["a"]) == 4
    assert any(isinstance(first, list) and first[0] for first, _ in answers), "frames were read"
    assert all(first == second for first, second in answers)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (VllmOptions(tensor_parallel_size=2), r"Total number of attention heads \(5\) must be divisible by"),
        (VllmOptions(quantization="nonsense"), "Unknown quantization method: nonsense"),
        (VllmOptions(kv_cache_dtype="nonsense"), "cache_dtype: Input should be 'auto'"),
    ],
)
def test_error_of_an_invalid_option_is_vllms(options: VllmOptions, message: str, create_engine: CreateEngine) -> None:
    with pytest.raises(StartError, match=f"^engine vllm: {message}"):
        create_engine(options=options)


def test_preempted_request_continues_with_the_same_codes(
    create_engine: CreateEngine, expected: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    preempted = []
    preempt = Scheduler._preempt_request
    monkeypatch.setattr(
        Scheduler, "_preempt_request", lambda *args, **kwargs: (preempted.append(1), preempt(*args, **kwargs))
    )
    engine = create_engine(num_gpu_blocks_override=6, block_size=32, max_model_len=160)
    assert generate(engine, requests(RESIDENT)) == expected
    assert preempted


def test_chunked_prefill_gives_the_same_codes(create_engine: CreateEngine, expected: Results) -> None:
    assert generate(create_engine(options=VllmOptions(max_num_batched_tokens=16)), requests(RESIDENT)) == expected


def test_rows_with_a_stale_handle_are_unassigned(engine: VllmTalkerEngine, expected: Results) -> None:
    """A slot is allocated again while a row of its last request is still in flight."""
    model = engine._vllm.collective_rpc(lambda worker: worker.get_model())[0]
    engine.admit([engine.prepare(each, b"", None) for each in requests(RESIDENT)])
    old = engine._rows["0"].handle
    offset = len(engine._rows["0"].prepared.prompt.inputs) - 1
    for name in expected:
        engine.release(name)
    engine.admit([engine.prepare(each, b"", None) for each in requests(RESIDENT)])
    (new,) = (row.handle for row in engine._rows.values() if row.handle.slot == old.slot)
    assert new.generation == old.generation + 1
    stale = torch.tensor([old.base + offset, old.base + offset + 1])
    hidden = torch.randn(2, model.frame_generator._talker.config.hidden_size)
    assert not model.frame_generator.embed_inputs(stale, hidden.clone()).any()
    assert not model.frame_generator.sample(stale, hidden).any()
    assert collect(engine, list(expected)) == expected


def test_vllm_never_has_more_requests_than_max_num_seqs(create_engine: CreateEngine, expected: Results) -> None:
    engine = create_engine(max_num_seqs=3)
    engine.admit([engine.prepare(each, b"", None) for each in requests(RESIDENT)])
    collected: Results = {name: [] for name in expected}
    for results in frames(engine, list(expected)):
        assert engine._vllm.get_num_unfinished_requests() <= 3
        for name, result in results.items():
            collected[name].append(result)
    assert collected == expected


def test_admit_without_a_free_handle_raises_engine_full(engine: VllmTalkerEngine) -> None:
    engine.admit([engine.prepare(each, b"", None) for each in requests(RESIDENT)])
    (more,) = requests(1)
    with pytest.raises(EngineFull):
        engine.admit([engine.prepare(msgspec.structs.replace(more, id="more"), b"", None)])
    for request in requests(RESIDENT):
        engine.release(request.id)
    assert is_empty(engine)
