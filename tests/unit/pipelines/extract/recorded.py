"""A Prometheus in memory for tests of extraction: series that the test writes down, answered as Prometheus 2 would."""

import datetime as dt
import json
import re
import threading
from collections.abc import Iterable, Sequence

from pipelines.extract.prometheus import PrometheusSource, TileRequest
from schemas.config import PrometheusConfig
from schemas.errors import SourceUnavailable

DAY = dt.date(2026, 11, 3)
LATER = dt.datetime(2026, 11, 5, tzinfo=dt.UTC)
MIDNIGHT = dt.datetime(2026, 11, 3, tzinfo=dt.UTC)

REQUESTS = "kube_pod_container_resource_requests"
INIT_REQUESTS = "kube_pod_init_container_resource_requests"
CAPACITY = "kube_node_status_capacity"

Sample = tuple[float, float | str]

_QUERY = re.compile(r"(?:(\w+_over_time)\()?\{(.*)\}\[(\d+)s\](\) == 1|\))?")
_MATCHER = re.compile(r'(\w+)(=~|!=|=)"((?:[^"\\]|\\.)*)"')


def at(clock: str) -> float:
    """Seconds since 1970 of a time of the day; `24:00:30` and `-1:59:30` are the days beside it."""
    hours, minutes, *seconds = clock.split(":")
    return MIDNIGHT.timestamp() + int(hours) * 3600 + int(minutes) * 60 + (float(seconds[0]) if seconds else 0)


def instant(clock: str) -> dt.datetime:
    """The same as a datetime."""
    return dt.datetime.fromtimestamp(at(clock), dt.UTC)


def every(seconds: float, first: str, last: str, value: float | str = 0.5) -> list[Sample]:
    """Samples from first to last, both included."""
    count = int((at(last) - at(first)) / seconds) + 1
    return [(at(first) + seconds * step, value) for step in range(count)]


class Recorded(PrometheusSource):
    """Answers the range selectors that extraction asks; `asked` keeps their subjects, `fails_at` makes one fail."""

    def __init__(self, *, replica_label: str | None = None) -> None:
        super().__init__(PrometheusConfig(url="http://prometheus:9090", replica_label=replica_label), "prod")
        self.series: list[tuple[dict[str, str], list[Sample]]] = []
        self.asked: list[str] = []
        self.fails_at: str | None = None

    def add(self, name: str, samples: Iterable[Sample], **labels: str) -> None:
        """Add a series; labels without a value are left out, as Prometheus does."""
        given = {"__name__": name} | labels
        self.series.append(({label: value for label, value in given.items() if value}, sorted(samples)))

    def label_values(self, label: str, selectors: Sequence[str], start_ms: int, end_ms: int) -> list[str]:
        return sorted(
            {
                labels[label]
                for labels, samples in self.series
                if label in labels
                and any(_matches(labels, selector) for selector in selectors)
                and any(start_ms <= moment * 1000 <= end_ms for moment, _ in samples)
            }
        )

    def _query(self, request: TileRequest, stop: threading.Event) -> bytes:
        self.asked.append(request.subject)
        if self.fails_at and self.fails_at in request.subject:
            raise SourceUnavailable("gone")
        found = _QUERY.fullmatch(request.query)
        assert found, request.query
        function, selector, seconds, only_one = found[1], found[2], int(found[3]), found[4] == ") == 1"
        end = request.at_ms / 1000
        result: list[dict[str, object]] = []
        for labels, samples in self.series:
            inside = [(moment, str(value)) for moment, value in samples if end - seconds <= moment <= end]
            if not inside or not _matches(labels, selector):
                continue
            if function is None:
                result.append({"metric": labels, "values": inside})
            elif function == "last_over_time":
                result.append({"metric": labels, "value": (end, inside[-1][1])})
            elif only_one and any(float(value) == 1 for _, value in inside):
                nameless = {label: value for label, value in labels.items() if label != "__name__"}
                result.append({"metric": nameless, "value": (end, "1")})
        return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}).encode()


class Dcgm(Recorded):
    """With the labels that every DCGM series of one device carries."""

    def add(self, name: str, samples: Iterable[Sample], **labels: str) -> None:
        device = {"UUID": "GPU-1", "Hostname": "node-a", "modelName": "NVIDIA H100"}
        super().add(name, samples, **device | {"job": "dcgm", "instance": "a:9400"} | labels)


class Cluster(Recorded):
    """kube-state-metrics of one cluster, scraped every 30 s; `target` are the labels of the scrape."""

    def __init__(self, **target: str) -> None:
        super().__init__()
        self.target = {"job": "kube-state-metrics", "instance": "ksm:8080"} | target

    def add_seen(self, name: str, first: str, last: str, value: float = 1, **labels: str) -> None:
        self.add(name, every(30, first, last, value), **self.target | labels)

    def pod(
        self,
        name: str,
        first: str,
        last: str,
        *,
        uid: str = "",
        gpus: int = 1,
        node: str = "node-a",
        scheduled: str = "",
        ended: str = "",
        phase: str = "Succeeded",
        seen_ended: str = "",
        owner: tuple[str, str] = ("Job", "train"),
        labels: dict[str, str] | None = None,
        **more: str,
    ) -> None:
        """A pod seen from first to last; from `seen_ended` on in a terminal phase."""
        identity = {"namespace": "research", "pod": name, "uid": uid or f"uid-{name}"} | more
        gpu = {"container": "main", "resource": "nvidia_com_gpu", "unit": "integer", "node": node}
        self.add_seen(REQUESTS, first, last, gpus, **identity | gpu)
        self.add_seen("kube_pod_info", first, last, **identity | {"node": node})
        self.add_seen("kube_pod_created", first, last, at(first) - 60, **identity)
        if scheduled:
            self.add_seen("kube_pod_status_scheduled_time", first, last, at(scheduled), **identity)
        if ended:
            self.add_seen("kube_pod_completion_time", seen_ended or first, last, at(ended), **identity)
        for one in ("Pending", "Running", "Succeeded", "Failed"):
            until = seen_ended or "99:00"
            samples = [(t, float(one == ("Running" if t < at(until) else phase))) for t, _ in every(30, first, last)]
            self.add("kube_pod_status_phase", samples, **self.target | identity | {"phase": one})
        kind, owner_name = owner
        controller = {"owner_kind": kind, "owner_name": owner_name, "owner_is_controller": "true"}
        self.add_seen("kube_pod_owner", first, last, **identity | controller)
        if labels is not None:
            self.add_seen("kube_pod_labels", first, last, **identity | labels)

    def node(
        self, name: str, first: str, last: str, *, gpus: int = 8, uuid: str = "machine-1", created: str = "-1:00",
        labels: dict[str, str] | None = None, gpus_from: str = "",
    ) -> None:  # fmt: skip
        """A node seen from first to last; its GPUs from `gpus_from`."""
        gpu = {"node": name, "resource": "nvidia_com_gpu", "unit": "integer"}
        self.add_seen(CAPACITY, gpus_from or first, last, gpus, **gpu)
        self.add_seen(CAPACITY, first, last, 96, **gpu | {"resource": "cpu", "unit": "core"})
        info = {"node": name, "system_uuid": uuid, "provider_id": f"aws:///{name}"}
        self.add_seen("kube_node_info", first, last, **info)
        self.add_seen("kube_node_created", first, last, at(created), node=name)
        if labels is not None:
            self.add_seen("kube_node_labels", first, last, node=name, **labels)


def _matches(labels: dict[str, str], selector: str) -> bool:
    tests = {
        "=": lambda value, wanted: value == wanted,
        "!=": lambda value, wanted: value != wanted,
        "=~": lambda value, wanted: re.fullmatch(wanted, value) is not None,
    }
    return all(
        tests[kind](labels.get(label, ""), wanted.replace("\\\\", "\\"))
        for label, kind, wanted in _MATCHER.findall(selector)
    )
