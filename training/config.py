"""What a run is made with: one struct, and its two presets."""

from __future__ import annotations

import msgspec
from msgspec import field


class CorpusConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Which texts."""

    seed: int = 7
    generated: dict[str, int] = field(default_factory=lambda: {"english": 150_000, "german": 16_000})
    """The languages, and sentences drawn from the grammar of each; drawn twice, one is kept once."""
    sentences_a_source: int = 90_000
    longest_spoken_words: int = 60


class SynthesisConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How espeak-ng reads them."""

    seed: int = 11
    speakers: dict[str, dict[str, str]] = field(
        default_factory=lambda: {
            "us": {"english": "en-us", "german": "de"},
            "us_f": {"english": "en-us+f1", "german": "de+f1"},
            "us_m": {"english": "en-us+m3", "german": "de+m3"},
            "gb": {"english": "gmw/en+m3", "german": "de+m1"},
        }
    )
    """Each speaker, and espeak-ng's voice of it in each language."""
    slowest: int = 148
    fastest: int = 168
    """Words a minute, drawn for each sentence."""
    rounds: int = 10
    sentences_a_round: int = 60_000
    """A round reads some of the corpus, drawn anew, by speakers and at rates drawn anew."""
    sentences_a_shard: int = 1_000
    fewest_frames: int = 5
    most_frames: int = 260


class CodecConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The codec's shape and training."""

    codebook_size: int = 256
    codebook_dim: int = 128
    latent: int = 192
    hidden: int = 192
    layers: int = 4
    heads: int = 3
    feed_forward: int = 320
    decoder_dim: int = 256
    encoder_width: int = 256
    encoder_blocks: int = 3
    """ConvNeXt blocks at each of four rates."""
    seed: int = 13
    steps: int = 3_100
    batch: int = 64
    frames: int = 80
    """Frames of a training crop, and below, those of them that are decoded to samples."""
    decoded_frames: int = 24
    warmup_frames: int = 3
    """First decoded frames, whose loss does not count: the convolutions lack their past."""
    unquantised_steps: int = 200
    learning_rate: float = 6e-4
    polish_steps: int = 22_800
    polish_learning_rate: float = 4e-4
    """Of the decoder by itself, when the codes are what they will be."""
    hours: float = 24.0
    """Of audio that crops are drawn from."""


class TalkerTraining(msgspec.Struct, frozen=True, kw_only=True):
    """The talker's shape and training."""

    merges: int = 1_000
    """Of the text tokenizer."""
    text_hidden: int = 128
    hidden: int = 320
    layers: int = 6
    heads: int = 5
    head_dim: int = 64
    feed_forward: int = 512
    predictor_hidden: int = 192
    predictor_layers: int = 3
    predictor_heads: int = 3
    predictor_feed_forward: int = 384
    seed: int = 17
    steps: int = 24_700
    rows: int = 128
    row_positions: int = 512
    """Positions of a row that whole sentences are packed into; with `rows`, those of a step."""
    predicted_frames: int = 8_192
    """Of a step's frames, those whose codes 1 to 15 are learnt."""
    streaming_share: float = 0.45
    auto_share: float = 0.3
    """Sentences whose language is not told."""
    code0_noise: float = 0.02
    code_noise: float = 0.06
    frame_noise: float = 0.02
    """Input codes, and whole input frames, that are replaced by random ones."""
    learning_rate: float = 1.5e-3
    steps_a_round: int = 2_500
    """Steps until a further round of synthesis joins those that are learnt from."""
    validation_sentences: int = 256
    """The first of round 0, never learnt from."""


class TrainingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run."""

    corpus: CorpusConfig = CorpusConfig()
    synthesis: SynthesisConfig = SynthesisConfig()
    codec: CodecConfig = CodecConfig()
    talker: TalkerTraining = TalkerTraining()
    save_every: int = 1_500
    """Steps between two saves."""
    log_every: int = 50
    compile: bool = True
    """`torch.compile` on a GPU; what cannot be compiled runs as it is."""


FULL = TrainingConfig()

SMOKE = TrainingConfig(
    corpus=CorpusConfig(generated={"english": 80, "german": 24}, sentences_a_source=0, longest_spoken_words=12),
    synthesis=SynthesisConfig(rounds=2, sentences_a_round=40, sentences_a_shard=20),
    codec=CodecConfig(
        codebook_size=32,
        codebook_dim=16,
        latent=32,
        hidden=32,
        layers=1,
        heads=1,
        feed_forward=32,
        decoder_dim=64,
        encoder_width=32,
        encoder_blocks=1,
        steps=24,
        batch=2,
        frames=6,
        decoded_frames=3,
        warmup_frames=1,
        unquantised_steps=4,
        learning_rate=2e-3,
        polish_steps=16,
        polish_learning_rate=4e-3,
        hours=0.1,
    ),
    talker=TalkerTraining(
        merges=120,
        text_hidden=32,
        hidden=64,
        layers=2,
        heads=2,
        head_dim=32,
        feed_forward=96,
        predictor_hidden=32,
        predictor_layers=1,
        predictor_heads=1,
        predictor_feed_forward=64,
        steps=30,
        rows=2,
        row_positions=256,
        predicted_frames=64,
        steps_a_round=10,
        validation_sentences=4,
    ),
    save_every=8,
    log_every=1,
    compile=False,
)
