"""What a simulated cluster is made of, in plain terms: nodes, cards, pods, and how they are scraped."""

import dataclasses
import datetime as dt

Instant = dt.datetime
Window = tuple[Instant, Instant]
H100 = "NVIDIA H100 80GB HBM3"
HOUR = dt.timedelta(hours=1)
NO_TIME = dt.timedelta()


@dataclasses.dataclass(frozen=True)
class Node:
    """A node object: when it was there, how many GPUs it reported from when on, when its exporter was silent."""

    name: str
    created: Instant
    gone: Instant | None = None
    capacity: tuple[tuple[Instant, int], ...] = ()
    labels: dict[str, str] = dataclasses.field(default_factory=dict)
    relabels: tuple[tuple[Instant, dict[str, str]], ...] = ()  # other labels from then on
    exporter_gaps: tuple[Window, ...] = ()
    allocatable: tuple[tuple[Instant, int], ...] | None = None  # default: as capacity
    not_ready: tuple[Window, ...] = ()  # the kubelet was silent; the object stays
    exporter_restarts: tuple[Instant, ...] = ()  # from then on another exporter pod
    scrape_phase: dt.timedelta = NO_TIME  # of its exporter, beside the world's

    @property
    def uid(self) -> str:
        """UID of the object; a successor under the same name has another."""
        return f"node-{self.name}-{self.created:%Y%m%d%H%M%S}"

    def labels_at(self, at: Instant) -> dict[str, str]:
        """Its labels at an instant."""
        return [labels for since, labels in ((self.created, self.labels), *self.relabels) if since <= at][-1]

    @property
    def system_uuid(self) -> str:
        """What the machine says of itself; no source gives both ids."""
        return f"machine-{self.name}-{self.created:%Y%m%d%H%M%S}"


@dataclasses.dataclass(frozen=True)
class Card:
    """A GPU on a node, for as long as the node's exporter shows it: samples from `seen_from` to `seen_to`, included.

    A GPU that moves is one Card on each node; cards of other UUIDs are another Card each.
    """

    uuid: str
    node: str
    seen_from: Instant
    seen_to: Instant
    model: str = H100
    watts: int = 300
    owned_from: Instant | None = None  # by ACCOUNTING 1; default: while its node is there
    owned_to: Instant | None = None
    xids: tuple[tuple[Instant, int], ...] = ()  # the exporter repeats the last one
    driver_reloads: tuple[Instant, ...] = ()  # the energy counter starts again


@dataclasses.dataclass(frozen=True, eq=False)
class Pod:
    """A pod: what it asks for, which cards it really gets, when it ran, what it carries."""

    namespace: str
    name: str
    node: str
    cards: tuple[str, ...]
    scheduled: Instant | None  # None: it waits until the end
    finished: Instant | None = None
    phase_at_end: str = "Succeeded"  # or Failed; Evicted is a Failed pod without container statuses
    evicted: bool = False
    running_from: Instant | None = None  # image pull and init containers until then
    object_gone: Instant | None = None  # when the API no longer lists it
    named_from: Instant | None = None  # when the exporter starts to name it; default: when it runs
    named_to: Instant | None = None  # stale labels: until when the exporter names it; default: until it finished
    containers: tuple[int, ...] | None = None  # GPUs per container; default: one container with all
    init_containers: tuple[tuple[int, bool], ...] = ()  # (GPUs, is a sidecar)
    labels: dict[str, str] = dataclasses.field(default_factory=dict)
    owner: tuple[str, str] | None = None  # ("Job", name) or ("Deployment", name), the latter through a ReplicaSet
    engine: float = 0.5
    memory_mib: int = 20_000
    created: Instant | None = None  # default: when it was scheduled
    deletion_asked: Instant | None = None  # its deletionTimestamp is `grace` later
    grace: dt.timedelta = dt.timedelta(seconds=30)
    relabels: tuple[tuple[Instant, dict[str, str]], ...] = ()  # other labels from then on
    named_cards: tuple[str, ...] | None = None  # those that the exporter names it beside; default: all
    wobble: float = 0.0  # the engine swings by this part of itself, over ten minutes
    tensor_per_engine: float = 0.5
    sm_per_engine: float = 0.8
    dram_per_engine: float = 0.25
    util_percent: int | None = None  # DCGM_FI_DEV_GPU_UTIL; default: as the engine
    watts: int | None = None  # drawn per card while it runs; default: what the card draws anyway

    @property
    def since(self) -> Instant:
        """When the object was created."""
        since = self.created or self.scheduled
        if since is None:
            raise ValueError(f"pod {self.namespace}/{self.name}: expected `created` or `scheduled`, found neither")
        return since

    @property
    def uid(self) -> str:
        """UID of the object: a pod of the same name that starts later has another."""
        return f"pod-{self.namespace}-{self.name}-{self.since:%Y%m%d%H%M%S}"

    @property
    def asked(self) -> tuple[int, ...]:
        """GPUs per container."""
        return self.containers if self.containers is not None else (len(self.cards),)

    @property
    def stopped(self) -> Instant | None:
        """When it let its cards go; None: it did not."""
        ends = [end for end in (self.finished, self.object_gone) if end]
        return min(ends, default=None)

    @property
    def deletion(self) -> Instant | None:
        """Its deletionTimestamp: when it is to be gone at the latest."""
        return self.deletion_asked + self.grace if self.deletion_asked else None

    def labels_at(self, at: Instant) -> dict[str, str]:
        """Its labels at an instant."""
        return [labels for since, labels in ((self.since, self.labels), *self.relabels) if since <= at][-1]

    @property
    def runs_from(self) -> Instant:
        """When its containers run: images pulled, init containers done."""
        return self.running_from or self.scheduled or self.since

    @property
    def container_names(self) -> list[str]:
        """Names of its containers."""
        return ["main", *(f"c{i}" for i in range(1, len(self.asked)))]

    @property
    def controller(self) -> tuple[str, str] | None:
        """Kind and name of what owns it: a Deployment through its ReplicaSet."""
        if self.owner is None:
            return None
        kind, name = self.owner
        return ("ReplicaSet", f"{name}-6b7f9") if kind == "Deployment" else (kind, name)


@dataclasses.dataclass(frozen=True)
class World:
    """A cluster from `start` to `end`. Scrapes happen every `interval`; each Prometheus replica has its own phase.

    Where the scrape target of an exporter is a pod, Prometheus has its pod, namespace and container to store too:
    with honor_labels the workload's win, and an idle card shows the exporter (`idle_shows_exporter`, dcgm-exporter
    #27); without, the workload's are exported_*.
    """

    cluster: str
    start: Instant
    end: Instant
    nodes: tuple[Node, ...] = ()
    cards: tuple[Card, ...] = ()
    pods: tuple[Pod, ...] = ()
    interval: dt.timedelta = dt.timedelta(seconds=30)
    phase: dt.timedelta = NO_TIME
    replicas: tuple[tuple[str, dt.timedelta], ...] = (("", NO_TIME),)  # prometheus_replica, phase
    with_kube_state: bool = True
    with_pod_labels: bool = True  # kube-state-metrics' label allowlist
    kube_state_gaps: tuple[Window, ...] = ()
    new_names_from: Instant | None = None  # exporter 4.9.0: other names, units and `hostname`
    honor_labels: bool = True
    idle_shows_exporter: bool = False
    exporters: tuple[tuple[str, dt.timedelta], ...] = (("dcgm-exporter", NO_TIME),)  # job, phase; none: no DCGM series
    lowercase_hostname: bool = False  # exporter 4.6.0-4.8.3 and later
    virtual_gpus: bool = False  # KUBERNETES_VIRTUAL_GPUS: a copy per pod and replica, with its `vgpu` label
    per_process: bool = False  # exporter 4.8.2 and later, with virtual_gpus: GPU_UTIL and FB_USED are each pod's own
    with_pod_uid: bool = False  # DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID
    kube_state_phase: dt.timedelta = NO_TIME
    kube_state_honor_labels: bool = True
    namespace_labels: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what cannot be: a pod on a card that is not on its node, fractions of seconds in Kubernetes."""
        there = {(card.node, card.uuid) for card in self.cards}
        for pod in self.pods:
            name = f"{self.cluster}: pod {pod.namespace}/{pod.name}"
            if missing := [card for card in pod.cards if (pod.node, card) not in there]:
                raise ValueError(f"{name} holds {', '.join(missing)}, which node {pod.node} does not have")
            times = (pod.since, pod.scheduled, pod.running_from, pod.finished, pod.deletion)
            if any(time.microsecond for time in times if time):
                raise ValueError(f"{name}: Kubernetes tells times in whole seconds")


def milliseconds(instant: Instant) -> int:
    return (instant - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(milliseconds=1)


def milliseconds_or(instant: Instant | None, default: Instant, more: int = 0) -> int:
    return milliseconds(instant) if instant else milliseconds(default) + more
