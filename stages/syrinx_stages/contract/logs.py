"""The log of every process, in the format that `LOG_FORMAT` names: one line or one JSON object for each record.

No text of a client can begin another line: control characters are escaped, and lines of a traceback are indented.
"""

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

FORMATS: Final = ("json", "text")
FIELDS: Final = ("request_id", "trace_id", "namespace", "pipeline", "object", "replica")
"""What a record may concern, given as `extra`: fields of its JSON object."""
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_LINE_ENDS = (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)
_ESCAPES = {code: chr(code).encode("unicode_escape").decode() for code in _LINE_ENDS if chr(code) != "\t"}


def configure(environment: Mapping[str, str]) -> None:
    """Logs to standard error as `LOG_FORMAT` (text) and `LOG_LEVEL` (INFO) say. Raises `ValueError` that names them."""
    format, level = environment.get("LOG_FORMAT") or "text", (environment.get("LOG_LEVEL") or "INFO").upper()
    for name, value, accepted in (("LOG_FORMAT", format, FORMATS), ("LOG_LEVEL", level, _LEVELS)):
        if value not in accepted:
            raise ValueError(f"{name}: {value!r} is not accepted; expected {', '.join(accepted)}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    logging.basicConfig(handlers=[handler], level=level, force=True)
    logging.captureWarnings(True)


def of_request(request_id: str, traceparent: str = "") -> dict[str, str]:
    """Returns the `extra` of a record that concerns a request, with its trace if it has one."""
    return {"request_id": request_id, "trace_id": traceparent.split("-")[1] if traceparent else ""}


def of_pipeline(namespace: str, name: str) -> dict[str, str]:
    """Returns the `extra` of a record that concerns a pipeline on Kubernetes."""
    return {"namespace": namespace, "pipeline": name}


class JsonFormatter(logging.Formatter):
    """A JSON object for each record: ts (RFC 3339, UTC), level, logger, message, `FIELDS` and exception."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the object, in ASCII."""
        fields = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields |= {name: value for name in FIELDS if (value := getattr(record, name, ""))}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)


class TextFormatter(logging.Formatter):
    """A line for each record, and the indented lines of its traceback."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Returns the line without the traceback."""
        return super().formatMessage(record).translate(_ESCAPES)

    def formatException(self, ei: Any) -> str:
        """Returns the indented traceback."""
        return "\n".join(f"    {line}".translate(_ESCAPES) for line in super().formatException(ei).splitlines())
