"""Lists of one cluster's Kubernetes API, in pages, decoded into what is kept of each object.

The real client brings configuration, authentication and TLS; bodies are read raw. Timeouts everywhere, retries with
backoff and jitter, expired lists started again, partial answers refused.
"""

import logging
import random
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, Self, TypeVar

import msgspec
import urllib3
import yaml
from kubernetes import client
from kubernetes import config as kubernetes_config
from kubernetes.config.config_exception import ConfigException

from pipelines.extract.kubernetes_objects import Kept, Object
from schemas.config import Cluster, KubernetesConfig
from schemas.errors import ConfigError, SourceRefused, SourceUnavailable

PAGE = 500
TIMEOUTS_S = (10, 60)  # to connect, to wait for bytes
ATTEMPTS = 4
LONGEST_PAUSE_S = 30.0
RESTARTS_AFTER_EXPIRY = 3
CLAIM_VERSIONS = ("v1", "v1beta2", "v1beta1")  # of resource.k8s.io, the newest first
_RETRIED = frozenset({429, 500, 502, 503, 504})
_log = logging.getLogger(__name__)
_K = TypeVar("_K", bound=Object)
_T = TypeVar("_T")


class _Expired(Exception):
    """A continued list was too old (410 Gone): it starts again."""


class _Absent(Exception):
    """The API server does not serve this path."""


class _ListMetadata(Kept):
    continue_: str = msgspec.field(default="", name="continue")
    remaining_item_count: int | None = None


class _Version(Kept):
    version: str = ""


class _Group(Kept):
    versions: list[_Version] = msgspec.field(default_factory=list)


class KubernetesApi:
    """Lists of one cluster, through the real client's configuration and transport."""

    def __init__(self, cluster: Cluster) -> None:
        connection = cluster.kubernetes
        if connection is None:
            raise ConfigError(cluster.name, ["no `kubernetes:` section: there is no API to read"])
        self._client = _client(cluster.name, connection)
        self._host = str(self._client.configuration.host)
        self._name = f"{cluster.name}: the Kubernetes API at {self._host}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.rest_client.pool_manager.clear()

    def objects(
        self, api_version: str, plural: str, kind: type[_K], wanted: Callable[[_K], bool] = lambda _: True
    ) -> list[_K]:
        """The wanted objects of one list; the others are dropped page by page. An expired list starts again.

        A group other than the core that the server does not have has no objects.
        """
        core = "/" not in api_version
        path = f"/{'api' if core else 'apis'}/{api_version}/{plural}"
        for _ in range(RESTARTS_AFTER_EXPIRY + 1):
            try:
                return [each for page in self._pages(path, kind) for each in page if wanted(each)]
            except _Expired:
                continue
            except _Absent:
                if core:
                    raise SourceRefused(f"{self._name} does not serve {path}; check `kubernetes:`") from None
                _log.warning("%s does not serve %s: taken as none", self._name, path)
                return []
        raise SourceUnavailable(
            f"{self._name}: the list {path} expired {RESTARTS_AFTER_EXPIRY + 1} times before its end (410); try again"
        )

    def claims_version(self) -> str | None:
        """API version of resource.k8s.io, the newest that server and we know; None: no dynamic resources."""
        path = "/apis/resource.k8s.io"
        try:
            group = self._decoded(path, self._get(path, []), msgspec.json.Decoder(_Group))
        except _Absent:
            return None
        served = {each.version for each in group.versions}
        return next((f"resource.k8s.io/{version}" for version in CLAIM_VERSIONS if version in served), None)

    def _pages(self, path: str, kind: type[_K]) -> Iterator[list[_K]]:
        # `items` has no default: an answer without it is no list. Go writes an empty list as null.
        items: Any = list[kind] | None  # type: ignore[valid-type]
        page_type = msgspec.defstruct("Page", [("items", items), ("metadata", _ListMetadata)])
        decoder = msgspec.json.Decoder(page_type)
        parameters = [("limit", str(PAGE))]
        got = told = 0
        while True:
            page: Any = self._decoded(path, self._get(path, parameters), decoder)
            found: list[_K] = page.items or []
            yield found
            got += len(found)
            told = max(told, got + (page.metadata.remaining_item_count or 0))
            if not page.metadata.continue_:
                break
            following = [("limit", str(PAGE)), ("continue", page.metadata.continue_)]
            if following == parameters:
                raise SourceUnavailable(f"{self._name} gave one page of {path} again and again; try again")
            parameters = following
        if got < told:
            raise SourceUnavailable(f"{self._name} gave {got} of {told} objects of {path}; try again")

    def _decoded(self, path: str, body: bytes, decoder: msgspec.json.Decoder[_T]) -> _T:
        try:
            return decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise SourceUnavailable(f"{self._name} gave no Kubernetes answer to {path} ({error}); try again") from None

    def _get(self, path: str, parameters: list[tuple[str, str]]) -> bytes:
        """Body of a GET, with backoff and jitter on what may pass."""
        trouble, asked_pause_s = "", 0.0
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(max(asked_pause_s, 0.25 * 2**attempt * random.uniform(0.5, 1.5)))
            headers = {**self._client.default_headers, "Accept": "application/json"}
            try:
                # Not call_api: it decodes the body of every refusal as UTF-8, and fails on one that has none (TLS).
                self._client.update_params_for_auth(headers, [], ["BearerToken"])
                answer = self._client.rest_client.GET(
                    self._host + path, headers=headers, query_params=parameters,
                    _preload_content=False, _request_timeout=TIMEOUTS_S,
                )  # fmt: skip
                return bytes(answer.data)
            except client.ApiException as refused:
                status = int(refused.status or 0)
                if status not in _RETRIED:
                    self._raise_status(status, path, refused)
                trouble, asked_pause_s = f"HTTP {status} {_message(refused)}".rstrip(), _retry_after_s(refused)
            except (urllib3.exceptions.HTTPError, OSError) as error:
                trouble, asked_pause_s = _one_line(error), 0.0
        raise SourceUnavailable(f"{self._name} could not be asked for {path}: {trouble}; try again")

    def _raise_status(self, status: int, path: str, refused: client.ApiException) -> NoReturn:
        if status == 0:  # the client's way to say that TLS failed
            reason = str(refused.reason).partition("\n")[2]
            raise SourceRefused(f"{self._name}: TLS failed ({reason}); check `kubernetes.ca_file`")
        if status == 401:
            raise SourceRefused(f"{self._name} refused the credentials (401) for {path}; check `kubernetes:`")
        if status == 403:
            raise SourceRefused(
                f"{self._name} forbids {_permission(path)} (403); grant it as deploy/rbac.yaml does. "
                f"The server says: {_message(refused)}"
            )
        if status == 404:
            raise _Absent
        if status == 410:
            raise _Expired
        raise SourceRefused(f"{self._name} answered HTTP {status} to {path} ({_message(refused)}); check `kubernetes:`")


def _client(name: str, connection: KubernetesConfig) -> client.ApiClient:
    """A configured client. Raises ConfigError for what is not there."""
    if connection.ca_file is not None and not connection.ca_file.is_file():
        raise ConfigError(f"{name}: kubernetes.ca_file", [f"expected a PEM file; found none at {connection.ca_file}"])
    configuration = client.Configuration()
    try:
        if connection.in_cluster:
            way = "kubernetes.in_cluster: expected to run in a pod with a service-account token"
            kubernetes_config.load_incluster_config(client_configuration=configuration)
        elif connection.server is not None:
            way = "kubernetes.server"
            configuration.host = connection.server.rstrip("/")
            if connection.bearer_token is not None:
                # Read from a file or a variable, a token often brings the end of its line.
                token = connection.bearer_token.get_secret_value().strip()
                configuration.api_key = {"BearerToken": f"Bearer {token}"}
        else:
            file = str(connection.kubeconfig or "$KUBECONFIG or ~/.kube/config")
            way = f"kubernetes: expected the context {connection.context or '(current)'} in {file}"
            kubernetes_config.load_kube_config(
                config_file=str(connection.kubeconfig) if connection.kubeconfig else None,
                context=connection.context,
                client_configuration=configuration,
            )
    except (ConfigException, OSError, yaml.YAMLError, TypeError, ValueError) as error:
        # The last two: the client's words for a kubeconfig that is no mapping, or holds no base64.
        raise ConfigError(name, [f"{way}; found: {_one_line(error)}"]) from None
    for token in configuration.api_key.values():
        if not (token.isascii() and token.isprintable()):  # http.client would show it in its refusal
            raise ConfigError(name, [f"{way}: expected a token of one line of plain characters; found another"])
    if connection.ca_file is not None:
        configuration.ssl_ca_cert = str(connection.ca_file)
    if not connection.verify:  # a kubeconfig may say so too
        configuration.verify_ssl = False
    configuration.retries = False  # ours: the client's own repeat neither 429 nor 5xx
    return client.ApiClient(configuration)


def _permission(path: str) -> str:
    """The rule of a ClusterRole that a path needs."""
    *place, last = path.strip("/").split("/")
    if len(place) == 1:
        return f"`get` on {path}: bind the ClusterRole system:discovery"
    group = place[1] if place[0] == "apis" else ""
    return f'`list` on `{last}` (apiGroup "{group}")'


def _retry_after_s(refused: client.ApiException) -> float:
    """The pause that the server asked for in whole seconds, as Kubernetes does; 0 where it did not."""
    told = str((refused.headers or {}).get("Retry-After", ""))
    return min(float(told), LONGEST_PAUSE_S) if told.isdecimal() else 0.0


def _message(refused: client.ApiException) -> str:
    """What the server says, of a Status or of anything a proxy puts in its place."""
    body: bytes = refused.body or b""
    try:
        return msgspec.json.decode(body, type=_Status).message
    except (msgspec.DecodeError, UnicodeDecodeError):
        return " ".join(body[:120].decode(errors="replace").split())


class _Status(Kept):
    message: str = ""


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
