"""The talker engine that is vLLM: which requests advance together, and where their cache lies, is vLLM's to decide.

vLLM runs in this process, a step at a time, and advances every request that it has begun; frames that nobody asked for
yet wait here. It has no more requests at once than the cap that is in force: one beyond waits until another is over.
"""

from __future__ import annotations

import os
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from msgspec import Struct, field, structs
from pydantic import ValidationError

from syrinx_stages.contract.messages import End, EndReason, SpeechRequest
from syrinx_stages.contract.settings import VllmOptions
from syrinx_stages.kernels.recorder import graph_recorder
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.model.config import CODE_GROUPS
from syrinx_stages.runtime.errors import StartError
from syrinx_stages.talker.allocation import batch_sizes
from syrinx_stages.talker.engine import EngineFull, Prepared
from syrinx_stages.talker.on_vllm import directory
from syrinx_stages.talker.on_vllm.frames import MOST_POSITIONS, Opened
from syrinx_stages.talker.on_vllm.model import CHECKPOINT, FRAMES
from syrinx_stages.talker.on_vllm.where import Handle, Handles, prompt_tokens
from syrinx_stages.talker.prompter import Prompter

# Before vLLM is imported. A step is a call in this process; whoever deploys it says on which cores it computes.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
# Its processes, where there are several, are all on this machine.
os.environ.setdefault("VLLM_HOST_IP", "127.0.0.1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

from vllm import EngineArgs, LLMEngine, SamplingParams
from vllm.sampling_params import RequestOutputKind

ELSEWHERE = ("model.layers", "code_predictor.model.layers", "code_predictor.lm_head", "codec_head")
"""Parts of the talker that prompts do not need."""
CUDA_GRAPHS = "FULL"
"""Of steps with prompts in them too, where vLLM's attention can."""
MOST_RECORDED = 512
"""Positions of a step that CUDA graphs are for, or as many as there may be requests."""
_FRAME_BYTES = 2 * CODE_GROUPS


class _Row(Struct):
    """One resident request."""

    prepared: Prepared
    handle: Handle
    key: str
    """What vLLM calls it."""
    begun: bool = False
    made: int = 0
    """Frames that were read from vLLM."""
    waiting: deque[bytes] = field(default_factory=deque)
    """Of those, the frames that nobody asked for yet."""
    end: End | None = None
    """After those."""
    told: bool = False
    """The end was read."""

    @property
    def running(self) -> bool:
        """vLLM advances it."""
        return self.begun and self.end is None

    @property
    def speaks(self) -> bool:
        """It has a frame, or its end, that was not read."""
        return bool(self.waiting) or (self.end is not None and not self.told)


Step = Sequence[_Row]
"""The requests of a launched step."""


class VllmTalkerEngine:
    """A `TalkerEngine` around vLLM's."""

    depth = 1
    isolates_rows = False
    prefill_rows = 8

    def __init__(self, checkpoint: Checkpoint, max_resident: int, cap: Callable[[], int], options: VllmOptions) -> None:
        """cap: how many requests vLLM may have at once, now; one that is asked for alone is begun all the same.

        Raises `CheckpointError` if the checkpoint does not fit, `StartError` if vLLM refuses it or the options.
        """
        self._recorder, self._preparing = graph_recorder(checkpoint.device), graph_recorder(checkpoint.device)
        self._config = checkpoint.config.talker_config
        self._most = min(self._config.max_position_embeddings, MOST_POSITIONS)
        with self._preparing.on_stream():
            talker = checkpoint.load_talker(*ELSEWHERE)
            # A reference voice is worth its float32: it is encoded once.
            self._prompter = Prompter(checkpoint.as_float32(), talker, self._most)
        self._preparing.record_event()()
        # Workers in processes of their own are sent prompts, and a device's memory cannot be sent.
        self._prompts_on = torch.device("cpu") if options.tensor_parallel_size > 1 else checkpoint.device
        self._handles = Handles(max_resident)
        self._cap = cap
        self._rows: dict[str, _Row] = {}
        self._by_key: dict[str, _Row] = {}
        self._count = 0
        with tempfile.TemporaryDirectory(prefix="syrinx-vllm-") as place:
            directory.fill(Path(place), checkpoint)
            with self._recorder.on_stream():
                self._vllm = _started(self._arguments(place, checkpoint, max_resident, options))

    def _arguments(self, place: str, checkpoint: Checkpoint, max_resident: int, options: VllmOptions) -> EngineArgs:
        return EngineArgs(
            **structs.asdict(options),
            model=place,
            skip_tokenizer_init=True,
            dtype=str(checkpoint.dtype).removeprefix("torch."),
            max_model_len=self._most,
            max_num_seqs=max_resident,
            # What a place holds depends on text and on all 16 codes, of which vLLM knows one.
            enable_prefix_caching=False,
            enforce_eager=checkpoint.device.type == "cpu",
            compilation_config={
                "cudagraph_mode": CUDA_GRAPHS,
                "cudagraph_capture_sizes": sorted({*batch_sizes(max_resident), *batch_sizes(MOST_RECORDED)}),
            },
            worker_extension_cls="syrinx_stages.talker.on_vllm.worker.WorkerExtension",
            additional_config={CHECKPOINT: str(checkpoint.directory), FRAMES: self._most},
            disable_log_stats=True,
        )

    def warm_up(self) -> None:
        """vLLM has warmed up when it was loaded."""

    @torch.inference_mode()
    def prepare(self, request: SpeechRequest, codes: bytes, reference: bytes | None) -> Prepared:
        """Builds a request's prompt, on any thread.

        Raises `RequestError` naming the field that this checkpoint cannot serve.
        """
        with self._preparing.on_stream():
            prompt, reference_codes = self._prompter.build(request, reference)
            prompt = prompt.to(self._prompts_on)
        self._preparing.record_event()()
        frames = np.frombuffer(codes, "<i2").reshape(-1, CODE_GROUPS).astype(np.int64)
        return Prepared(
            request=request,
            prompt=prompt,
            codes=torch.from_numpy(frames),
            max_frames=min(request.max_frames, self._most - len(prompt.embeds)),
            reference_codes=reference_codes,
        )

    def admit(self, prepared: Sequence[Prepared]) -> None:
        """Gives requests their handles. vLLM is told of them when they are first asked for.

        Raises `EngineFull` if there is no handle, or no memory, for all of them.
        """
        for each in prepared:
            self.release(each.request.id)
        if len(self._handles) < len(prepared):
            raise EngineFull
        opened = []
        for each in prepared:
            self._count += 1
            row = _Row(each, self._handles.take(), f"{each.request.id}/{self._count}", made=each.frames)
            self._rows[each.request.id] = self._by_key[row.key] = row
            request = each.request
            opened.append(Opened(row.handle, each.prompt, each.codes, (request.sampling, request.seed)))
        with self._recorder.on_stream():
            for each in prepared:
                self._recorder.record_stream(*each.prompt)
            room = self._vllm.collective_rpc("syrinx_open", args=(opened,))
        if not all(room):
            for each in prepared:
                self.release(each.request.id)
            raise EngineFull

    def release(self, request_id: str) -> None:
        """Frees a request's state; unknown ids are fine."""
        row = self._rows.pop(request_id, None)
        if row is None:
            return
        del self._by_key[row.key]
        with self._recorder.on_stream():
            if row.running:
                self._vllm.abort_request([row.key])
            self._vllm.collective_rpc("syrinx_close", args=([row.handle],))
        self._handles.give_back(row.handle)

    def launch(self, ids: Sequence[str]) -> Step:
        """Tells vLLM of requests that it has not begun, as far as the cap goes."""
        step = [self._rows[request_id] for request_id in ids]
        running = sum(row.running for row in self._rows.values())
        stuck = not any(row.begun for row in step)
        for row in step:
            if not row.begun and (running < self._cap() or stuck):
                self._begin(row)
                running, stuck = running + row.running, False
        return step

    def read(self, step: Step) -> dict[str, bytes | End]:
        """A frame of each request that vLLM has begun, after the step that it takes; or its end."""
        rows = [row for row in step if self._by_key.get(row.key) is row]
        if any(row.running and not row.waiting for row in rows):
            self._advance()
            while self._vllm.has_unfinished_requests() and not any(row.speaks for row in rows):
                self._advance()
        results: dict[str, bytes | End] = {}
        for row in rows:
            if row.waiting:
                results[row.prepared.request.id] = row.waiting.popleft()
            elif row.end is not None and row.speaks:
                results[row.prepared.request.id] = row.end
                row.told = True
        return results

    def _begin(self, row: _Row) -> None:
        row.begun = True
        prepared = row.prepared
        frames = prepared.max_frames - prepared.frames
        if frames <= 0:
            row.end = End(EndReason.LENGTH)
            return
        tokens = prompt_tokens(row.handle, len(prepared.prompt.embeds) + prepared.frames)
        knobs = SamplingParams(
            temperature=0.0,
            max_tokens=frames,
            stop_token_ids=[self._config.codec_eos_token_id],
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        self._vllm.add_request(row.key, {"prompt_token_ids": tokens}, knobs)

    def _advance(self) -> None:
        """One of vLLM's steps, and the frames it made."""
        with self._recorder.on_stream():
            outputs = self._vllm.step()
        told = [
            (row, output.outputs[0]) for output in outputs if (row := self._by_key.get(output.request_id)) is not None
        ]
        if not told:
            return
        eos = self._config.codec_eos_token_id
        wanted = [(row.handle, row.made, sum(code != eos for code in output.token_ids)) for row, output in told]
        made: list[bytes] = self._vllm.collective_rpc("syrinx_read", args=(wanted,))[0]
        for (row, output), codes in zip(told, made, strict=True):
            row.waiting += [codes[at : at + _FRAME_BYTES] for at in range(0, len(codes), _FRAME_BYTES)]
            row.made += len(codes) // _FRAME_BYTES
            if output.finish_reason is not None:
                row.end = End(EndReason.STOP if output.finish_reason == "stop" else EndReason.LENGTH)


def _started(arguments: EngineArgs) -> LLMEngine:
    try:
        return LLMEngine.from_engine_args(arguments)
    except ValidationError as error:
        # Of the configuration: what is wrong has lines of its own behind the first.
        wrong = error.errors()[0]
        where = "".join(f"{part}: " for part in wrong["loc"])
        raise StartError(f"engine vllm: {where}{wrong['msg'].removeprefix('Value error, ')}") from error
    except ValueError as error:
        raise StartError(f"engine vllm: {error}") from error
