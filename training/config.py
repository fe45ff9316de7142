"""The configuration of a training run, and its presets."""

from pathlib import Path
from typing import Any

import msgspec
from msgspec import field
from msgspec.structs import replace

from syrinx_stages.model.describe import BUNDLED
from training.data.speakers import Timbre, draw, invent


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
    timbres: dict[str, Timbre] = {}
    """Of the speakers that do not sound as espeak-ng's voice does."""
    unseen: frozenset[str] = frozenset()
    """Speakers that no round contains: cloning is tested with them."""
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
    initial_decoder: str | None = None
    """A checkpoint whose decoder training starts with, without its quantizer: the tensors that this one has, too."""
    parallel: bool = False
    """Both parts of the quantizer quantize the encoder's vectors, as Mimi's do; not the second what the first left.

    Voice cloning needs it: the service encodes reference audio with Mimi.
    """
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


class CloningConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What only voice cloning needs: the two encoders of reference audio, and how the talker learns from references."""

    speaker_encoder: dict[str, Any] = field(
        default_factory=lambda: {
            "mel_dim": 80,
            "enc_channels": [96, 96, 96, 96, 288],
            "enc_kernel_sizes": [5, 3, 3, 3, 1],
            "enc_dilations": [1, 2, 3, 4, 1],
            "enc_attention_channels": 48,
            "enc_res2net_scale": 4,
            "enc_se_channels": 48,
        }
    )
    """`speaker_encoder_config`, apart from the talker's width."""
    codec_encoder: dict[str, int] = field(
        default_factory=lambda: {
            "num_filters": 12,
            "num_residual_layers": 2,
            "dilation_growth_rate": 3,
            "residual_kernel_size": 5,
            "last_kernel_size": 7,
        }
    )
    """Arguments of transformers' `MimiConfig` that determine the size of the encoder's convolutions."""
    seed: int = 19
    speaker_steps: int = 4_000
    speaker_batch: int = 192
    speaker_frames: int = 20
    """Frames of the crops that the speaker encoder learns from."""
    speaker_learning_rate: float = 2e-3
    encoder_steps: int = 10_000
    encoder_batch: int = 32
    encoder_learning_rate: float = 1.5e-3
    min_reference_frames: int = 20
    """Frames of the shortest utterance that serves as a reference."""
    continued_share: float = 0.3
    """Share of the utterances that are joined in pairs of the same speaker: the second continues the first."""
    max_joined_frames: int = 280


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
    cloning: CloningConfig | None = None
    """None for a voice with speakers of its own."""
    save_every: int = 1_500
    """Steps between two saves."""
    log_every: int = 50
    compile: bool = True
    """Use `torch.compile` on a GPU; code that fails to compile runs eagerly."""


VARIANTS = (
    *("f1", "f4", "f5", "m1", "m2", "m3", "m4", "m6", "m7", "m8", "klatt", "klatt2", "klatt3", "klatt4", "croak"),
    *("whisper", "steph", "max", "michel", "Alex", "Denis", "Diogo", "Gene", "Henrique", "Hugo", "Michael", "Nguyen"),
    *("Reed", "Storm", "adam"),
)
"""Variants of espeak-ng's voices: those in which pocketsphinx identified each of ten sentences or more."""
UNSEEN_VARIANTS = ("f2", "m5", "linda", "quincy", "Mike")
"""The same, of the speakers that training never hears."""


def _many_speakers(config: SynthesisConfig, trained: int, invented: int, unseen: int) -> SynthesisConfig:
    """Returns the config with drawn English speakers."""
    known, others = draw(VARIANTS, trained, config.seed), draw(UNSEEN_VARIANTS, unseen, config.seed)
    made_up = invent(invented, config.seed)
    return replace(
        config,
        speakers=known.voices | made_up.voices | others.voices,
        timbres=known.timbres | made_up.timbres | others.timbres,
        unseen=frozenset(others.voices),
    )


FULL = TrainingConfig()
BASE = replace(
    FULL,
    corpus=replace(FULL.corpus, generated={"english": 150_000}),
    synthesis=replace(_many_speakers(FULL.synthesis, 480, 1_520, 20), min_words_per_minute=140),
    # Smaller than the bundled voice: the encoders of reference audio need the room.
    codec=replace(
        FULL.codec,
        initial_decoder=BUNDLED,
        parallel=True,
        shape={"num_hidden_layers": 3},
        steps=12_000,
        finetune_steps=10_000,
    ),
    talker=replace(FULL.talker, merges=400, shape={"num_hidden_layers": 5, "intermediate_size": 448}, steps=18_000),
    cloning=CloningConfig(),
)
"""Trains a checkpoint that clones voices, in English, in less than an hour."""
SMOKE = msgspec.json.decode(Path(__file__).with_name("smoke.json").read_bytes(), type=TrainingConfig)
"""Trains a voice that generates noise, in a minute or two on any machine."""
BASE_SMOKE = replace(
    SMOKE,
    corpus=replace(SMOKE.corpus, generated={"english": 100}),
    synthesis=_many_speakers(SMOKE.synthesis, 2, 2, 2),
    codec=replace(SMOKE.codec, parallel=True),
    cloning=CloningConfig(
        speaker_encoder={
            "mel_dim": 16,
            "enc_channels": [16, 16, 16],
            "enc_kernel_sizes": [5, 3, 1],
            "enc_dilations": [1, 2, 1],
            "enc_attention_channels": 8,
            "enc_res2net_scale": 2,
            "enc_se_channels": 8,
        },
        codec_encoder={
            "num_filters": 2,
            "num_residual_layers": 1,
            "dilation_growth_rate": 2,
            "residual_kernel_size": 3,
            "last_kernel_size": 3,
        },
        speaker_steps=20,
        speaker_batch=4,
        speaker_frames=5,
        encoder_steps=20,
        encoder_batch=2,
        min_reference_frames=5,
    ),
)
"""The same for `BASE`."""
