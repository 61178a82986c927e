"""Spot: the notice that the machine will be taken away, as a file that appears or at a URL of the provider."""

import json
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from holdfast.core.errors import UsageError
from holdfast.policy.risk import IMMINENT, Reading

__all__ = ["SpotSensor"]

_TIMEOUT_S = 0.5
_MOST_BYTES = 64 << 10
_NOTHING = frozenset({"", "false", "none", "null", "0", "{}", "[]"})
# The providers refuse requests without these, because a page in a browser could not send them.
_HEADERS = {"Metadata-Flavor": "Google", "Metadata": "true"}
_TOKEN_PATH = "/latest/api/token"  # noqa: S105  a place, not a secret
_TOKEN_HEADER = "X-aws-ec2-metadata-token"  # noqa: S105  a name
_CONCLUDED = "the machine is about to be taken away"


class _Page(NamedTuple):
    status: int
    text: str


class SpotSensor:
    """Whether a notice has come. It stays: no provider takes one back."""

    name = "spot"

    def __init__(self, place: str, *, timeout_s: float = _TIMEOUT_S) -> None:
        """The path of a file, or a URL (http, https)."""
        scheme, colon, _ = place.partition("://")
        if not place or (colon and scheme not in ("http", "https")):
            raise UsageError(f"the place of a spot notice is {place!r}, expected a path or an http(s) URL")
        self._place = place
        self._is_url = bool(colon)
        self._timeout_s = timeout_s
        self._token = ""
        self.notice = ""
        """What it says; empty before it has come."""

    def missing(self) -> str:
        """It is there where it was asked for."""
        return ""

    def read(self) -> Reading:
        if not self.notice:
            found = self._ask_url() if self._is_url else self._look_at_file()
            if isinstance(found, Reading):
                return found
            self.notice = found
        return Reading(f"{self._place}: {self.notice}", IMMINENT, _CONCLUDED)

    def _look_at_file(self) -> "Reading | str":
        try:
            with open(Path(self._place), encoding="utf-8", errors="replace") as file:
                return _first_line(file.read(_MOST_BYTES)) or "it is there"
        except FileNotFoundError:
            return Reading(f"{self._place} is not there")
        except OSError as error:
            return Reading(f"{self._place} cannot be read: {error.strerror}")

    def _ask_url(self) -> "Reading | str":
        try:
            page = self._get()
            if page.status == 401:  # a machine that wants a token first
                self._token = self._request("PUT", _TOKEN_PATH, {f"{_TOKEN_HEADER}-ttl-seconds": "21600"}).text.strip()
                page = self._get()
        except (OSError, ValueError) as error:
            return Reading(f"{self._place} does not answer: {error}")
        if page.status == 200 and _says_so(page.text):
            return _first_line(page.text)
        return Reading(f"{self._place}: no notice (status {page.status})")

    def _get(self) -> _Page:
        parts = urlsplit(self._place)
        query = f"?{parts.query}" if parts.query else ""
        headers = {**_HEADERS, _TOKEN_HEADER: self._token} if self._token else _HEADERS
        return self._request("GET", (parts.path or "/") + query, headers)

    def _request(self, method: str, path: str, headers: dict[str, str]) -> _Page:
        # Loaded only where a URL is watched. Not urllib.request: it would go through a proxy, and follow anywhere.
        from http.client import HTTPConnection, HTTPException, HTTPSConnection

        parts = urlsplit(self._place)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=self._timeout_s)
        try:
            connection.request(method, path, headers=headers)
            response = connection.getresponse()
            return _Page(response.status, response.read(_MOST_BYTES).decode(errors="replace"))
        except HTTPException as error:
            raise OSError(f"{type(error).__name__}: {error}") from error
        finally:
            connection.close()


def _says_so(text: str) -> bool:
    """Whether the answer is a notice; a list of events that is empty is none."""
    if text.strip().lower() in _NOTHING:
        return False
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return True
    return not isinstance(document, dict) or "Events" not in document or bool(document["Events"])


def _first_line(text: str) -> str:
    return " ".join(text.split())[:200]
