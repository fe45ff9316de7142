"""The configuration of a training run, and its two presets."""

from pathlib import Path
from typing import Any

import msgspec
from msgspec import field


class CorpusConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The sentences to learn from."""

    seed: int = 7
    generated: dict[str, int] = field(default_factory=lambda: {"english": 150_000, "german": 16_000})
    """Sentences drawn from the grammar of each language; duplicates are dropped."""
    max_sentences_per_source: int = 90_000
    max_spoken_words: int = 60


class SynthesisConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How espeak-ng reads the sentences."""

    seed: int = 11
    speakers: dict[str, dict[str, str]] = field(
        default_factory=lambda: {
            "us": {"english": "en-us", "german": "de"},
            "us_f": {"english": "en-us+f1", "german": "de+f1"},
            "us_m": {"english": "en-us+m3", "german": "de+m3"},
            "gb": {"english": "gmw/en+m3", "german": "de+m1"},
        }
    )
    """espeak-ng's voice of each speaker in each language."""
    min_words_per_minute: int = 148
    max_words_per_minute: int = 168
    """The speaking rate is drawn for each sentence."""
    rounds: int = 10
    sentences_per_round: int = 60_000
    """Sentences, speakers and rates are drawn again for each round."""
    sentences_per_shard: int = 1_000
    min_frames: int = 5
    max_frames: int = 260

    @property
    def mean_words_per_minute(self) -> int:
        """The middle of the speaking rates."""
        return (self.min_words_per_minute + self.max_words_per_minute) // 2


class CodecConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The codec's shape and training."""

    shape: dict[str, int] = {}
    """What differs from the `decoder_config` of the bundled voice's `speech_tokenizer/config.json`."""
    encoder_width: int = 256
    encoder_blocks: int = 3
    """ConvNeXt blocks at each of four rates."""
    seed: int = 13
    steps: int = 3_100
    batch: int = 64
    frames: int = 80
    """Frames of a crop."""
    decoded_frames: int = 24
    """Frames of a crop that are decoded to samples."""
    warmup_frames: int = 3
    """Leading decoded frames left out of the loss, because the convolutions lack their past."""
    unquantized_steps: int = 200
    """First steps, which train encoder and decoder without quantization."""
    learning_rate: float = 6e-4
    finetune_steps: int = 22_800
    """Steps of the decoder alone, with encoder and codebooks frozen."""
    finetune_learning_rate: float = 4e-4
    hours: float = 24.0
    """Audio that crops are drawn from."""


class TalkerTrainingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The talker's shape and training."""

    merges: int = 1_000
    """BPE merges of the text tokenizer."""
    shape: dict[str, Any] = {}
    """What differs from the `talker_config` of the bundled voice's `config.json`, apart from token ids."""
    predictor_shape: dict[str, Any] = {}
    """The same of its `code_predictor_config`."""
    seed: int = 17
    steps: int = 24_700
    rows: int = 128
    row_positions: int = 512
    """A step has `rows` rows of `row_positions` positions, into which whole sentences are packed."""
    predicted_frames: int = 8_192
    """Frames of a step whose codes 1 to 15 are in the loss."""
    streaming_share: float = 0.45
    """Share of sentences with streaming text."""
    auto_language_share: float = 0.3
    """Share of sentences whose prompt does not name the language."""
    code0_noise: float = 0.02
    code_noise: float = 0.06
    frame_noise: float = 0.02
    """Shares of input codes, and of whole input frames, that are replaced with random ones."""
    learning_rate: float = 1.5e-3
    steps_per_round: int = 2_500
    """Steps after which the next synthesis round joins the training data."""
    validation_sentences: int = 256
    """The first sentences of round 0, which are excluded from training."""


class TrainingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run."""

    corpus: CorpusConfig = CorpusConfig()
    synthesis: SynthesisConfig = SynthesisConfig()
    codec: CodecConfig = CodecConfig()
    talker: TalkerTrainingConfig = TalkerTrainingConfig()
    save_every: int = 1_500
    """Steps between two saves."""
    log_every: int = 50
    compile: bool = True
    """Use `torch.compile` on a GPU; code that fails to compile runs eagerly."""


FULL = TrainingConfig()
SMOKE = msgspec.json.decode(Path(__file__).with_name("smoke.json").read_bytes(), type=TrainingConfig)
"""Trains a voice that generates noise, in a minute or two on any machine."""
