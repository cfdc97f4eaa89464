"""A deterministic GPU cluster, as its exporters, kube-state-metrics and Kubernetes API would show it.

A World is written down in plain terms (nodes, cards, pods, gaps); `write_openmetrics` gives what Prometheus would have
scraped, for `promtool tsdb create-blocks-from openmetrics`; `kubernetes_objects` what the API would list at an instant;
`truth` who held what, worked out naively from the world itself and not from its telemetry. Whole devices only.
"""

from benchmarks.simulator.api_objects import SECRET, kubernetes_objects
from benchmarks.simulator.dcgm import METRICS
from benchmarks.simulator.generated import NAMESPACES, generated_world, with_shared_node
from benchmarks.simulator.openmetrics import scraped, write_openmetrics
from benchmarks.simulator.series import Series
from benchmarks.simulator.truth import truth
from benchmarks.simulator.world import H100, Card, Node, Pod, World

__all__ = [
    "H100",
    "METRICS",
    "NAMESPACES",
    "SECRET",
    "Card",
    "Node",
    "Pod",
    "Series",
    "World",
    "generated_world",
    "kubernetes_objects",
    "scraped",
    "truth",
    "with_shared_node",
    "write_openmetrics",
]
