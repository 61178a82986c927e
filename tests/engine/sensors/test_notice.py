"""The notice that the machine is taken away: a file, or a page of a real server."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from holdfast.core.errors import UsageError
from holdfast.engine.sensors.notice import SpotSensor
from holdfast.policy.risk import CALM, IMMINENT


class Provider:
    """A server that answers as the test says; with a token it refuses those who have not fetched it."""

    def __init__(self) -> None:
        self.status, self.body, self.token = 404, "", ""
        self.headers: dict[str, str] = {}
        self.hangs = threading.Event()
        self.hangs.set()
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.hangs.wait(30)
                provider.headers = dict(self.headers)
                refused = provider.token and self.headers.get("X-aws-ec2-metadata-token") != provider.token
                self._answer(401 if refused else provider.status, provider.body)

            def do_PUT(self) -> None:
                assert self.path == "/latest/api/token"
                self._answer(200, provider.token)

            def log_message(self, *_: object) -> None: ...

            def _answer(self, status: int, body: str) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/spot?wait=no"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def provider() -> Iterator[Provider]:
    made = Provider()
    yield made
    made.hangs.set()
    made.server.shutdown()
    made.server.server_close()


def test_a_file_that_appears_is_a_notice(tmp_path: Path) -> None:
    sensor = SpotSensor(str(tmp_path / "notice"))
    assert sensor.read().risk == CALM

    (tmp_path / "notice").write_text("terminate at\n08:22")

    reading = sensor.read()
    assert (reading.risk, reading.concluded) == (IMMINENT, "the machine is about to be taken away")
    assert sensor.notice == "terminate at 08:22"


def test_an_empty_file_is_one_too(tmp_path: Path) -> None:
    (tmp_path / "notice").touch()

    assert SpotSensor(str(tmp_path / "notice")).read().risk == IMMINENT


def test_a_notice_stays_when_its_file_is_gone(tmp_path: Path) -> None:
    (tmp_path / "notice").touch()
    sensor = SpotSensor(str(tmp_path / "notice"))
    sensor.read()

    (tmp_path / "notice").unlink()

    assert sensor.read().risk == IMMINENT


def test_a_directory_in_its_place_is_none(tmp_path: Path) -> None:
    assert SpotSensor(str(tmp_path)).read().risk == CALM


@pytest.mark.parametrize(
    ("status", "body", "risk"),
    [
        (404, "not found", CALM),
        (500, "broken", CALM),
        (200, "", CALM),
        (200, "FALSE", CALM),
        (200, "TRUE", IMMINENT),
        (200, json.dumps({"action": "terminate", "time": "2026-11-15T08:22:00Z"}), IMMINENT),
        (200, json.dumps({"DocumentIncarnation": 1, "Events": []}), CALM),
        (200, json.dumps({"DocumentIncarnation": 2, "Events": [{"EventType": "Preempt"}]}), IMMINENT),
    ],
)
def test_the_pages_of_providers(provider: Provider, status: int, body: str, risk: float) -> None:
    provider.status, provider.body = status, body
    sensor = SpotSensor(provider.url, timeout_s=60)

    assert sensor.read().risk == risk
    assert provider.headers["Metadata-Flavor"] == "Google"


def test_a_provider_that_wants_a_token_gets_it(provider: Provider) -> None:
    provider.status, provider.body, provider.token = 200, "TRUE", "secret"

    assert SpotSensor(provider.url, timeout_s=60).read().risk == IMMINENT


def test_a_server_that_hangs_is_left_after_a_moment(provider: Provider) -> None:
    provider.hangs.clear()

    reading = SpotSensor(provider.url, timeout_s=0.05).read()

    assert reading.risk == CALM
    assert "does not answer" in reading.text


def test_no_server_at_all_is_no_notice(provider: Provider) -> None:
    provider.server.shutdown()
    provider.server.server_close()

    assert "does not answer" in SpotSensor(provider.url, timeout_s=0.2).read().text


@pytest.mark.parametrize("place", ["", "ftp://host/x", "file:///etc/passwd"])
def test_other_places_are_refused(place: str) -> None:
    with pytest.raises(UsageError, match="expected a path or an http"):
        SpotSensor(place)
