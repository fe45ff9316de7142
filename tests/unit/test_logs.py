"""The two formats of the log: what a record becomes, and that no text of a client begins another line."""

import json
import logging
from datetime import datetime, timedelta

import pytest

from syrinx_stages.contract.logs import FIELDS, JsonFormatter, TextFormatter, configure, of_pipeline, of_request

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
FORMATTERS = {"json": JsonFormatter(), "text": TextFormatter()}
HOSTILE = [
    "a\n2026-01-01 00:00:00,000 INFO fake: b",
    'a\r{"ts": "2026-01-01T00:00:00.000Z", "level": "info"}',
    "a\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029b",
    "a\x1b[2J\x00\x7fb",
    'a"}\\u000a\ud800',
]


def record(message, *values, error=None, **extra):
    made = logging.getLogger("syrinx.test").makeRecord(
        "syrinx.test", logging.WARNING, "file.py", 1, message, values,
        None if error is None else (type(error), error, error.__traceback__), extra=extra,
    )  # fmt: skip
    return made


def raised(message):
    try:
        raise ValueError(message)
    except ValueError as error:
        return error


def test_a_record_is_one_json_object():
    fields = json.loads(JsonFormatter().format(record("%d of %s", 2, "five", **of_request("r1", TRACEPARENT))))
    ts = datetime.fromisoformat(fields.pop("ts"))
    assert ts.utcoffset() == timedelta(0) and abs(ts.timestamp() - datetime.now().timestamp()) < 60
    assert fields == {
        "level": "warning",
        "logger": "syrinx.test",
        "message": "2 of five",
        "request_id": "r1",
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
    }


def test_a_field_without_a_value_is_absent():
    assert not json.loads(JsonFormatter().format(record("x"))).keys() & set(FIELDS)
    untraced = json.loads(JsonFormatter().format(record("x", **of_request("r1"))))
    assert untraced["request_id"] == "r1" and "trace_id" not in untraced
    of_cluster = json.loads(JsonFormatter().format(record("x", **of_pipeline("speech", "demo"))))
    assert (of_cluster["namespace"], of_cluster["pipeline"]) == ("speech", "demo")


def test_an_exception_is_a_field_or_indented_lines():
    made = record("failed", error=raised("odd"))
    exception = json.loads(JsonFormatter().format(made))["exception"]
    assert exception.startswith("Traceback") and exception.endswith("ValueError: odd")
    first, *others = TextFormatter().format(made).splitlines()
    assert first.endswith("WARNING syrinx.test: failed")
    assert others[-1] == "    ValueError: odd" and all(line.startswith("    ") for line in others)


@pytest.mark.parametrize("format", FORMATTERS)
@pytest.mark.parametrize("text", HOSTILE)
def test_the_text_of_a_client_cannot_begin_a_line_nor_can_it_in_an_exception(format, text):
    line = FORMATTERS[format].format(record("request %s", text, **of_request(text)))
    assert len(line.splitlines()) == 1
    assert all(character == "\t" or character >= " " for character in line)
    first, *others = FORMATTERS[format].format(record("failed", error=raised(text))).splitlines()
    if format == "json":
        assert json.loads(line)["request_id"] == text
        assert not others and json.loads(first)["exception"].endswith(f"ValueError: {text}")
    assert all(line.startswith("    ") for line in others)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"LOG_FORMAT": "xml"}, "LOG_FORMAT: 'xml' is not accepted; expected json, text"),
        ({"LOG_LEVEL": "LOUD"}, "LOG_LEVEL: 'LOUD' is not accepted; expected DEBUG, INFO, WARNING, ERROR, CRITICAL"),
    ],
)
def test_a_wrong_setting_is_named(environment, message):
    with pytest.raises(ValueError) as caught:
        configure(environment)
    assert str(caught.value) == message
