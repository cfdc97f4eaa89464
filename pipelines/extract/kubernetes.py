"""The Kubernetes inventory as it is now: pods that hold GPUs, nodes that have them, and what explains them.

The real client brings configuration, authentication and TLS; lists are read raw, in pages, and decoded into the few
fields that the ledger reads (docs/decisions/snapshots-keep-little.md). What several readings say together is in
`sightings`.
"""

import datetime as dt
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, TypeVar

import msgspec
import polars as pl
import urllib3
from kubernetes import client
from kubernetes import config as kubernetes_config
from kubernetes.config.config_exception import ConfigException

from schemas.config import Cluster, KubernetesConfig
from schemas.errors import ConfigError, SourceRefused, SourceUnavailable
from schemas.tables import SnapshotObject, polars_schema

PAGE = 500
TIMEOUTS_S = (10, 60)  # to connect, to read a page
ATTEMPTS = 4
RESTARTS_AFTER_EXPIRY = 3
GPU_PREFIX = "nvidia.com/"
_RETRIED = frozenset({429, 500, 502, 503, 504})


# --- what is kept of an object -------------------------------------------------------------------------------------


class _Kept(msgspec.Struct, rename="camel", omit_defaults=True):
    """Decoding into these drops every other field: environment, commands, volumes, annotations."""


class OwnerReference(_Kept):
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class Metadata(_Kept):
    name: str = ""
    uid: str = ""
    namespace: str | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] = {}
    owner_references: list[OwnerReference] = []


class Resources(_Kept):
    requests: dict[str, str | int | float] = {}
    limits: dict[str, str | int | float] = {}


class Container(_Kept):
    name: str = ""
    restart_policy: str | None = None
    resources: Resources = msgspec.field(default_factory=Resources)


class PodSpec(_Kept):
    node_name: str | None = None
    containers: list[Container] = []
    init_containers: list[Container] = []
    resource_claims: list[dict[str, Any]] = []


class Moment(_Kept):
    started_at: str | None = None
    finished_at: str | None = None
    reason: str | None = None


class ContainerState(_Kept):
    running: Moment | None = None
    terminated: Moment | None = None


class ContainerStatus(_Kept):
    name: str = ""
    state: ContainerState = msgspec.field(default_factory=ContainerState)


class Condition(_Kept):
    type: str = ""
    status: str = ""
    reason: str | None = None
    last_transition_time: str | None = None


class PodStatus(_Kept):
    phase: str = ""
    reason: str | None = None
    start_time: str | None = None
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    resource_claim_statuses: list[dict[str, Any]] | None = None
    extended_resource_claim_status: dict[str, Any] | None = None


class Pod(_Kept):
    metadata: Metadata
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)


class NodeInfo(_Kept):
    system_uuid: str = msgspec.field(default="", name="systemUUID")


class NodeSpec(_Kept):
    provider_id: str | None = msgspec.field(default=None, name="providerID")


class NodeStatus(_Kept):
    capacity: dict[str, str | int | float] = {}
    allocatable: dict[str, str | int | float] = {}
    node_info: NodeInfo = msgspec.field(default_factory=NodeInfo)


class Node(_Kept):
    metadata: Metadata
    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)


class MetadataOnly(_Kept):
    metadata: Metadata


class Whole(_Kept):
    """Claims and slices: small, and their shape differs by API version, so they are kept as they are."""

    metadata: Metadata
    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}


Kind = Pod | Node | MetadataOnly | Whole
_K = TypeVar("_K", Pod, Node, MetadataOnly, Whole)


class ListMetadata(_Kept):
    continue_: str = msgspec.field(default="", name="continue")


# --- reading -------------------------------------------------------------------------------------------------------


def take_snapshot(cluster: Cluster, *, now: dt.datetime | None = None) -> pl.DataFrame:
    """Read the inventory once.

    Kept are pods that ask for nvidia.com/* or carry claims, the nodes that have such devices or run such a pod, the
    namespaces and controllers of these pods, and all ResourceClaims and ResourceSlices.

    Returns:
        Rows of `SnapshotObject`, one per object, all observed at the instant the reading started.

    Raises:
        ConfigError: no kubeconfig, context or service-account token there.
        SourceRefused: credentials or permissions refused; names the verb and resource.
        SourceUnavailable: not reachable, too slow, or failing after retries.
    """
    observed_at = (now or dt.datetime.now(dt.UTC)).astimezone(dt.UTC)
    api = _Api(cluster)
    pods = [pod for pod in api.objects("/api/v1/pods", Pod) if _holds_gpus(pod)]
    on_nodes = {pod.spec.node_name for pod in pods}
    nodes = [node for node in api.objects("/api/v1/nodes", Node) if _has_gpus(node) or node.metadata.name in on_nodes]
    namespaces = {pod.metadata.namespace for pod in pods}
    owners = {reference.uid for pod in pods for reference in pod.metadata.owner_references}
    rows = [_row("Pod", "v1", pod) for pod in pods] + [_row("Node", "v1", node) for node in nodes]
    explaining = (
        ("Namespace", "/api/v1/namespaces", lambda metadata: metadata.name in namespaces),
        ("ReplicaSet", "/apis/apps/v1/replicasets", lambda metadata: metadata.uid in owners),
        ("Job", "/apis/batch/v1/jobs", lambda metadata: metadata.uid in owners),
    )
    wanted: Callable[[Metadata], bool]
    for kind, path, wanted in explaining:
        rows += [_row(kind, "v1", each) for each in api.objects(path, MetadataOnly) if wanted(each.metadata)]
    version = api.resource_version()
    if version is not None:
        for kind, plural in (("ResourceClaim", "resourceclaims"), ("ResourceSlice", "resourceslices")):
            path = f"/apis/resource.k8s.io/{version}/{plural}"
            rows += [_row(kind, f"resource.k8s.io/{version}", each) for each in api.objects(path, Whole)]
    frame = pl.DataFrame(
        [{"cluster": cluster.name, "observed_at": observed_at, **row} for row in rows],
        schema=polars_schema(SnapshotObject),
    )
    return frame.sort("kind", "uid")


def _holds_gpus(pod: Pod) -> bool:
    containers = (*pod.spec.containers, *pod.spec.init_containers)
    asks = any(
        name.startswith(GPU_PREFIX)
        for container in containers
        for name in (*container.resources.requests, *container.resources.limits)
    )
    return asks or bool(pod.spec.resource_claims)


def _has_gpus(node: Node) -> bool:
    named = {"nvidia.com/gpu.present", "nvidia.com/gpu.product"} & node.metadata.labels.keys()
    return bool(named) or any(name.startswith(GPU_PREFIX) for name in node.status.capacity)


def _row(kind: str, api_version: str, kept: Kind) -> dict[str, Any]:
    return {
        "kind": kind,
        "api_version": api_version,
        "uid": kept.metadata.uid,
        "namespace": kept.metadata.namespace,
        "name": kept.metadata.name,
        "object": msgspec.json.encode(kept, order="deterministic").decode(),
    }


class _Expired(Exception):
    """A continued list was too old (410 Gone): it starts again."""


class _Absent(Exception):
    """The API server does not serve this path."""


class _Api:
    """Lists of one cluster, through the real client's transport."""

    def __init__(self, cluster: Cluster) -> None:
        connection = cluster.kubernetes
        if connection is None:
            raise ConfigError(cluster.name, ["no `kubernetes:` section: there is no API to read"])
        self._name = cluster.name
        self._client = _client(cluster.name, connection)
        self._host: str = self._client.configuration.host

    def objects(self, path: str, kind: type[_K]) -> Sequence[_K]:
        """All objects of a path; a list that expired midway starts again."""
        for _ in range(RESTARTS_AFTER_EXPIRY + 1):
            try:
                return list(self._pages(path, kind))
            except _Expired:
                continue
            except _Absent:
                raise SourceUnavailable(f"{self._name}: {self._host} does not serve {path}") from None
        raise SourceUnavailable(
            f"{self._name}: listing {path} expired {RESTARTS_AFTER_EXPIRY + 1} times (410 Gone): the server is too slow"
        )

    def resource_version(self) -> str | None:
        """Version of resource.k8s.io that the server has, the newest that we know; None: no dynamic resources."""
        try:
            group = msgspec.json.decode(self._get("/apis/resource.k8s.io", []))
        except _Absent:
            return None
        served = {version["version"] for version in group.get("versions", [])}
        return next((version for version in ("v1", "v1beta2", "v1beta1") if version in served), None)

    def _pages(self, path: str, kind: type[_K]) -> Iterator[_K]:
        items: Any = list[kind]  # type: ignore[valid-type]
        page_type = msgspec.defstruct("Page", [("items", items), ("metadata", ListMetadata)], bases=(_Kept,))
        decoder = msgspec.json.Decoder(page_type)
        parameters = [("limit", str(PAGE))]
        while True:
            body = self._get(path, parameters)
            try:
                page: Any = decoder.decode(body)
            except msgspec.DecodeError as error:
                raise SourceUnavailable(f"{self._name}: {path} gave no Kubernetes list: {error}") from None
            yield from page.items
            if not page.metadata.continue_:
                return
            parameters = [("limit", str(PAGE)), ("continue", page.metadata.continue_)]

    def _get(self, path: str, parameters: list[tuple[str, str]]) -> bytes:
        """Body of a GET, with backoff and jitter on what may pass."""
        trouble = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(0.25 * 2**attempt * random.uniform(0.5, 1.5))
            try:
                answer = self._client.call_api(
                    path, "GET", query_params=parameters, auth_settings=["BearerToken"],
                    header_params={"Accept": "application/json"}, _preload_content=False, _request_timeout=TIMEOUTS_S,
                )  # fmt: skip
                body = bytes(answer.data)
                status = int(answer.status)
            except client.ApiException as refused:
                status, body = int(refused.status or 0), _bytes(refused.body)
            except (urllib3.exceptions.HTTPError, OSError) as error:
                trouble = _first_line(error)
                continue
            if status == 200:
                return body
            if status in _RETRIED:
                trouble = f"HTTP {status}: {_message(body)}"
                continue
            self._raise_status(status, path, body)
        raise SourceUnavailable(
            f"{self._name}: the Kubernetes API at {self._host} could not be read ({path}): {trouble}; try again"
        )

    def _raise_status(self, status: int, path: str, body: bytes) -> NoReturn:
        host = self._host
        if status == 401:
            raise SourceRefused(f"{self._name}: {host} refused the credentials (401); check `kubernetes:`")
        if status == 403:
            plural = path.rsplit("/", 1)[-1]
            raise SourceRefused(
                f"{self._name}: {host} forbids `list` on `{plural}` (403); grant it as deploy/rbac.yaml does. "
                f"The server says: {_message(body)}"
            )
        if status == 404:
            raise _Absent
        if status == 410:
            raise _Expired
        raise SourceUnavailable(f"{self._name}: {host} answered {status} to {path}: {_message(body)}")


def _client(name: str, connection: KubernetesConfig) -> client.ApiClient:
    """A configured client. Raises ConfigError for what is not there."""
    configuration = client.Configuration()
    try:
        if connection.in_cluster:
            kubernetes_config.load_incluster_config(client_configuration=configuration)
        elif connection.server is not None:
            configuration.host = connection.server.rstrip("/")
            if connection.bearer_token is not None:
                configuration.api_key = {"BearerToken": f"Bearer {connection.bearer_token.get_secret_value()}"}
        else:
            kubernetes_config.load_kube_config(
                config_file=str(connection.kubeconfig) if connection.kubeconfig else None,
                context=connection.context,
                client_configuration=configuration,
            )
    except (ConfigException, OSError) as error:
        raise ConfigError(f"{name}: kubernetes", [_first_line(error)]) from None
    if connection.ca_file is not None:
        configuration.ssl_ca_cert = str(connection.ca_file)
    configuration.verify_ssl = connection.verify
    configuration.retries = False
    return client.ApiClient(configuration)


def _message(body: bytes) -> str:
    try:
        decoded = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return body[:120].decode(errors="replace")
    return str(decoded.get("message", "")) if isinstance(decoded, dict) else ""


def _bytes(body: Any) -> bytes:
    return body if isinstance(body, bytes) else str(body or "").encode()


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
