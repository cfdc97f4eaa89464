"""What is kept of a Kubernetes object, and what is said when the way to the API is not there."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pipelines.extract.kubernetes import Node, Object, Pod, Whole, take_snapshot
from schemas.config import Cluster
from schemas.errors import ConfigError

LABELS = {"app": "train"}
OWNERS = [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "train-abc", "uid": "rs-1", "controller": True}]
METADATA = {
    "name": "train-0",
    "namespace": "research",
    "uid": "pod-1",
    "resourceVersion": "81",
    "creationTimestamp": "2026-11-03T12:00:00Z",
    "labels": LABELS,
    "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "SECRET", "resource.kubernetes.io/x": "kept"},
    "ownerReferences": OWNERS,
    "managedFields": [{"manager": "SECRET"}],
}
CONTAINER = {
    "name": "main",
    "image": "registry.example.com/train:1",
    "command": ["sh", "-c", "SECRET"],
    "args": ["--token=SECRET"],
    "env": [{"name": "TOKEN", "value": "SECRET"}],
    "envFrom": [{"secretRef": {"name": "SECRET"}}],
    "volumeMounts": [{"name": "v", "mountPath": "/SECRET"}],
    "lifecycle": {"preStop": {"exec": {"command": ["SECRET"]}}},
    "livenessProbe": {"httpGet": {"httpHeaders": [{"name": "Authorization", "value": "SECRET"}]}},
    "resources": {
        "requests": {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "2", "ephemeral-storage": "1Gi"},
        "limits": {"cpu": "9", "nvidia.com/gpu": "2"},
    },
}
POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": METADATA,
    "spec": {
        "nodeName": "node-a",
        "priorityClassName": "high",
        "containers": [CONTAINER],
        "initContainers": [CONTAINER | {"restartPolicy": "Always"}],
        "ephemeralContainers": [CONTAINER],
        "volumes": [{"name": "v", "secret": {"secretName": "SECRET"}}],
        "imagePullSecrets": [{"name": "SECRET"}],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}],
    },
    "status": {
        "phase": "Failed",
        "reason": "Evicted",
        "message": "SECRET",
        "startTime": "2026-11-03T12:00:01Z",
        "conditions": [
            {
                "type": "PodScheduled",
                "status": "True",
                "reason": "R",
                "message": "SECRET",
                "lastTransitionTime": "2026-11-03T12:00:01Z",
            }
        ],
        "containerStatuses": [
            {
                "name": "main",
                "imageID": "SECRET",
                "state": {
                    "terminated": {
                        "exitCode": 1,
                        "message": "SECRET",
                        "reason": "Error",
                        "startedAt": "2026-11-03T12:01:00Z",
                        "finishedAt": "2026-11-03T12:40:00Z",
                    }
                },
            },
            {"name": "side", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "SECRET"}}},
        ],
        "resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "train-0-gpu-x"}],
        "extendedResourceClaimStatus": {
            "resourceClaimName": "train-0-extended",
            "requestMappings": [
                {"containerName": "main", "resourceName": "nvidia.com/gpu", "requestName": "container-0-request-0"}
            ],
        },
    },
}


def kept(kind: type[Object], as_served: dict[str, Any]) -> dict[str, Any]:
    """What a snapshot holds of an object."""
    decoded = msgspec.json.decode(json.dumps(as_served), type=kind)
    again: dict[str, Any] = json.loads(msgspec.json.encode(decoded, order="sorted"))
    return again


def cluster(**kubernetes: Any) -> Cluster:
    return Cluster.model_validate(
        {"name": "prod", "prometheus": {"url": "http://prometheus:9090"}, "kubernetes": kubernetes}
    )


def test_a_pod_keeps_exactly_what_the_ledger_reads() -> None:
    container = {
        "name": "main",
        "image": "registry.example.com/train:1",
        "resources": {
            "requests": {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "2"},
            "limits": {"nvidia.com/gpu": "2"},
        },
    }
    assert kept(Pod, POD) == {
        "metadata": {
            "name": "train-0",
            "namespace": "research",
            "uid": "pod-1",
            "creationTimestamp": "2026-11-03T12:00:00Z",
            "labels": LABELS,
            "annotations": {"resource.kubernetes.io/x": "kept"},
            "ownerReferences": [{"kind": "ReplicaSet", "name": "train-abc", "uid": "rs-1", "controller": True}],
        },
        "spec": {
            "nodeName": "node-a",
            "priorityClassName": "high",
            "containers": [container],
            "initContainers": [container | {"restartPolicy": "Always"}],
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}],
        },
        "status": {
            "phase": "Failed",
            "reason": "Evicted",
            "startTime": "2026-11-03T12:00:01Z",
            "conditions": [
                {
                    "type": "PodScheduled",
                    "status": "True",
                    "reason": "R",
                    "lastTransitionTime": "2026-11-03T12:00:01Z",
                }
            ],
            "containerStatuses": [
                {
                    "name": "main",
                    "state": {
                        "terminated": {
                            "reason": "Error",
                            "startedAt": "2026-11-03T12:01:00Z",
                            "finishedAt": "2026-11-03T12:40:00Z",
                        }
                    },
                },
                {"name": "side", "state": {"waiting": {"reason": "ImagePullBackOff"}}},
            ],
            "resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "train-0-gpu-x"}],
            "extendedResourceClaimStatus": POD["status"]["extendedResourceClaimStatus"],
        },
    }


def test_what_was_kept_is_kept_again_unchanged() -> None:
    assert kept(Pod, kept(Pod, POD)) == kept(Pod, POD)


def test_a_node_keeps_labels_capacity_and_identity() -> None:
    status = {
        "capacity": {"cpu": "96", "nvidia.com/gpu": "8"},
        "allocatable": {"nvidia.com/gpu": "7"},
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-03T12:00:00Z"}],
    }
    served = {
        "metadata": {"name": "node-a", "uid": "node-1", "labels": LABELS, "annotations": {"csi": "SECRET"}},
        "spec": {"providerID": "aws:///i-1", "podCIDR": "10.0.0.0/24"},
        "status": status | {"nodeInfo": {"systemUUID": "ABC", "kernelVersion": "6"}, "images": [{"names": ["x"]}]},
    }
    assert kept(Node, served) == {
        "metadata": {"name": "node-a", "uid": "node-1", "labels": LABELS},
        "spec": {"providerID": "aws:///i-1"},
        "status": status | {"nodeInfo": {"systemUUID": "ABC"}},
    }


def test_a_replica_set_keeps_its_owners_only() -> None:
    served = {"metadata": METADATA, "spec": {"template": {"spec": {"containers": [CONTAINER]}}}}
    assert kept(Object, served) == {
        "metadata": {
            "name": "train-0",
            "namespace": "research",
            "uid": "pod-1",
            "ownerReferences": [{"kind": "ReplicaSet", "name": "train-abc", "uid": "rs-1", "controller": True}],
        }
    }


def test_a_claim_keeps_spec_and_status_whole() -> None:
    body = {"spec": {"devices": {"requests": [{"name": "gpu"}]}}, "status": {"reservedFor": [{"uid": "pod-1"}]}}
    annotations = {"resource.kubernetes.io/extended-resource-claim": "true"}
    served = {"metadata": {"name": "c", "uid": "c-1", "annotations": annotations | {"other": "SECRET"}}, **body}
    assert kept(Whole, served) == {"metadata": {"name": "c", "uid": "c-1", "annotations": annotations}, **body}


@pytest.mark.parametrize("served", [{"metadata": {"name": "x"}}, {"metadata": {"uid": "x"}}, {}])
def test_an_object_without_identity_is_refused(served: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError, match="missing required field"):
        kept(Pod, served)


# --- the way to the API --------------------------------------------------------------------------------------------


def problem(*, of: Cluster) -> str:
    with pytest.raises(ConfigError) as raised:
        take_snapshot(of)
    assert raised.value.exit_code == 2
    return str(raised.value)


def test_no_kubernetes_section_is_said() -> None:
    plain = Cluster.model_validate({"name": "prod", "prometheus": {"url": "http://prometheus:9090"}})
    assert "no `kubernetes:` section" in problem(of=plain)


def test_a_missing_kubeconfig_is_named(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    assert str(path) in problem(of=cluster(kubeconfig=path))


@pytest.mark.parametrize("content", ["", "[]", "word", "a: [1", "apiVersion: v1\ncurrent-context: x\n"])
def test_a_kubeconfig_of_another_shape_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(content)
    assert str(path) in problem(of=cluster(kubeconfig=path))


def test_a_missing_context_is_named(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text("apiVersion: v1\nkind: Config\nclusters: []\nusers: []\ncontexts: []\ncurrent-context: ''\n")
    assert "context prod-east" in problem(of=cluster(kubeconfig=path, context="prod-east"))


def test_in_cluster_outside_a_cluster_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert "kubernetes.in_cluster: expected to run in a pod" in problem(of=cluster(in_cluster=True))


def test_a_missing_ca_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    assert str(path) in problem(of=cluster(server="https://127.0.0.1:1", ca_file=path))
