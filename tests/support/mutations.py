"""Mutated speech requests, from a seed: valid bodies with changed bytes, fields, types, texts, numbers and headers."""

import json
import random
from typing import Any

VALID: list[dict[str, Any]] = [
    {"input": "Hello.", "max_new_tokens": 2},
    {"input": "Hello.", "max_new_tokens": 2, "voice": "us", "response_format": "pcm", "seed": 1},
    {"input": "Hi.", "max_new_tokens": 2, "stream_format": "sse", "response_format": "mp3", "voice": {"id": "gb"}},
    {"input": "Hi.", "max_new_tokens": 2, "stream": False, "response_format": "flac", "speed": 1.5},
    {"input": "Hi.", "max_new_tokens": 3, "language": "english", "temperature": 0, "top_k": 5, "top_p": 0.9},
    {"input": "Hi.", "max_new_tokens": 1, "extra_params": {"seed": 5}, "model": "tts-1", "sample_rate": 16_000},
]
FIELDS = (
    *("input", "model", "voice", "instructions", "response_format", "sample_rate", "speed", "stream_format", "stream"),
    *("task_type", "language", "ref_audio", "ref_text", "x_vector_only_mode", "non_streaming_mode", "seed"),
    *("max_new_tokens", "temperature", "top_k", "top_p", "repetition_penalty", "subtalker_temperature"),
    *("subtalker_top_k", "subtalker_top_p", "extra_params", "user", "speaker_embedding"),
)
NUMBERS = [0, -1, 1, 2, 1e-9, 1e308, -1e308, 2**31, 2**63 - 1, 2**63, 2**64, 10**400, 0.1, 8_000, 24_000, 48_001]
TEXTS = [
    *("", " ", "\x00", "\x1b[2J", "a\nb", "\u202e\u202d", "\ud800", "\U0001f600", "\u0301" * 50, "e\u0301", "\ufeff"),
    *("'; --", "../../etc/passwd", "http://127.0.0.1/", "data:audio/wav;base64,AAAA", "AAAA", "true", "null", "nan"),
    *("a" * 4096, "a" * 4097, "\u4e2d" * 300, "1,234.50 $", "<speak>a</speak>", "wav", "mp3", "opus", "sse", "us"),
]
VALUES: list[Any] = [None, True, False, [], {}, [[]], {"id": "us"}, {"id": None}, [1] * 100, {"a": {"b": {"c": []}}}]
HEADERS = [
    *("Content-Type: application/json", "Content-Type: text/plain", "Content-Type: application/json; charset=utf-16"),
    *("Content-Encoding: gzip", "Content-Encoding: identity", "Accept: text/html", "Authorization: Bearer a"),
    *("Authorization: \xff", "X-Request-Id: a b", "X-Request-Id: one", "Expect: 100-continue", "Connection: close"),
    *("Connection: Upgrade", "Upgrade: h2c", "Range: bytes=0-1", "Transfer-Encoding: chunked", "Content-Length: 5"),
    *("Host: y", "X-Forwarded-For: 1.2.3.4", "Cookie: " + "a" * 3000, "A" * 200 + ": b", "Bad header", " folded"),
]
INSERTED = [b'"', b"{", b"}", b"[", b",", b"\\", b"\x00", b"\xff", b"\xc3", b" ", b"e9", b"-"]
METHODS = ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE", "post", "P\x7fST"]


def mutated_request(seed: int) -> bytes:
    """Returns one HTTP request whose connection the server closes after the response."""
    rng = random.Random(seed)
    fields = dict(rng.choice(VALID))
    for _ in range(rng.choice([0, 1, 1, 2, 3])):
        _mutate_fields(rng, fields)
    body = json.dumps(fields, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    if rng.random() < 0.4:
        body = _mutate_bytes(rng, body)
    method = "POST" if rng.random() < 0.97 else rng.choice(METHODS)
    lines = [f"{method} /v1/audio/speech HTTP/1.1", "Host: x", "Connection: close"]
    lines += ["Content-Type: application/json"] * (rng.random() < 0.97)
    if rng.random() < 0.2:
        lines.insert(rng.randint(1, len(lines)), rng.choice(HEADERS))
    if rng.random() < 0.1:
        lines.append("Transfer-Encoding: chunked")
        body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in _parts(rng, body)) + b"0\r\n\r\n"
    else:
        lines.append(f"Content-Length: {max(0, len(body) + rng.choice([0] * 30 + [-1]))}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def _mutate_fields(rng: random.Random, fields: dict[str, Any]) -> None:
    name = rng.choice([*fields, rng.choice(FIELDS)])
    kind = rng.randrange(5)
    if kind == 0:
        fields.pop(name, None)
    elif kind == 1:
        fields[rng.choice(TEXTS)] = fields.pop(name, None)
    elif name != "max_new_tokens" or kind == 2:
        # Audio is long enough to show that it is generated; more would only take time.
        fields[name] = rng.choice(rng.choice([NUMBERS, TEXTS, VALUES]))
    if (isinstance(limit := fields.get("max_new_tokens"), int) and limit > 3) or "max_new_tokens" not in fields:
        fields["max_new_tokens"] = 2


def _mutate_bytes(rng: random.Random, body: bytes) -> bytes:
    data = bytearray(body)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(4)
        if kind == 0:
            del data[at : at + rng.randint(1, 5)]
        elif kind == 1:
            data[at:at] = rng.choice(
                [b'"', b"{", b"}", b"[", b",", b"\\", b"\x00", b"\xff", b"\xc3", b" ", b"e9", b"-"]
            )
        elif kind == 2 and at < len(data):
            data[at] = rng.randrange(256)
        else:
            data[at:at] = data[at : at + rng.randint(1, 20)]
    return bytes(data)


def _parts(rng: random.Random, body: bytes) -> list[bytes]:
    cuts = sorted(rng.sample(range(1, len(body)), min(3, len(body) - 1))) if len(body) > 1 else []
    return [body[start:end] for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True) if start < end]
