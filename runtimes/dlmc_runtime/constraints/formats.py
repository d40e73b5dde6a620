"""Formats of strings, each an expression for a part of what it allows."""

from collections.abc import Mapping

_DAY = (
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_DATE = f"[12][0-9]{{3}}-{_DAY}"
_TIME = (
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
    "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_LABEL = "[a-z0-9](?:[a-z0-9-]{0,20}[a-z0-9])?"
_HEX = "[0-9a-f]"

FORMATS: Mapping[str, str] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "email": rf"[A-Za-z0-9]+(?:[._+-][A-Za-z0-9]+)*@{_LABEL}(?:\.{_LABEL}){{1,3}}",
    "hostname": rf"{_LABEL}(?:\.{_LABEL}){{1,3}}",
    "ipv4": rf"{_BYTE}(?:\.{_BYTE}){{3}}",
    "uuid": f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
}
"""Years are 1000 to 2999, February has 28 days, labels of hosts at most 22 characters."""
