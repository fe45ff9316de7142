"""Every kernel that the engines launch compiles for every supported GPU and fits there. Needs no GPU."""

from collections.abc import Iterator

import msgspec
import pytest
import torch

from gpu.checkpoint import OFFICIAL, SIZES, talker_settings
from support.compilation import META, Kernel, compiler
from support.gpus import GPUS
from syrinx_stages.codec.cuda.engine import MAX_FRAMES, CudaCodecEngine
from syrinx_stages.contract.settings import MAX_ROWS
from syrinx_stages.kernels.gpu import Gpu
from syrinx_stages.kernels.launch import INTERPRETED
from syrinx_stages.kernels.recorder import GraphRecorder
from syrinx_stages.kernels.slots import SlotTable, embed_inputs, next_first_codes, select_rows, store_frames
from syrinx_stages.model.codec.decoder import CodecDecoder
from syrinx_stages.model.config import CODE_GROUPS, ModelConfig, SpeechTokenizerConfig, TalkerConfig
from syrinx_stages.model.talker import Talker
from syrinx_stages.talker.cuda.allocation import PAGE_SIZE
from syrinx_stages.talker.cuda.model_runner import ModelRunner
from syrinx_stages.talker.cuda.packed import PackedTalker, pack

pytestmark = [
    pytest.mark.compile,
    pytest.mark.skipif(INTERPRETED, reason="Triton's interpreter compiles nothing: run `make test-compile`"),
]

MAX_STACK = 320
"""Bytes of a thread that its registers do not hold. Tiles that were measured to be the fastest on an H200 have 304."""
MAX_TENSOR_MEMORY = 512
"""Columns of a multiprocessor: PTX ISA, "Tensor Memory"."""

each_gpu = pytest.mark.parametrize(
    "gpu", GPUS.values(), ids=[f"{name} sm_{gpu.capability[0]}{gpu.capability[1]}" for name, gpu in GPUS.items()]
)


@pytest.fixture
def compiled(gpu: Gpu) -> Iterator[list[Kernel]]:
    """Yields the kernels compiled by the test for `gpu`, and checks them afterwards."""
    with compiler(gpu) as kernels:
        yield kernels
    assert kernels
    for kernel in kernels:
        assert kernel.shared_memory <= gpu.shared_memory, kernel
        assert kernel.tensor_memory <= MAX_TENSOR_MEMORY, kernel
        assert kernel.stack() <= MAX_STACK, kernel


def talker_of(size: str) -> tuple[TalkerConfig, PackedTalker]:
    """Returns config and weights, on `META`, of a talker with one layer of each kind: all have the same kernels."""
    config = msgspec.convert(talker_settings(size, 0), ModelConfig).talker_config
    predictor = msgspec.structs.replace(config.code_predictor_config, num_hidden_layers=1)
    config = msgspec.structs.replace(config, num_hidden_layers=1, code_predictor_config=predictor)
    with META, torch.inference_mode():
        return config, pack(Talker(config).to(torch.bfloat16))


@each_gpu
def test_talker(gpu: Gpu, compiled: list[Kernel]) -> None:
    for size in SIZES:
        config, weights = talker_of(size)
        ModelRunner(weights, config, GraphRecorder(META), MAX_ROWS).warm_up()
    assert all(kernel.launches_early == (gpu.capability >= (9, 0)) for kernel in compiled)


@each_gpu
def test_codec(gpu: Gpu, compiled: list[Kernel]) -> None:
    config = msgspec.convert(OFFICIAL["speech_tokenizer"], SpeechTokenizerConfig).decoder_config
    with META:
        decoder = CodecDecoder(config)
    engine = CudaCodecEngine(decoder, MAX_ROWS, META)
    engine._compile()
    GraphRecorder(META).compile(engine.get((1, MAX_FRAMES))[1].launches)
    assert any(kernel.launches_early for kernel in compiled) == (gpu.capability >= (9, 0))


@each_gpu
def test_inputs_and_codes_of_a_talker_on_vllm(gpu: Gpu, compiled: list[Kernel]) -> None:
    config, weights = talker_of(SIZES[0])
    slots = SlotTable(9, 4, weights.norm.new_zeros(8 * PAGE_SIZE, config.hidden_size), 16, CODE_GROUPS)
    positions = torch.zeros(8, dtype=torch.int64, device=META)
    metadata = torch.zeros(8, 5, dtype=torch.int32, device=META)
    codes = torch.zeros(8, CODE_GROUPS, dtype=torch.int32, device=META)
    out = weights.norm.new_zeros(8, config.hidden_size)
    GraphRecorder(META).compile(
        [
            lambda: embed_inputs(slots, positions, weights.first, weights.rest, out, PAGE_SIZE),
            lambda: select_rows(slots, positions, metadata),
            lambda: store_frames(slots, metadata, codes),
            lambda: next_first_codes(slots, positions, positions, config.codec_eos_token_id),
        ]
    )
    assert len(compiled) == 4
