"""What is kept of Kubernetes objects: the few fields that the ledger reads (decisions/snapshots-keep-little.md)."""

from typing import Any

import msgspec

GPU_PREFIX = "nvidia.com/"


class Kept(msgspec.Struct, rename="camel", omit_defaults=True):
    """Decoding into these drops every other field: environment, commands, volumes, annotations.

    kubectl's last-applied-configuration annotation repeats the whole object, environment included.
    """


class OwnerReference(Kept):
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class OwnedMetadata(Kept):
    name: str
    uid: str
    namespace: str | None = None
    owner_references: list[OwnerReference] = []


class Metadata(OwnedMetadata):
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] = {}


class Object(Kept):
    metadata: OwnedMetadata


class Labeled(Object):
    """Namespaces and Jobs: metadata only."""

    metadata: Metadata


Quantities = dict[str, str | int | float]


class Resources(Kept):
    requests: Quantities = {}
    limits: Quantities = {}

    def __post_init__(self) -> None:
        self.requests = {
            name: n for name, n in self.requests.items() if name in {"cpu", "memory"} or _is_extended(name)
        }
        self.limits = {name: n for name, n in self.limits.items() if _is_extended(name)}


class Container(Kept):
    name: str = ""
    restart_policy: str | None = None
    resources: Resources = msgspec.field(default_factory=Resources)


class PodClaim(Kept):
    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodSpec(Kept):
    node_name: str | None = None
    containers: list[Container] = []
    init_containers: list[Container] = []
    resource_claims: list[PodClaim] = []


class Moment(Kept):
    started_at: str | None = None
    finished_at: str | None = None
    reason: str | None = None


class ContainerState(Kept):
    running: Moment | None = None
    terminated: Moment | None = None


class ContainerStatus(Kept):
    name: str = ""
    state: ContainerState = msgspec.field(default_factory=ContainerState)


class Condition(Kept):
    type: str = ""
    status: str = ""
    reason: str | None = None
    last_transition_time: str | None = None


class RequestMapping(Kept):
    container_name: str = ""
    resource_name: str = ""
    request_name: str = ""


class ExtendedResourceClaim(Kept):
    resource_claim_name: str = ""
    request_mappings: list[RequestMapping] = []


class PodStatus(Kept):
    phase: str = ""
    reason: str | None = None
    start_time: str | None = None
    conditions: list[Condition] = []
    container_statuses: list[ContainerStatus] = []
    init_container_statuses: list[ContainerStatus] = []
    resource_claim_statuses: list[PodClaim] = []
    extended_resource_claim_status: ExtendedResourceClaim | None = None


class Pod(Object):
    metadata: Metadata
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)


class NodeInfo(Kept):
    system_uuid: str = msgspec.field(default="", name="systemUUID")


class NodeSpec(Kept):
    provider_id: str | None = msgspec.field(default=None, name="providerID")


class NodeStatus(Kept):
    capacity: Quantities = {}
    allocatable: Quantities = {}
    conditions: list[Condition] = []
    node_info: NodeInfo = msgspec.field(default_factory=NodeInfo)


class Node(Object):
    metadata: Metadata
    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)


class Whole(Object):
    """Claims and slices: small, and their shape differs by API version, so spec and status are kept as they are."""

    metadata: Metadata
    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}


def _is_extended(resource: str) -> bool:
    return "/" in resource
