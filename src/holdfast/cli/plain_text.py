"""Terminals and pipes that do not take every character get one that looks alike, instead of an error."""

import codecs
import io
from typing import TextIO

__all__ = ["speaks_unicode"]

_HANDLER = "holdfast-look-alike"
_PROBE = "─│┌┐└┘┤×↻■≈…"
_LOOK_ALIKES = str.maketrans(
    {
        **dict.fromkeys("─–—−‑", "-"),
        **dict.fromkeys("│┊╵╷", "|"),
        **dict.fromkeys("┌┐└┘├┤┬┴┼•", "+"),
        **dict.fromkeys("‘’", "'"),
        **dict.fromkeys("“”", '"'),
        "×": "x",
        "·": "*",
        "≈": "~",
        "≤": "<=",
        "≥": ">=",
        "→": "->",
        "…": "...",
        "µ": "u",
        "μ": "u",
        "σ": "sigma",
        "▸": ">",
        "\u00a0": " ",
        "\u202f": " ",
    }
)


def speaks_unicode(stream: TextIO, *, ascii_only: bool = False) -> bool:
    """Whether the stream takes what we draw; from now on it shows look-alikes for what it does not take."""
    encoding = "ascii" if ascii_only else stream.encoding or "ascii"
    try:
        _PROBE.encode(encoding)
        return True
    except (UnicodeEncodeError, LookupError):
        codecs.register_error(_HANDLER, _look_alike)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding=encoding, errors=_HANDLER)
        return False


def _look_alike(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_LOOK_ALIKES)
    return text.encode("ascii", "backslashreplace"), error.end
