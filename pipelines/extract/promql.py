"""PromQL matchers from labels and values, escaped."""

import re
from collections.abc import Iterable

_RE2_SPECIAL = re.compile(r"[\\.+*?()|\[\]{}^$]")


def equals(label: str, value: str) -> str:
    """PromQL matcher `label="value"`, escaped."""
    return f"{label}={_quoted(value)}"


def not_empty(label: str) -> str:
    """PromQL matcher of series that have a label."""
    return f'{label}!=""'


def matching(label: str, pattern: str) -> str:
    """PromQL matcher of a label against a regular expression (RE2), anchored at both ends."""
    return f"{label}=~{_quoted(pattern)}"


def one_of(label: str, values: Iterable[str]) -> str:
    """PromQL matcher of a label against several exact values, escaped for RE2 and for the string."""
    alternatives = "|".join(_RE2_SPECIAL.sub(r"\\\g<0>", value) for value in values)
    return f"{label}=~{_quoted(alternatives)}"


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") + '"'
