"""Resource quantities in the API server's canonical form."""

from __future__ import annotations

import re
from decimal import ROUND_UP, Decimal

_FORM = re.compile(r"^([+-]?[0-9]*\.?[0-9]+|[+-]?[0-9]+\.)(m|k|[KMGTPE]i?|n|u|[eE][+-]?[0-9]+)?$")
_BINARY = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"]
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}


def canonical(value: object) -> str:
    """Returns the canonical form: `1000m` is `1`, `1024Mi` is `1Gi`, `0.5` is `500m`. Raises ValueError."""
    text = str(value)
    match = _FORM.match(text)
    if isinstance(value, bool) or not match:
        raise ValueError(f"quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*)$': {text!r}")
    number, suffix = Decimal(match[1]), match[2] or ""
    if suffix.endswith("i"):
        number *= 1024 ** _BINARY.index(suffix)
        if number == number.to_integral_value() and abs(number) >= 1024:
            return _binary(int(number))
    elif suffix in _DECIMAL:
        number *= Decimal(10) ** _DECIMAL[suffix]
    else:
        number *= Decimal(10) ** int(suffix[1:])
    return _decimal(number)


def _binary(number: int) -> str:
    step = 0
    while number and number % 1024 == 0 and step < len(_BINARY) - 1:
        number, step = number // 1024, step + 1
    return f"{number}{_BINARY[step]}"


def _decimal(number: Decimal) -> str:
    if number == 0:
        return "0"
    for suffix, power in sorted(_DECIMAL.items(), key=lambda item: -item[1]):
        scaled = number / Decimal(10) ** power
        if scaled == scaled.to_integral_value():
            return f"{int(scaled)}{suffix}"
    return f"{int((number * 10**9).to_integral_value(ROUND_UP))}n"
