"""Trains the encoder of voice cloning: a small Mimi that gives the vectors of the trained codec's.

The service encodes reference audio with transformers' Mimi, which works on samples. Trained on samples, a codec's
encoder needs far more steps than the one in `model.py`, which starts from spectrograms; so that one is trained first,
and Mimi learns to give its vectors. From then on Mimi encodes everything: the talker and the decoder learn from the
codes that the service gives. Mimi's transformer is left out: its convolutions see enough of the past.
"""

from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from msgspec.structs import replace
from torch import Tensor, nn

from syrinx_stages.model.codec.decoder import Quantizer
from training.checkpoint import decoder_config
from training.codec.loss import Audio, crop_indices
from training.codec.model import Codec, SampleEncoder
from training.config import CloningConfig, CodecConfig, TrainingConfig
from training.run import Log, ShouldStop, TrainingRun, compiled, is_finished, seeded_generator

_STATE = "encoder.pt"
_RATIOS = (4, 5, 6, 8)
"""Of Mimi's strides, in the encoder's order; a last stride of 2 gives the frame rate."""
_KERNEL_SIZE = 7
_COMPRESS = 2


def settings(cloning: CloningConfig, codec: CodecConfig) -> dict[str, Any]:
    """Returns `encoder_config`: arguments of transformers' `MimiConfig`."""
    decoder = decoder_config(codec)
    return {
        "hidden_size": decoder.codebook_dim,
        "upsampling_ratios": list(reversed(_RATIOS)),
        "kernel_size": _KERNEL_SIZE,
        "compress": _COMPRESS,
        "codebook_size": decoder.codebook_size,
        "codebook_dim": decoder.codebook_dim // 2,
        "vector_quantization_hidden_dimension": decoder.codebook_dim // 2,
        "num_quantizers": decoder.num_quantizers,
        "num_semantic_quantizers": 1,
        "upsample_groups": decoder.codebook_dim,
        "num_hidden_layers": 0,
        **cloning.codec_encoder,
    }


class _Convolution(nn.Module):
    """A causal convolution with Mimi's parameter names: [B, in, T] to [B, out, T / stride]."""

    def __init__(
        self, inputs: int, outputs: int, taps: int, *, stride: int = 1, dilation: int = 1, replicate: bool = False
    ) -> None:
        """replicate: pads with the first value instead of zeros, and has no bias."""
        super().__init__()
        self.conv = nn.Conv1d(inputs, outputs, taps, stride, dilation=dilation, bias=not replicate)
        self._padding = (taps - 1) * dilation + 1 - stride
        self._mode = "replicate" if replicate else "constant"

    def forward(self, x: Tensor) -> Tensor:
        padded: Tensor = self.conv(F.pad(x, (self._padding, 0), self._mode))
        return padded


class _Residual(nn.Module):
    """Mimi's residual block: [B, width, T]."""

    def __init__(self, width: int, taps: int, dilation: int) -> None:
        super().__init__()
        hidden = width // _COMPRESS
        first = _Convolution(width, hidden, taps, dilation=dilation)
        self.block = nn.ModuleList([nn.ELU(), first, nn.ELU(), _Convolution(hidden, width, 1)])

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for layer in self.block:
            y = layer(y)
        return x + y


class _Seanet(nn.Module):
    """Mimi's convolutions: samples [B, 1, N] to vectors [B, width, N / 960]."""

    def __init__(self, config: dict[str, int], width: int) -> None:
        super().__init__()
        filters = config["num_filters"]
        layers: list[nn.Module] = [_Convolution(1, filters, _KERNEL_SIZE)]
        for ratio in _RATIOS:
            for index in range(config["num_residual_layers"]):
                dilation = config["dilation_growth_rate"] ** index
                layers.append(_Residual(filters, config["residual_kernel_size"], dilation))
            layers += [nn.ELU(), _Convolution(filters, 2 * filters, 2 * ratio, stride=ratio)]
            filters *= 2
        layers += [nn.ELU(), _Convolution(filters, width, config["last_kernel_size"])]
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class ReferenceEncoder(SampleEncoder):
    """Mimi's encoder without its transformer."""

    parallel = True

    def __init__(self, cloning: CloningConfig, codec: CodecConfig) -> None:
        super().__init__()
        width = decoder_config(codec).codebook_dim
        self.encoder = _Seanet(cloning.codec_encoder, width)
        self.downsample = _Convolution(width, width, 4, stride=2, replicate=True)

    def forward(self, samples: Tensor) -> Tensor:
        """samples: in -1..1, N a multiple of 1,920."""
        vectors: Tensor = self.downsample(self.encoder(samples[:, None]))
        return vectors


class EncoderLosses(NamedTuple):
    """The error of the projected vectors relative to their variance."""

    error: Tensor

    def total(self) -> Tensor:
        """Returns the loss to minimize."""
        return self.error


class Trainer:
    """The reference encoder with its training run."""

    def __init__(self, config: TrainingConfig, directory: Path, device: torch.device) -> None:
        """Resumes from the state in `directory`. Raises ValueError for a voice without cloning."""
        if config.cloning is None:
            raise ValueError("cloning: the preset trains no encoder of reference audio")
        cloning = config.cloning
        self._config, self._cloning, self._device = config, cloning, device
        torch.manual_seed(cloning.seed)
        self.encoder = ReferenceEncoder(cloning, config.codec).to(device)
        self.run = TrainingRun(
            directory / _STATE,
            {"encoder": self.encoder},
            self.encoder.parameters(),
            peak_learning_rate=cloning.encoder_learning_rate,
            steps=cloning.encoder_steps,
            betas=(0.9, 0.98),
            weight_decay=1e-3,
        )

    def train(self, codec: Codec, audio: Audio, should_stop: ShouldStop, log: Log) -> bool:
        """Trains until all steps are done or `should_stop` returns True; returns True if all steps are done."""
        crops = replace(self._config.codec, batch=self._cloning.encoder_batch)
        encoder, teacher = (compiled(each, self._config, self._device) for each in (self.encoder, codec.encoder))
        projections = _projections(codec.decoder.quantizer)

        def losses(step: int) -> EncoderLosses:
            generator = seeded_generator(self._device, self._cloning.seed, step)
            # Half of the crops start with an utterance, because references do.
            indices = crop_indices(crops, audio, generator, utterance_starts=step % 2 == 0)
            samples = audio.samples[indices].float() / 32768
            with torch.autocast(self._device.type, torch.bfloat16, enabled=self._device.type == "cuda"):
                with torch.no_grad():
                    expected = teacher(samples).float()
                found = encoder(samples).float()
            return EncoderLosses(torch.stack([_relative_error(each, found, expected) for each in projections]).mean())

        with torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=True):
            return self.run.train(losses, self._config, should_stop, log)


def load(config: TrainingConfig, directory: Path, device: torch.device) -> ReferenceEncoder:
    """Returns the trained encoder, frozen; raises ValueError if it is not trained."""
    if not is_finished(directory / _STATE):
        raise ValueError(f"{directory / _STATE}: run the step `encoder` first")
    return Trainer(config, directory, device).encoder.eval().requires_grad_(False)


def _projections(quantizer: Quantizer) -> tuple[Tensor, Tensor]:
    """Returns the projections of the quantizer's two parts: [codebook_dim / 2, codebook_dim, 1] each."""
    return quantizer.rvq_first.input_proj.weight, quantizer.rvq_rest.input_proj.weight


def _relative_error(projection: Tensor, found: Tensor, expected: Tensor) -> Tensor:
    """Returns the mean squared error of the projected vectors over their variance."""
    target = F.conv1d(expected, projection)
    return F.mse_loss(F.conv1d(found, projection), target) / target.var()


def tensors(encoder: ReferenceEncoder, quantizer: Quantizer) -> dict[str, Tensor]:
    """Returns the tensors of the encoder and its quantizer with the official names, without their prefix."""
    found = dict(encoder.state_dict())
    for name, part in (("semantic", quantizer.rvq_first), ("acoustic", quantizer.rvq_rest)):
        prefix = f"quantizer.{name}_residual_vector_quantizer"
        found[f"{prefix}.input_proj.weight"] = part.input_proj.weight.detach()
        found[f"{prefix}.output_proj.weight"] = part.output_proj.weight.detach()
        for index, book in enumerate(part._books):
            codebook = f"{prefix}.layers.{index}.codebook"
            found[f"{codebook}.initialized"] = torch.ones(1)
            found[f"{codebook}.cluster_usage"] = book.cluster_usage
            found[f"{codebook}.embed_sum"] = book.embedding_sum
    return found
