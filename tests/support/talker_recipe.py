"""Small random checkpoints in the official layout, whose weights follow from their names, and the recorded cases.

`tests/fixtures/official/make_talker.py` builds the same weights for the official package: a tensor's values follow
from its name and shape, so no weights need be stored.
"""

import json
import shutil
import zlib
from pathlib import Path
from typing import Any

import numpy as np

VOICE = Path(__file__).parents[2] / "stages" / "syrinx_stages" / "voice"
RECORDS = Path(__file__).parents[1] / "fixtures" / "official" / "talker.npz"

WIDTH, CODES = 64, 64
LANGUAGES = {"chinese": 74, "english": 75, "german": 76, "beijing_dialect": 77, "sichuan_dialect": 78}
SPEAKERS = {"vivian": 200, "dylan": 201, "eric": 202}
DIALECTS = {"vivian": False, "dylan": "beijing_dialect", "eric": "sichuan_dialect"}


def config(kind: str, size: str) -> dict[str, Any]:
    """A `config.json`: `1b7` has a narrower code predictor behind a projection, `0b6` one of the talker's width."""
    common = {
        "num_key_value_heads": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000,
        "attention_bias": False,
        "use_sliding_window": False,
        "num_code_groups": 16,
    }
    predictor = common | {
        "vocab_size": CODES,
        "hidden_size": WIDTH if size == "0b6" else 32,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 64,
    }
    talker = common | {
        "vocab_size": CODES + 1024,
        "hidden_size": WIDTH,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": 512,
        "rope_scaling": {"interleaved": True, "mrope_section": [8, 4, 4], "rope_type": "default", "type": "default"},
        "text_hidden_size": 32,
        "text_vocab_size": 1280,
        "codec_pad_id": 160,
        "codec_bos_id": 161,
        "codec_eos_token_id": 162,
        "codec_think_id": 163,
        "codec_nothink_id": 164,
        "codec_think_bos_id": 165,
        "codec_think_eos_id": 166,
        "codec_language_id": LANGUAGES,
        "spk_id": SPEAKERS if kind == "custom_voice" else {},
        "spk_is_dialect": DIALECTS if kind == "custom_voice" else {},
        "code_predictor_config": predictor,
    }
    bundled = json.loads((VOICE / "config.json").read_text())
    ids = {name: value for name, value in bundled.items() if name.endswith("_token_id")}
    encoder = {"enc_dim": WIDTH, "sample_rate": 24_000, "enc_channels": [8, 8, 8, 8, 24], "enc_res2net_scale": 2}
    return {
        "model_type": "qwen3_tts",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_model_type": kind,
        "tts_model_size": size,
        "talker_config": talker,
        "speaker_encoder_config": encoder,
        # With this version transformers 4.57.3 leaves the tokenizer's own pattern alone (see model/tokenizer.py).
        "transformers_version": "4.57.1",
    } | ids


def weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """A tensor's values (float32) from its name and shape."""
    values = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    if "norm" in name:
        values = 1 + 0.1 * values
    elif "embedding" not in name and len(shape) == 2:
        values *= 1.5 / shape[1] ** 0.5
    return values.astype(np.float32)


def write_configs(directory: Path, kind: str, size: str) -> None:
    """Configs and tokenizer files; the tokenizer is the bundled voice's."""
    (directory / "speech_tokenizer").mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config(kind, size)))
    for name in ("vocab.json", "merges.txt", "tokenizer_config.json"):
        shutil.copy(VOICE / name, directory / name)
    speech_tokenizer = json.loads((VOICE / "speech_tokenizer" / "config.json").read_text())
    speech_tokenizer["decoder_config"] |= {"codebook_size": CODES}
    (directory / "speech_tokenizer" / "config.json").write_text(json.dumps(speech_tokenizer))


def speaker_embedding() -> np.ndarray:
    """The reference voice of the Base cases: [WIDTH]."""
    return weight("reference.embedding", (WIDTH,))


def reference_codes(frames: int) -> np.ndarray:
    """The reference audio's codes of the Base cases: [frames, 16]."""
    return np.random.RandomState(frames).randint(0, CODES, (frames, 16))


TEXT = "Hello world, it's 42 degrees outside."
REFERENCE_TEXT = "Okay. Yeah."

# name: (checkpoint, request fields). A request field is SpeechRequest's; `frames` is the reference's length.
CASES: dict[str, tuple[tuple[str, str], dict[str, Any]]] = {}
for _size in ("1b7", "0b6"):
    for _whole in (True, False):
        _layout = "whole" if _whole else "streamed"
        _plain = {"text": TEXT, "non_streaming_text": _whole}
        _custom, _base = ("custom_voice", _size), ("base", _size)
        _english = _plain | {"voice": "vivian", "language": "english"}
        CASES[f"custom_{_size}_{_layout}"] = (_custom, _english)
        CASES[f"base_{_size}_{_layout}_x_vector"] = (_base, _plain | {"language": "german", "x_vector_only": True})
        for _frames in (5, 40):  # shorter and longer than the text
            _continued = _plain | {"reference_text": REFERENCE_TEXT, "frames": _frames}
            CASES[f"base_{_size}_{_layout}_continued_{_frames}"] = (_base, _continued)
        if _size == "1b7":
            _told = {"instructions": "Speak slowly,\n and whisper."}
            CASES[f"custom_{_layout}_auto"] = (_custom, _plain | {"voice": "vivian"})
            CASES[f"custom_{_layout}_told"] = (_custom, _english | _told)
            CASES[f"custom_{_layout}_dialect_auto"] = (_custom, _plain | {"voice": "dylan"})
            CASES[f"custom_{_layout}_dialect_chinese"] = (_custom, _plain | {"voice": "eric", "language": "chinese"})
            CASES[f"custom_{_layout}_dialect_english"] = (_custom, _plain | {"voice": "eric", "language": "english"})
            _design = ("voice_design", _size)
            CASES[f"design_{_layout}_told"] = (_design, _plain | _told | {"language": "chinese"})
            CASES[f"design_{_layout}_untold"] = (_design, _plain)
            _blank = "\n \n  First line.\r\n\nSecond line. \n"
            CASES[f"custom_{_layout}_newlines"] = (_custom, _english | {"text": _blank})

BUNDLED = {
    "harbour": "The ships left the harbour before the morning light.",
    "letter": "She wrote a long letter to her brother.",
}

# Texts whose ids are recorded: what the pattern splits, what BPE merges, what Unicode composes.
TEXTS = [
    TEXT,
    "\nstarts with a newline",
    "  starts with blanks",
    "\n\n \n  blank lines first",
    "ends with blanks \n \n",
    "tabs\tand\r\nreturns",
    "CamelCase eBay NASAs and/or I'LL we're",
    "1234567890 3.14 10,000",
    "héllo e\u0301galite\u0301 \u0301leading mark",
    "你好，世界。我叫通义千问！",
    "こんにちは 안녕하세요 Привет שלום नमस्ते",
    "emoji 😀👩‍👩‍👧 and symbols ©™ — “quoted”…",
    "zero\u200bwidth \u00a0 no-break",
    "x",
]

SAMPLING = {
    "defaults": {"temperature": 0.9, "top_k": 50, "top_p": 1.0, "repetition_penalty": 1.05},
    "narrow": {"temperature": 0.3, "top_k": 5, "top_p": 0.7, "repetition_penalty": 1.3},
    "nucleus": {"temperature": 1.7, "top_k": 0, "top_p": 0.5, "repetition_penalty": 1.0},
    "tiny_nucleus": {"temperature": 1.0, "top_k": 0, "top_p": 0.001, "repetition_penalty": 1.0},
    "all": {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "repetition_penalty": 2.0},
    "one": {"temperature": 0.9, "top_k": 1, "top_p": 0.9, "repetition_penalty": 1.05},
}
SAID = [3, 7, 7, 60]
"""Earlier code-0 values, for the repetition penalty."""


def scores(frames: int) -> np.ndarray:
    """Code-0 logits of the sampling records: [vocab_size] float32, after `frames` frames."""
    values = np.random.RandomState(frames).standard_normal(CODES + 1024) * 3
    values[10] = values[11]  # a tie
    return values.astype(np.float32)
