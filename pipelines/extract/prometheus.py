"""The one client of Prometheus and everything that speaks its HTTP API: auth, retry, tiles, typed decode.

A tile is one instant query of a range selector (`selector[3600s]` at the end of the hour): true samples, not the
resampled points of query_range. What the series mean is not known here: that is telemetry and kube_state.
"""

import random
import re
import threading
import time
from base64 import b64encode
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, NoReturn, Self, TypeVar

import msgspec
import requests
from prometheus_api_client import PrometheusConnect
from pydantic import SecretStr
from requests.auth import AuthBase
from urllib3.util.retry import Retry

from pipelines.extract.promql import equals, one_of
from pipelines.extract.samples import Series
from schemas.config import PrometheusConfig
from schemas.errors import ChargebackError, ConfigError, SourceRefused, SourceUnavailable

# What makes an answer whole, by the relative that knows the parameter; the others ignore it.
_WHOLE_ANSWERS = {
    "partial_response": "false",  # Thanos: a store that is away is an error, not a smaller sum
    "max_source_resolution": "0s",  # Thanos: raw samples, never the 5m or 1h downsampled blocks
    "dedup": "true",  # Thanos
    "deny_partial_response": "1",  # VictoriaMetrics cluster
}
_RETRIED_STATUS = (429, 500, 502, 503, 504)
_BODY_ATTEMPTS = 3
_CONNECT_TIMEOUT_S = 10.0
_READ_SLACK_S = 5.0
# A server that trickles bytes never runs into the read timeout: bound the whole answer too.
_TRANSFER_TIMEOUTS = 5
_CHUNK_BYTES = 1 << 18
_WORDS_LENGTH = 300

_T = TypeVar("_T")


class _Data(msgspec.Struct):
    result: list[Series]


class _Envelope(msgspec.Struct, Generic[_T]):
    status: str
    data: _T | None = None
    error: str = ""
    errorType: str = ""
    warnings: list[str] | None = None
    isPartial: bool = False


@dataclass(frozen=True, slots=True)
class TileRequest:
    """One tile to read: a PromQL query, its evaluation time, and what an error message calls it."""

    subject: str
    query: str
    at_ms: int


class _BearerAuth(AuthBase):
    """As an auth object, not a header: else requests lets a ~/.netrc entry for the host replace it."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request


class _Stopped(Exception):
    """The reader has gone: nobody waits for this body."""


class PrometheusSource:
    """A cluster's Prometheus. Use as a context manager, or call `close()`.

    Raises (every method that reads): SourceRefused when trying again will not help, SourceUnavailable when it may.
    Messages carry the server's own words, never a secret.
    """

    def __init__(self, config: PrometheusConfig, cluster_name: str, *, backoff_s: float = 0.5) -> None:
        """Nothing is contacted yet.

        Args:
            config: the cluster's `prometheus` section.
            cluster_name: for messages.
            backoff_s: first pause before a retry; it doubles, with jitter.
        """
        self.cluster = cluster_name
        self.url = config.url.rstrip("/")
        self.replica_label = config.replica_label
        self._config = config
        self._backoff_s = backoff_s
        self._secrets = _secrets(config)
        retry = Retry(
            total=4,
            connect=4,
            read=1,  # a server that let one whole timeout pass is slow, not unlucky
            status=4,
            status_forcelist=_RETRIED_STATUS,
            allowed_methods=None,  # POST too: a query changes nothing
            backoff_factor=backoff_s,
            backoff_jitter=backoff_s,
            backoff_max=20,
            retry_after_max=30,
            raise_on_status=False,  # so that the last answer's words reach the user
        )
        self._session = requests.Session()
        self._connect = PrometheusConnect(
            url=self.url,
            headers={
                **{name: _plain(cluster_name, f"headers.{name}", value) for name, value in config.headers.items()},
                # On a near network compressing costs the server more than the transfer saves.
                "Accept-Encoding": "identity",
            },
            auth=_auth(cluster_name, config),
            session=self._session,
            retry=retry,
            timeout=config.timeout_s,
            method="POST",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._connect.close()

    def selector(self, names: Sequence[str], *matchers: str) -> str:
        """Instant selector of metrics by name, the configured matchers added.

        Args:
            names: metric names, matched exactly.
            matchers: further matchers in PromQL, from `equals` or `one_of`.
        """
        configured = (equals(label, value) for label, value in sorted(self._config.matchers.items()))
        name = equals("__name__", names[0]) if len(names) == 1 else one_of("__name__", names)
        return "{" + ",".join((name, *matchers, *configured)) + "}"

    def label_values(self, label: str, selectors: Sequence[str], start_ms: int, end_ms: int) -> list[str]:
        """Values of a label among the series that any selector matches between two instants, sorted."""
        parameters = [("match[]", selector) for selector in selectors]
        parameters += [("start", _seconds(start_ms)), ("end", _seconds(end_ms)), *_WHOLE_ANSWERS.items()]
        body = self._body("GET", f"/api/v1/label/{label}/values", parameters, threading.Event())
        return sorted(self._decoded(body, list[str]))

    def tiles(self, requests_: Iterable[TileRequest]) -> Generator[tuple[TileRequest, list[Series]]]:
        """Answers in the order of the requests, read ahead by `concurrency` threads.

        At most concurrency + 1 bodies are in memory or on their way. The first failure, named by its tile, cancels
        the rest; so does closing the iterator.
        """
        pending = iter(requests_)
        ahead: deque[tuple[TileRequest, Future[bytes]]] = deque()
        stop = threading.Event()
        pool = ThreadPoolExecutor(self._config.concurrency, thread_name_prefix="prometheus")

        def submit_next() -> None:
            request = next(pending, None)
            if request is not None:
                ahead.append((request, pool.submit(self._query, request, stop)))

        try:
            for _ in range(self._config.concurrency + 1):
                submit_next()
            while ahead:
                request, answer = ahead.popleft()
                try:
                    data = self._decoded(answer.result(), _Data)
                except ChargebackError as error:
                    raise type(error)(f"{request.subject}: {error}") from error
                submit_next()
                yield request, [one for one in data.result if one.size > len("[]")]
                del answer, data  # the body goes as soon as the caller is done with it
        finally:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)

    def _query(self, request: TileRequest, stop: threading.Event) -> bytes:
        parameters = [
            ("query", request.query),
            ("time", _seconds(request.at_ms)),
            ("timeout", f"{self._config.timeout_s}s"),
            *_WHOLE_ANSWERS.items(),
        ]
        return self._body("POST", "/api/v1/query", parameters, stop)

    def _body(self, method: str, path: str, parameters: list[tuple[str, str]], stop: threading.Event) -> bytes:
        """The body of an answer. The session retries up to its headers; a body that breaks off is asked for again."""
        attempt = 1
        while True:
            try:
                return self._attempt(method, path, parameters, stop)
            except requests.exceptions.ChunkedEncodingError as error:
                if attempt == _BODY_ATTEMPTS:
                    reason = self._clean(_root_words(error))
                    raise SourceUnavailable(
                        f"{self._name} broke off its answer {attempt} times ({reason}); try again"
                    ) from error
            time.sleep(self._backoff_s * (2**attempt + random.random()))
            attempt += 1

    def _attempt(self, method: str, path: str, parameters: list[tuple[str, str]], stop: threading.Event) -> bytes:
        if stop.is_set():
            raise _Stopped
        config = self._config
        deadline = time.monotonic() + _TRANSFER_TIMEOUTS * config.timeout_s
        try:
            response = self._session.request(
                method,
                self._connect.url + path,
                params=parameters if method == "GET" else None,
                data=parameters if method == "POST" else None,
                headers=self._connect.headers,
                auth=self._connect.auth,
                # Per request: a session-wide setting loses against REQUESTS_CA_BUNDLE.
                verify=str(config.ca_file) if config.ca_file else config.verify,
                timeout=(min(_CONNECT_TIMEOUT_S, config.timeout_s), config.timeout_s + _READ_SLACK_S),
                stream=True,
            )
            with closing(response):
                chunks = []
                for chunk in response.iter_content(_CHUNK_BYTES):
                    if stop.is_set():
                        raise _Stopped
                    if time.monotonic() > deadline:
                        raise requests.exceptions.ReadTimeout
                    chunks.append(chunk)
                body = b"".join(chunks)
        except requests.exceptions.ChunkedEncodingError:
            raise
        except requests.exceptions.RequestException as error:
            self._raise_unreachable(error)
        if response.status_code != requests.codes.ok:
            self._raise_status(response.status_code, body)
        return body

    def _decoded(self, body: bytes, kind: type[_T]) -> _T:
        """The `data` of a whole, successful answer."""
        try:
            envelope = msgspec.json.decode(body, type=_Envelope[kind])  # type: ignore[valid-type]
        except msgspec.DecodeError as error:
            raise SourceRefused(f"{self._name} {_not_the_api(body)}; check `prometheus.url`") from error
        if envelope.status != "success" or envelope.data is None:
            self._raise_error(envelope.error, envelope.errorType)
        if envelope.isPartial:
            raise SourceUnavailable(f"{self._name} gave a partial answer: a part of it could not be reached")
        # `infos` (rate() of a gauge, say) are harmless and not read; before Prometheus 3 they came among the warnings.
        warnings = [words for words in envelope.warnings or () if not words.startswith("PromQL info")]
        if warnings:
            raise SourceUnavailable(f"{self._name} answered with a warning: {self._clean(warnings[0])}")
        return envelope.data

    def _raise_unreachable(self, error: requests.exceptions.RequestException) -> NoReturn:
        reason = self._clean(_root_words(error))
        if isinstance(error, requests.exceptions.SSLError):
            raise SourceRefused(f"{self._name}: TLS failed ({reason}); check `prometheus.ca_file`") from error
        if isinstance(error, requests.exceptions.Timeout) or "timed out" in reason:
            raise SourceUnavailable(
                f"{self._name} did not answer within {self._config.timeout_s} s; try again, or raise"
                " `prometheus.timeout_s`"
            ) from error
        if isinstance(error, (requests.exceptions.ConnectionError, requests.exceptions.RetryError)):
            raise SourceUnavailable(f"{self._name} could not be reached ({reason}); try again") from error
        raise SourceRefused(f"{self._name} could not be asked ({reason}); check `prometheus.url`") from error

    def _raise_status(self, status: int, body: bytes) -> NoReturn:
        if status in (401, 403):
            raise SourceRefused(
                f"credentials refused by {self._name} (HTTP {status}); check bearer_token, basic_auth and headers"
                " under `prometheus`"
            )
        try:
            envelope = msgspec.json.decode(body, type=_Envelope[msgspec.Raw])
        except msgspec.DecodeError:
            # An error page of something in between: only the status speaks.
            words = _not_the_api(body) if _is_html(body) else self._clean(body.decode(errors="replace"))
            kind = SourceUnavailable if status in _RETRIED_STATUS else SourceRefused
            raise kind(f"{self._name} answered HTTP {status} ({words}); check `prometheus.url`") from None
        self._raise_error(envelope.error, envelope.errorType, status)

    def _raise_error(self, error: str, kind: str, status: int = requests.codes.ok) -> NoReturn:
        words = f"{kind or f'HTTP {status}'}: {self._clean(error)}"
        if kind == "execution" and re.search("too many samples|exceed|maximum|limit", error):
            raise SourceRefused(f"{self._name} refused a query as too large ({words}); raise its limits")
        if kind in ("bad_data", "not_found") or status in (400, 404, 405):
            raise SourceRefused(f"{self._name} did not understand a query ({words}); check `prometheus`")
        raise SourceUnavailable(f"{self._name} could not answer ({words}); try again")

    @property
    def _name(self) -> str:
        return f"Prometheus of cluster {self.cluster} ({self.url})"

    def _clean(self, words: str) -> str:
        """Foreign words for a message: one line, bounded, without any secret of ours that a server may echo."""
        for secret in self._secrets:
            words = words.replace(secret, "***")
        words = " ".join(words.split())
        return words if len(words) <= _WORDS_LENGTH else words[:_WORDS_LENGTH] + "…"


def _seconds(at_ms: int) -> str:
    return f"{at_ms // 1000}.{at_ms % 1000:03d}"


def _auth(cluster_name: str, config: PrometheusConfig) -> AuthBase | tuple[bytes, bytes] | None:
    if config.bearer_token:
        return _BearerAuth(_plain(cluster_name, "bearer_token", config.bearer_token))
    if config.basic_auth:
        # As bytes: requests would take Latin-1.
        return config.basic_auth.username.encode(), config.basic_auth.password.get_secret_value().encode()
    return None


def _plain(cluster_name: str, field: str, secret: SecretStr) -> str:
    """A header's value. Checked here: requests would show what it refuses."""
    value = secret.get_secret_value().strip()  # read from a file or a variable, it often brings the end of its line
    if not (value.isascii() and value.isprintable()):
        problem = f"prometheus.{field}: expected one line of plain characters; found another"
        raise ConfigError(f"cluster {cluster_name}", [problem])
    return value


def _secrets(config: PrometheusConfig) -> list[str]:
    secrets = [value.get_secret_value() for value in config.headers.values()]
    if config.bearer_token:
        secrets.append(config.bearer_token.get_secret_value())
    if config.basic_auth:
        password = config.basic_auth.password.get_secret_value()
        secrets += [password, b64encode(f"{config.basic_auth.username}:{password}".encode()).decode()]
    return [secret.strip() for secret in secrets if secret.strip()]


def _root_words(error: BaseException) -> str:
    """The innermost cause: "Connection refused", not the pool, the path and three wrappers."""
    while True:
        inner = error.__cause__ or getattr(error, "reason", None) or (error.args[0] if error.args else None)
        if not isinstance(inner, BaseException):
            return str(error).rpartition(": ")[2] or type(error).__name__
        error = inner


def _is_html(body: bytes) -> bool:
    return body.lstrip()[:1] == b"<"


def _not_the_api(body: bytes) -> str:
    if _is_html(body):
        return "answered with a web page (a login page or a proxy?) instead of the Prometheus API"
    return "answered with something that is not the Prometheus API"
