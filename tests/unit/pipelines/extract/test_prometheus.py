"""The client against a small server that answers as it is told: what is sent, what is retried, what a person reads."""

import dataclasses
import http.server
import json
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.extract.prometheus import PrometheusSource, TileRequest
from pipelines.extract.promql import equals, matching, not_empty, one_of
from pipelines.extract.samples import Series, samples
from schemas.config import BasicAuth, PrometheusConfig
from schemas.errors import ConfigError, SourceRefused, SourceUnavailable
from tests.services.prometheus import free_port

MIDNIGHT_MS = 1_793_664_000_000
EMPTY = {"status": "success", "data": {"resultType": "matrix", "result": []}}


@dataclasses.dataclass
class Asked:
    method: str
    path: str
    headers: dict[str, str]
    parameters: dict[str, list[str]]


@dataclasses.dataclass
class Answer:
    body: Any = None
    status: int = 200
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    delay_s: float = 0
    claimed_length: int | None = None


class Stub:
    """`answer` is called with what was asked and gives the answer."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.answer: Callable[[Asked], Answer] = lambda _: Answer(EMPTY)
        stub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                path, _, query = self.path.partition("?")
                sent = self.rfile.read(length).decode() or query
                asked = Asked(self.command, path, dict(self.headers), urllib.parse.parse_qs(sent))
                stub.asked.append(asked)
                answer = stub.answer(asked)
                time.sleep(answer.delay_s)
                body = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(answer.claimed_length or len(body)))
                self.end_headers()
                self.wfile.write(body)
                self.close_connection = answer.claimed_length is not None

            do_GET = do_POST = handle_any

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # a client that hung up, as tests make it do

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def stub() -> Iterator[Stub]:
    server = Stub()
    yield server
    server.close()


def source(stub: Stub | str, **config: Any) -> PrometheusSource:
    url = stub if isinstance(stub, str) else stub.url
    return PrometheusSource(PrometheusConfig(url=url, **config), "prod", backoff_s=0.01)


def tile(subject: str = "engine_active, hour 5", query: str = "{a='b'}[3600s]") -> TileRequest:
    return TileRequest(subject, query, MIDNIGHT_MS)


def read(stub: Stub | str, *requests: TileRequest, **config: Any) -> list[tuple[str, list[Series]]]:
    with source(stub, **config) as client:
        return [(request.subject, series) for request, series in client.tiles(requests or [tile()])]


def test_what_is_sent(stub: Stub) -> None:
    read(stub, bearer_token="secret", headers={"X-Scope-OrgID": "gpu"}, timeout_s=7)
    [asked] = stub.asked
    assert (asked.method, asked.path) == ("POST", "/api/v1/query")
    assert asked.headers["Authorization"] == "Bearer secret"
    assert asked.headers["X-Scope-OrgID"] == "gpu"
    assert asked.headers["Accept-Encoding"] == "identity"
    assert asked.parameters == {
        "query": ["{a='b'}[3600s]"],
        "time": ["1793664000.000"],
        "timeout": ["7s"],
        "partial_response": ["false"],
        "max_source_resolution": ["0s"],
        "dedup": ["true"],
        "deny_partial_response": ["1"],
    }


def test_a_token_may_bring_the_end_of_its_line(stub: Stub) -> None:
    read(stub, bearer_token="secret\n", headers={"X-Api-Key": " K3Y\n"})
    assert stub.asked[0].headers["Authorization"] == "Bearer secret"
    assert stub.asked[0].headers["X-Api-Key"] == "K3Y"


@pytest.mark.parametrize("config", [{"bearer_token": "s3cr\n3t"}, {"headers": {"X-Api-Key": "s3cr€t"}}])
def test_a_secret_that_no_header_can_carry_is_not_shown(stub: Stub, config: dict[str, Any]) -> None:
    with pytest.raises(
        ConfigError, match=r"prometheus\.(bearer_token|headers\.X-Api-Key): expected one line"
    ) as caught:
        read(stub, **config)
    assert "s3cr" not in str(caught.value)


def test_basic_auth_and_a_url_with_a_path(stub: Stub) -> None:
    read(f"{stub.url}/select/0/prometheus/", basic_auth=BasicAuth(username="u", password="p"))
    assert stub.asked[0].headers["Authorization"] == "Basic dTpw"
    assert stub.asked[0].path == "/select/0/prometheus/api/v1/query"


def test_a_netrc_entry_does_not_replace_the_token(stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text("default login someone password else\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    read(stub, bearer_token="secret")
    assert stub.asked[0].headers["Authorization"] == "Bearer secret"


def test_label_values(stub: Stub) -> None:
    stub.answer = lambda _: Answer({"status": "success", "data": ["b", "a"]})
    with source(stub) as client:
        assert client.label_values("job", ['{a="1"}', '{a="2"}'], MIDNIGHT_MS, MIDNIGHT_MS + 1500) == ["a", "b"]
    [asked] = stub.asked
    assert (asked.method, asked.path) == ("GET", "/api/v1/label/job/values")
    assert asked.parameters["match[]"] == ['{a="1"}', '{a="2"}']
    assert (asked.parameters["start"], asked.parameters["end"]) == (["1793664000.000"], ["1793664001.500"])


def test_selectors_are_escaped_and_carry_the_configured_matchers() -> None:
    client = source("http://x", matchers={"cluster": 'a"b\\c'})
    assert client.selector(["m"]) == r'{__name__="m",cluster="a\"b\\c"}'
    assert client.selector(["m", "n"], not_empty("pod")).startswith('{__name__=~"m|n",pod!="",')
    assert equals("a", 'x"y') == r'a="x\"y"'
    assert one_of("uid", ["a.b", "c(d)"]) == r'uid=~"a\\.b|c\\(d\\)"'
    assert matching("resource", "nvidia_com_.*") == 'resource=~"nvidia_com_.*"'


def test_answers_come_in_the_order_of_the_requests(stub: Stub) -> None:
    stub.answer = lambda asked: Answer(EMPTY, delay_s=0.1 if asked.parameters["query"] == ["q0"] else 0)
    subjects = [subject for subject, _ in read(stub, *(tile(f"tile {n}", f"q{n}") for n in range(8)))]
    assert subjects == [f"tile {n}" for n in range(8)]


def test_reading_ahead_is_bounded(stub: Stub) -> None:
    with source(stub, concurrency=2) as client:
        answers = client.tiles(tile(f"tile {n}", f"q{n}") for n in range(20))
        next(answers)
        time.sleep(0.2)
        assert len(stub.asked) <= 4
        answers.close()
        time.sleep(0.1)
        assert len(stub.asked) <= 4


def test_a_failure_names_its_tile_and_cancels_the_rest(stub: Stub) -> None:
    error = {"status": "error", "errorType": "bad_data", "error": "parse error"}
    stub.answer = lambda asked: Answer(error, 400) if asked.parameters["query"] == ["q2"] else Answer(EMPTY)
    with pytest.raises(SourceRefused, match=r"^tile 2: Prometheus of cluster prod .* parse error"):
        read(stub, *(tile(f"tile {n}", f"q{n}") for n in range(40)))
    time.sleep(0.05)
    assert len(stub.asked) < 8


def test_warnings_and_partial_answers_are_errors(stub: Stub) -> None:
    stub.answer = lambda _: Answer(EMPTY | {"warnings": ["store eu-1 is away"]})
    with pytest.raises(SourceUnavailable, match="store eu-1 is away"):
        read(stub)
    stub.answer = lambda _: Answer(EMPTY | {"isPartial": True})
    with pytest.raises(SourceUnavailable, match="partial answer"):
        read(stub)


def test_infos_are_harmless(stub: Stub) -> None:
    stub.answer = lambda _: Answer(EMPTY | {"infos": ["PromQL info: metric might not be a counter"]})
    assert read(stub) == [("engine_active, hour 5", [])]
    stub.answer = lambda _: Answer(EMPTY | {"warnings": ["PromQL info: metric might not be a counter"]})
    assert read(stub) == [("engine_active, hour 5", [])]


@pytest.mark.parametrize("status", [401, 403])
def test_refused_credentials(stub: Stub, status: int) -> None:
    stub.answer = lambda _: Answer(b"token s3cr3t-token is not welcome", status)
    with pytest.raises(SourceRefused, match="credentials refused by Prometheus of cluster prod") as caught:
        read(stub, bearer_token="s3cr3t-token")
    assert "s3cr3t" not in str(caught.value)
    assert len(stub.asked) == 1


def test_secrets_that_a_server_echoes_are_not_repeated(stub: Stub) -> None:
    stub.answer = lambda _: Answer({"status": "error", "errorType": "bad_data", "error": "bad key K3Y"}, 400)
    with pytest.raises(SourceRefused, match=r"bad key \*\*\*"):
        read(stub, headers={"X-Api-Key": "K3Y"})


@pytest.mark.parametrize("status", [200, 502])
def test_a_login_page_is_called_one(stub: Stub, status: int) -> None:
    stub.answer = lambda _: Answer(b"<html>Log in</html>", status)
    with pytest.raises((SourceRefused, SourceUnavailable), match="web page"):
        read(stub)


@pytest.mark.parametrize(
    ("status", "kind", "words", "expected"),
    [
        (422, "execution", "query processing would load too many samples into memory", SourceRefused),
        (422, "execution", "found duplicate series", SourceUnavailable),
        (503, "timeout", "query timed out in expression evaluation", SourceUnavailable),
        (503, "unavailable", "TSDB not ready", SourceUnavailable),
        (500, "internal", "cannot read block", SourceUnavailable),
        (429, "too_many_requests", "limit of queries reached", SourceUnavailable),
        (404, "not_found", "no such tenant", SourceRefused),
    ],
)
def test_errors_carry_the_servers_words(
    stub: Stub, status: int, kind: str, words: str, expected: type[Exception]
) -> None:
    stub.answer = lambda _: Answer({"status": "error", "errorType": kind, "error": words}, status)
    with pytest.raises(expected, match=words):
        read(stub)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_passing_trouble_is_retried(stub: Stub, status: int) -> None:
    stub.answer = lambda _: Answer(EMPTY, 200 if len(stub.asked) > 2 else status)
    assert len(read(stub)) == 1
    assert [asked.method for asked in stub.asked] == ["POST"] * 3


def test_a_body_that_breaks_off_is_asked_for_again(stub: Stub) -> None:
    stub.answer = lambda _: Answer(EMPTY, claimed_length=10_000 if len(stub.asked) < 2 else None)
    assert len(read(stub)) == 1
    stub.answer = lambda _: Answer(EMPTY, claimed_length=10_000)
    with pytest.raises(SourceUnavailable, match="broke off its answer 3 times"):
        read(stub)


def test_a_slow_server_is_told_from_a_dead_one(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.extract.prometheus._READ_SLACK_S", -0.9)
    stub.answer = lambda _: Answer(EMPTY, delay_s=0.4)
    with pytest.raises(SourceUnavailable, match="did not answer within 1 s"):
        read(stub, timeout_s=1)
    with pytest.raises(SourceUnavailable, match=r"could not be reached \(.*Connection refused\)"):
        read(f"http://127.0.0.1:{free_port()}")


def number(value: float) -> str:
    """As Prometheus writes it."""
    return {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}.get(repr(value), repr(value))


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 4_000_000_000_000), st.floats(width=64)), min_size=1, max_size=5), max_size=5
    )
)
def test_samples_are_what_was_sent(sent: list[list[tuple[int, float]]]) -> None:
    answer = [{"metric": {}, "values": [[at / 1000, number(value)] for at, value in one]} for one in sent]
    decoded = samples(_series(answer))
    assert decoded.counts.tolist() == [len(one) for one in sent]
    assert decoded.at_ms.tolist() == [at for one in sent for at, _ in one]
    np.testing.assert_array_equal(decoded.values, [value for one in sent for _, value in one])


def test_samples_of_instant_vectors_and_of_unreadable_values() -> None:
    decoded = samples(_series([{"metric": {}, "value": [1.5, "x"]}, {"metric": {}, "value": [2, "7"]}]))
    assert (decoded.counts.tolist(), decoded.at_ms.tolist()) == ([1, 1], [1500, 2000])
    np.testing.assert_array_equal(decoded.values, [float("nan"), 7])


def _series(answer: list[dict[str, Any]]) -> list[Series]:
    return msgspec.json.decode(json.dumps(answer).encode(), type=list[Series])
