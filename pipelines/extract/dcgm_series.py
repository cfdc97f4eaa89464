"""Who a DCGM series speaks of: its device, the workload named beside it, and the scrape that brought it.

One look at the labels of each distinct series; samples are not known here (see tile_reduction).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from schemas.metrics import Metric, label_aliases

Indices = npt.NDArray[np.int64]
_LABELS = msgspec.json.Decoder(dict[str, str])
_WORKLOAD_FIELDS = ("namespace", "pod", "pod_uid", "container", "replica")


class Device(NamedTuple):
    """The card, and the instance of it under MIG (empty: the whole card)."""

    device_id: str
    gpu_instance_id: str


class Workload(NamedTuple):
    """The pod that an exporter names beside a device; what it does not give is empty."""

    namespace: str
    pod: str
    pod_uid: str
    container: str
    replica: str


class Place(NamedTuple):
    """Where a device is, and what it is, as the exporter gives it."""

    node: str
    model: str
    mig_profile: str | None


@dataclass(frozen=True, slots=True)
class DcgmSeries:
    """One series, read. `device.device_id` is empty where no label names the device."""

    metric_name: str
    device: Device
    place: Place
    source: str
    workload: Workload | None


class Identity:
    """How this Prometheus labels DCGM series: the aliases, and which jobs name their workloads apart."""

    def __init__(self, apart_jobs: Collection[str] = (), replica_label: str | None = None) -> None:
        """
        Args:
            apart_jobs: jobs in which the workload has labels of its own (exported_pod, pod_name), so that `pod`,
                `namespace` and `container` are the exporter's.
            replica_label: the configured label of Prometheus replicas.
        """
        self._aliases = label_aliases()
        self._apart_jobs = frozenset(apart_jobs)
        self._source_labels = self._aliases["source"] + ((replica_label,) if replica_label else ())

    def read(self, labels: dict[str, str]) -> DcgmSeries:
        """One series out of its labels."""
        apart = labels.get("job", "") in self._apart_jobs or not APART_POD_LABELS.isdisjoint(labels)
        workload = self._workload(labels, apart)
        source = {label: labels[label] for label in self._source_labels if label in labels}
        if apart and "pod" in labels:
            source["pod"] = labels["pod"]
        instance_host = labels.get("instance", "").rpartition(":")[0]
        return DcgmSeries(
            metric_name=labels.get("__name__", ""),
            device=Device(self._first(labels, "device_id"), self._first(labels, "gpu_instance_id")),
            place=Place(
                self._first(labels, "node") or instance_host,
                self._first(labels, "model"),
                self._first(labels, "mig_profile") or None,
            ),
            source=",".join(f"{label}={value}" for label, value in source.items()),
            workload=workload,
        )

    def _workload(self, labels: dict[str, str], apart: bool) -> Workload | None:
        if apart:
            labels = {label: value for label, value in labels.items() if label not in _TARGET_LABELS}
        workload = Workload(*(self._first(labels, field) for field in _WORKLOAD_FIELDS))
        return None if not workload.pod or _is_exporter(workload, labels) else workload

    def _first(self, labels: dict[str, str], field: str) -> str:
        return next((labels[label] for label in self._aliases[field] if labels.get(label)), "")


# Labels of the workload that cannot be the scrape target's: honorLabels false, and --use-old-namespace.
APART_POD_LABELS = frozenset(("exported_pod", "pod_name"))
_TARGET_LABELS = frozenset(("pod", "namespace", "container"))


def _is_exporter(workload: Workload, labels: dict[str, str]) -> bool:
    """Whether the "workload" is the exporter itself.

    dcgm-exporter #27, #85: with honorLabels true an idle device gets the pod of the scrape target.
    """
    service, job = labels.get("service"), labels.get("job")
    return (
        "dcgm-exporter" in workload.container
        or "dcgm-exporter" in workload.pod
        or workload.container in (service, job)
        or (service is not None and workload.pod.startswith(f"{service}-"))
    )


class SeriesIndex(NamedTuple):
    """The series of one tile as indices into the lists of a `SeriesBook`, one entry per series.

    device: -1 where no label names it; workload: -1 where none is named; the others are never -1.
    """

    device: Indices
    node: Indices
    place: Indices
    source: Indices
    name: Indices
    workload: Indices

    def where(self, series: Indices) -> "SeriesIndex":
        """Some of the series."""
        return SeriesIndex._make(column[series] for column in self)


class SeriesBook:
    """The distinct series of one metric, each looked at once however many tiles it appears in."""

    def __init__(self, metric: Metric, identity: Identity) -> None:
        self.metric = metric
        self.devices: dict[Device, int] = {}
        self.nodes: dict[str, int] = {}
        self.places: dict[Place, int] = {}
        self.sources: dict[str, int] = {}
        self.workloads: dict[Workload, int] = {}
        self._identity = identity
        self._names = {name.dcgm_name: rank for rank, name in enumerate(metric.names)}
        self._known: dict[bytes, int] = {}
        self._rows: list[tuple[int, ...]] = []

    def look_up(self, labels: Sequence[bytes]) -> SeriesIndex:
        """Indices of series by their labels (JSON objects, as read)."""
        known = self._known
        rows = [known.get(one, -1) for one in labels]
        if -1 in rows:
            rows = [self._add(one) if row < 0 else row for one, row in zip(labels, rows, strict=True)]
        table = np.array([self._rows[row] for row in rows], dtype=np.int64).reshape(-1, len(SeriesIndex._fields))
        return SeriesIndex._make(np.ascontiguousarray(column) for column in table.T)

    def _add(self, labels: bytes) -> int:
        series = self._identity.read(_LABELS.decode(labels))
        row = (
            self.devices.setdefault(series.device, len(self.devices)) if series.device.device_id else -1,
            self.nodes.setdefault(series.place.node, len(self.nodes)),
            self.places.setdefault(series.place, len(self.places)),
            self.sources.setdefault(series.source, len(self.sources)),
            self._names[series.metric_name],
            self.workloads.setdefault(series.workload, len(self.workloads)) if series.workload else -1,
        )
        self._rows.append(row)
        return self._known.setdefault(labels, len(self._rows) - 1)
