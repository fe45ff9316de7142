"""Bodies with large reference audio, which is taken out of the JSON before it is decoded."""

import json
from collections.abc import Callable

import pytest

from syrinx_stages.gateway.errors import ApiError
from syrinx_stages.gateway.fields.json_objects import MAX_BODY, MAX_COMMAS
from syrinx_stages.gateway.fields.parse import parse_fields
from syrinx_stages.gateway.http.batch import parse_batch
from syrinx_stages.gateway.socket.stream_messages import message_type

AUDIO = "AB/+" * (MAX_BODY // 2)
"""Two megabytes."""


@pytest.mark.parametrize(
    "body",
    [
        json.dumps({"input": "a", "ref_audio": AUDIO, "seed": 3}),
        json.dumps({"ref_audio": AUDIO, "seed": 3, "input": "a"}, indent=2),
        json.dumps({"ref_audio": AUDIO, "seed": 3, "input": "a"}).replace("/", "\\/"),
        json.dumps({"ref_audio": AUDIO, "seed": 3, "input": "a"}).replace("+", "\\u002b"),
        json.dumps({"input": "a", "extra_params": {"ref_audio": AUDIO, "seed": 3}}),
        json.dumps({"ref_audio": "B" * MAX_BODY, "input": "a"})[:-1] + f', "ref_audio": "{AUDIO}", "seed": 3}}',
    ],
    ids=["first", "indented", "escaped slashes", "escaped plus signs", "extra params", "twice"],
)
def test_large_references_are_found_where_they_are(body: str) -> None:
    fields = parse_fields(bytearray(body.encode())).fields
    assert (fields.input, fields.seed) == ("a", 3)
    assert fields.ref_audio == AUDIO


def test_a_large_reference_may_have_line_breaks() -> None:
    lines = "\r\n".join([AUDIO[:76]] * 20_000)
    fields = parse_fields(json.dumps({"input": "a", "ref_audio": lines}).encode()).fields
    assert fields.ref_audio == lines


def test_line_breaks_of_a_large_reference_may_be_raw() -> None:
    body = '{"input": "a", "ref_audio": "' + "\r\n".join([AUDIO[:76]] * 20_000) + '"}'
    fields = parse_fields(body.encode()).fields
    assert fields.ref_audio == AUDIO[:76] * 20_000


def test_a_large_reference_may_begin_with_a_byte_order_mark() -> None:
    body = json.dumps({"input": "a", "ref_audio": "\ufeff" + AUDIO}, ensure_ascii=False)
    assert parse_fields(body.encode()).fields.ref_audio == "\ufeff" + AUDIO


def test_a_large_reference_in_a_field_that_is_ignored_has_no_effect() -> None:
    fields = parse_fields(json.dumps({"input": "a", "user": {"ref_audio": AUDIO}}).encode()).fields
    assert fields.ref_audio is None


@pytest.mark.parametrize(
    "body",
    [
        {"input": "a" * MAX_BODY},
        {"input": "a" * MAX_BODY, "ref_audio": AUDIO},
        {"ref_audio": AUDIO, "input": "a" * MAX_BODY},
        {"user": [0] * MAX_BODY, "input": "a"},
    ],
    ids=["text", "text before", "text after", "list"],
)
def test_the_rest_of_a_large_body_is_bounded(body: dict) -> None:
    with pytest.raises(ApiError, match="without ref_audio is larger than 1 MB") as caught:
        parse_fields(json.dumps(body).encode())
    assert caught.value.status == 413


@pytest.mark.parametrize("body", [b'{"ref_audio": "' + AUDIO.encode(), b'{"ref_audio": "' + AUDIO.encode() + b'"'])
def test_an_incomplete_large_body_is_an_error(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_fields(body)
    assert caught.value.status in (400, 413)


def test_each_item_of_a_batch_keeps_its_own_reference() -> None:
    items = [{"input": "a", "ref_audio": AUDIO}, {"input": "b"}, {"input": "c", "ref_audio": "C" * MAX_BODY}]
    body = json.dumps({"items": items, "ref_audio": "B" * MAX_BODY}).encode()
    references = [each.fields.ref_audio for each in parse_batch(body)]
    assert references == [AUDIO, "B" * MAX_BODY, "C" * MAX_BODY]


@pytest.mark.parametrize("parse", [lambda data: parse_fields(data.encode()), message_type])
def test_too_many_values_are_refused_before_they_are_parsed(parse: Callable[[str], object]) -> None:
    numbers = ",".join(["1.5"] * (MAX_COMMAS + 2))
    with pytest.raises(ApiError, match="more than 131,072 values or commas") as caught:
        parse(f'{{"type":"session.config","speaker_embedding":[{numbers}]}}')
    assert caught.value.status == 413


def test_commas_of_a_text_may_be_many() -> None:
    parse_fields(f'{{"input":"{"a,b " * 32_768}"}}'.encode())
