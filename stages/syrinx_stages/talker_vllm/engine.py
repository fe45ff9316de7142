"""The talker engine on vLLM, which batches the requests and manages their KV cache.

vLLM runs in this process, one step at a time, and each step advances every started request. Frames that the service has
not requested yet are buffered here. At most `max_num_seqs` requests are started; others wait until one ends.
"""

import logging
import math
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
from syrinx_stages.kernels.recorder import GraphRecorder
from syrinx_stages.model.checkpoint import Checkpoint
from syrinx_stages.model.config import CODE_GROUPS
from syrinx_stages.model.streamed_text import StreamedText
from syrinx_stages.runtime.errors import RequestError, StartError
from syrinx_stages.runtime.requests.engine import Limits
from syrinx_stages.talker.cuda.allocation import batch_sizes
from syrinx_stages.talker.engine import EngineFull, frame_results
from syrinx_stages.talker.inputs import EmbeddedPrompt, embed
from syrinx_stages.talker.prompt import Prepared, Prompter
from syrinx_stages.talker_vllm import model_directory
from syrinx_stages.talker_vllm.frame_generator import MAX_POSITIONS, VllmRequest
from syrinx_stages.talker_vllm.model import CHECKPOINT_KEY, MAX_FRAMES_KEY
from syrinx_stages.talker_vllm.positions import Handle, HandlePool, prompt_tokens

# These take effect when vLLM is imported. Steps run in this process; CPU affinity is left to the deployment.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
# All of its processes run on this machine.
os.environ.setdefault("VLLM_HOST_IP", "127.0.0.1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
# Its records go to the log of the process, in the same format.
os.environ.setdefault("VLLM_CONFIGURE_LOGGING", "0")

from vllm import EngineArgs, LLMEngine, SamplingParams
from vllm.sampling_params import RequestOutputKind

logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"])

UNUSED_MODULES = ("model.layers", "code_predictor.model.layers", "code_predictor.lm_head", "codec_head")
"""Modules of the talker that are not needed to build prompts."""
CUDA_GRAPH_MODE = "FULL"
"""Includes steps with prefills, if vLLM's attention backend supports it."""
MAX_CAPTURED_TOKENS = 512
"""Largest step in tokens that is captured as a CUDA graph, unless more requests may be resident."""


class _Row(Struct):
    """One resident request."""

    prepared: Prepared
    handle: Handle
    key: str
    started: bool = False
    generated: int = 0
    buffered: deque[bytes] = field(default_factory=deque)
    """Frames read from vLLM that the service has not requested yet."""
    end: End | None = None
    """The request's end, after the buffered frames."""
    end_read: bool = False

    @property
    def running(self) -> bool:
        """Whether vLLM advances the request."""
        return self.started and self.end is None

    @property
    def has_output(self) -> bool:
        """Whether a frame or the end has not been read by the service."""
        return bool(self.buffered) or (self.end is not None and not self.end_read)


Step = Sequence[_Row]


class VllmTalkerEngine:
    """A `TalkerEngine` that runs the decoder layers on vLLM."""

    depth = 1
    isolates_rows = False
    ahead_frames = math.inf
    prompt_rows = math.inf
    prefill_rows = 8
    text_lookahead = 1
    limits = Limits()

    def __init__(
        self, checkpoint: Checkpoint, max_resident: int, max_num_seqs: Callable[[], int], options: VllmOptions
    ) -> None:
        """Loads vLLM.

        max_num_seqs: returns the current limit of started requests. A request whose step contains no started request is
        started regardless. Raises CheckpointError, or StartError if vLLM rejects the checkpoint or the options.
        """
        self._recorder, self._preparing = GraphRecorder(checkpoint.device), GraphRecorder(checkpoint.device)
        self._config = checkpoint.config.talker_config
        self._max_positions = min(self._config.max_position_embeddings, MAX_POSITIONS)
        with self._preparing.on_stream():
            talker = checkpoint.load_talker(*UNUSED_MODULES)
            # Reference audio is encoded once per request, so float32 is affordable.
            self._prompter = Prompter(checkpoint.as_float32(), talker, self._max_positions)
            self._talker = talker
        self._preparing.record_event()()
        # With tensor parallelism prompts are sent to worker processes, so they must be in host memory.
        self._prompt_device = torch.device("cpu") if options.tensor_parallel_size > 1 else checkpoint.device
        self._handles = HandlePool(max_resident)
        self._max_num_seqs = max_num_seqs
        self._rows: dict[str, _Row] = {}
        self._by_key: dict[str, _Row] = {}
        self._admitted = 0
        with tempfile.TemporaryDirectory(prefix="syrinx-vllm-") as directory:
            model_directory.write(Path(directory), checkpoint)
            with self._recorder.on_stream():
                self._vllm = _start_vllm(self._arguments(directory, checkpoint, max_resident, options))

    def _arguments(self, directory: str, checkpoint: Checkpoint, max_resident: int, options: VllmOptions) -> EngineArgs:
        return EngineArgs(
            **structs.asdict(options),
            model=directory,
            skip_tokenizer_init=True,
            dtype=str(checkpoint.dtype).removeprefix("torch."),
            max_model_len=self._max_positions,
            max_num_seqs=max_resident,
            # A position depends on the text and on all 16 codes, of which vLLM sees one.
            enable_prefix_caching=False,
            enforce_eager=checkpoint.device.type == "cpu",
            compilation_config={
                "cudagraph_mode": CUDA_GRAPH_MODE,
                "cudagraph_capture_sizes": sorted({*batch_sizes(max_resident), *batch_sizes(MAX_CAPTURED_TOKENS)}),
            },
            worker_extension_cls="syrinx_stages.talker_vllm.frame_generator.WorkerExtension",
            additional_config={CHECKPOINT_KEY: str(checkpoint.directory), MAX_FRAMES_KEY: self._max_positions},
            disable_log_stats=True,
        )

    def warm_up(self) -> None:
        """Does nothing: vLLM warms up while it loads."""

    def open_text(self, request: SpeechRequest) -> StreamedText:
        message = "the talker on vLLM needs the whole text before it speaks; send text_mode sentences"
        raise RequestError(f"text_mode: {message}", "text_mode")

    def extend(self, request_id: str, tokens: Sequence[int], ended: bool) -> None:
        raise NotImplementedError("`open_text` refuses requests with streamed text")

    @torch.inference_mode()
    def prepare(
        self, request: SpeechRequest, codes: bytes, reference: bytes | None, text: StreamedText | None = None
    ) -> Prepared:
        with self._preparing.on_stream():
            prepared = self._prompter.prepare(request, codes, reference, torch.device("cpu"))
            embedded = embed(self._talker, prepared.prompt)
            prepared.embedded = EmbeddedPrompt(*(tensor.to(self._prompt_device) for tensor in embedded))
        self._preparing.record_event()()
        return prepared

    def admit(self, prepared: Sequence[Prepared]) -> None:
        for each in prepared:
            self.release(each.request.id)
        if len(self._handles) < len(prepared):
            raise EngineFull
        requests = []
        for each in prepared:
            assert each.embedded is not None
            self._admitted += 1
            key = f"{each.request.id}/{self._admitted}"
            row = _Row(each, self._handles.allocate(), key, generated=each.frames)
            self._rows[each.request.id] = self._by_key[row.key] = row
            request = each.request
            requests.append(VllmRequest(row.handle, each.embedded, each.codes, (request.sampling, request.seed)))
        with self._recorder.on_stream():
            for opened in requests:
                self._recorder.record_stream(*opened.prompt)
            have_memory = self._vllm.collective_rpc("syrinx_open", args=(requests,))
        if not all(have_memory):
            for each in prepared:
                self.release(each.request.id)
            raise EngineFull

    def release(self, request_id: str) -> None:
        row = self._rows.pop(request_id, None)
        if row is None:
            return
        del self._by_key[row.key]
        with self._recorder.on_stream():
            if row.running:
                self._vllm.abort_request([row.key])
            self._vllm.collective_rpc("syrinx_close", args=(row.handle,))
        self._handles.free(row.handle)

    def launch(self, ids: Sequence[str]) -> Step:
        """Starts requests in vLLM up to the limit. The step itself runs in `read`."""
        step = [self._rows[request_id] for request_id in ids]
        running = sum(row.running for row in self._rows.values())
        none_started = not any(row.started for row in step)
        for row in step:
            if not row.started and (running < self._max_num_seqs() or none_started):
                self._start(row)
                running, none_started = running + row.running, False
        return step

    def read(self, step: Step) -> dict[str, bytes | End]:
        rows = [row for row in step if self._by_key.get(row.key) is row]
        if any(row.running and not row.buffered for row in rows):
            self._advance()
            while self._vllm.has_unfinished_requests() and not any(row.has_output for row in rows):
                self._advance()
        results: dict[str, bytes | End] = {}
        for row in rows:
            if row.buffered:
                results[row.prepared.request.id] = row.buffered.popleft()
            elif row.end is not None and row.has_output:
                results[row.prepared.request.id] = row.end
                row.end_read = True
        return results

    def _start(self, row: _Row) -> None:
        row.started = True
        prepared = row.prepared
        frames = prepared.max_frames - prepared.frames
        if frames <= 0:
            row.end = End(EndReason.LENGTH)
            return
        tokens = prompt_tokens(row.handle, prepared.positions)
        sampling_params = SamplingParams(
            temperature=0.0,
            max_tokens=frames,
            stop_token_ids=[self._config.codec_eos_token_id],
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        self._vllm.add_request(row.key, {"prompt_token_ids": tokens}, sampling_params)

    def _advance(self) -> None:
        with self._recorder.on_stream():
            outputs = self._vllm.step()
        results = [
            (row, output.outputs[0]) for output in outputs if (row := self._by_key.get(output.request_id)) is not None
        ]
        if not results:
            return
        # With the frame that ended a request: its codes say why.
        wanted = [(row.handle, row.generated, len(output.token_ids)) for row, output in results]
        frames: list[bytes] = self._vllm.collective_rpc("syrinx_read", args=(wanted,))[0]
        for (row, output), codes in zip(results, frames, strict=True):
            sampled = np.frombuffer(codes, "<i2").reshape(-1, CODE_GROUPS)
            for result in frame_results(sampled, self._config.codec_eos_token_id):
                if isinstance(result, End):
                    row.end = result
                else:
                    row.buffered.append(result)
                    row.generated += 1
            if output.finish_reason is not None and row.end is None:
                row.end = End(EndReason.LENGTH)


def _start_vllm(arguments: EngineArgs) -> LLMEngine:
    """Loads vLLM. Raises StartError with its first complaint about the configuration."""
    try:
        return LLMEngine.from_engine_args(arguments)
    except ValidationError as error:
        # The message of a ValidationError has several lines; its first error is enough.
        first = error.errors()[0]
        field_path = "".join(f"{part}: " for part in first["loc"])
        raise StartError(f"engine vllm: {field_path}{first['msg'].removeprefix('Value error, ')}") from error
    except ValueError as error:
        raise StartError(f"engine vllm: {error}") from error
