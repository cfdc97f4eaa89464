"""A Kubernetes API on loopback for the real client: discovery, lists in pages, 410, refusals, faults.

It serves several clusters under path prefixes (`http://127.0.0.1:PORT/<cluster>`) and lists what it was given, as an
API server does: in order of namespace and name, items without kind and apiVersion, pages of one list of one instant.
"""

import contextlib
import json
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

Objects = dict[str, list[dict[str, Any]]]

# kind -> (group, versions served by default, plural)
KINDS = {
    "Pod": ("", ["v1"], "pods"),
    "Node": ("", ["v1"], "nodes"),
    "Namespace": ("", ["v1"], "namespaces"),
    "ReplicaSet": ("apps", ["v1"], "replicasets"),
    "Deployment": ("apps", ["v1"], "deployments"),
    "Job": ("batch", ["v1"], "jobs"),
    "ResourceClaim": ("resource.k8s.io", ["v1", "v1beta2"], "resourceclaims"),
    "ResourceSlice": ("resource.k8s.io", ["v1", "v1beta2"], "resourceslices"),
}
CLUSTER_WIDE = frozenset(("Node", "Namespace", "ResourceSlice"))


class KubernetesApi:
    """What the server lists and how it misbehaves; may be changed while it runs."""

    def __init__(self) -> None:
        self.clusters: dict[str, Objects] = {}
        self.url = ""
        self.requests: list[str] = []
        self.behave()

    def behave(self) -> None:
        """Forget every misbehavior; the objects stay."""
        self.page_size: int | None = None  # smaller than the client's limit: more pages
        self.token: str | None = None  # required bearer token
        self.forbidden: set[str] = set()  # plurals that answer 403
        self.expire: dict[str, float] = {}  # plural -> how many continued pages answer 410; inf: all
        self.faults: list[int] = []  # status codes that the next list requests answer with
        self.retry_after_s: int | None = None  # header of those answers
        self.down: set[str] = set()  # clusters that answer 503 to everything
        self.delay_s = 0.0
        self.served_groups = {"apps", "batch", "resource.k8s.io"}
        # continue token -> what it continues: the list asked for, the items left
        self._continued: dict[str, tuple[str, list[dict[str, Any]]]] = {}

    def set_objects(self, cluster: str, objects: Objects) -> None:
        """What the cluster lists from now on, by kind."""
        self.clusters[cluster] = objects

    def server(self, cluster: str) -> str:
        """Server address of one cluster, for `kubernetes.server`."""
        return f"{self.url}/{cluster}"

    # --- answers ---------------------------------------------------------------------------------------------------

    def answer(self, path: str, authorization: str | None) -> tuple[int, dict[str, Any]]:
        """Status and body for one GET."""
        time.sleep(self.delay_s)
        self.requests.append(path)
        parts = urlsplit(path)
        cluster, _, rest = parts.path.strip("/").partition("/")
        if self.token is not None and authorization != f"Bearer {self.token}":
            return _status(401, "Unauthorized", "Unauthorized")
        if cluster not in self.clusters:
            return _status(404, "NotFound", "the server could not find the requested resource")
        if cluster in self.down:
            return _status(503, "ServiceUnavailable", f"{cluster} is down")
        discovered = self._discovery(rest)
        if discovered is not None:
            return 200, discovered
        for kind, (group, versions, plural) in KINDS.items():
            for version in versions:
                prefix = f"apis/{group}/{version}" if group else f"api/{version}"
                if rest == f"{prefix}/{plural}" and (not group or group in self.served_groups):
                    return self._list(parts.path, kind, f"{group}/{version}".lstrip("/"), parse_qs(parts.query))
        return _status(404, "NotFound", "the server could not find the requested resource")

    def _discovery(self, rest: str) -> dict[str, Any] | None:
        if rest == "version":
            return {"major": "1", "minor": "36", "gitVersion": "v1.36.0"}
        if rest == "api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        served: dict[str, list[str]] = {}
        resources: dict[str, list[dict[str, Any]]] = {}
        for kind, (group, versions, plural) in KINDS.items():
            if group and group not in self.served_groups:
                continue
            resource = {"name": plural, "kind": kind, "namespaced": kind not in CLUSTER_WIDE, "verbs": ["list"]}
            if group:
                served[group] = versions
            for version in versions:
                resources.setdefault(f"apis/{group}/{version}" if group else f"api/{version}", []).append(resource)
        groups = {
            name: {
                "name": name,
                "versions": [{"groupVersion": f"{name}/{version}", "version": version} for version in versions],
                "preferredVersion": {"groupVersion": f"{name}/{versions[0]}", "version": versions[0]},
            }
            for name, versions in served.items()
        }
        if rest == "apis":
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": list(groups.values())}
        if rest.removeprefix("apis/") in groups:
            return {"kind": "APIGroup", "apiVersion": "v1", **groups[rest.removeprefix("apis/")]}
        if rest in resources:
            group_version = rest.partition("/")[2]
            return {"kind": "APIResourceList", "groupVersion": group_version, "resources": resources[rest]}
        return None

    def _list(self, path: str, kind: str, api_version: str, query: dict[str, list[str]]) -> tuple[int, dict[str, Any]]:
        """A page of the list at a path; a continued one is of the objects that there were at its first page."""
        cluster, plural = path.lstrip("/").partition("/")[0], KINDS[kind][2]
        if self.faults:
            code = self.faults.pop(0)
            return _status(code, "ServiceUnavailable", f"fault {code}")
        if plural in self.forbidden:
            return _status(
                403, "Forbidden", f"{plural} is forbidden: cannot list resource {plural!r} at the cluster scope"
            )
        if token := query.get("continue", [""])[0]:
            if self.expire.get(plural, 0) > 0:
                self.expire[plural] -= 1
                return _status(410, "Expired", "The provided continue parameter is too old")
            continued, items = self._continued.get(token, ("", []))
            if continued != path:
                return _status(400, "BadRequest", "continue key is not valid")
        else:
            items = sorted(self.clusters[cluster].get(kind, []), key=_place)
        limit = int(query.get("limit", ["0"])[0]) or len(items)
        size = min(limit, self.page_size) if self.page_size else limit
        page, left = items[:size], items[size:]
        metadata: dict[str, Any] = {"resourceVersion": "1"}
        if left:
            following = f"{plural}-{len(self._continued)}"
            self._continued[following] = (path, left)
            metadata |= {"continue": following, "remainingItemCount": len(left)}
        listed = [{name: part for name, part in item.items() if name not in ("kind", "apiVersion")} for item in page]
        return 200, {"kind": f"{kind}List", "apiVersion": api_version, "metadata": metadata, "items": listed}


def _place(item: dict[str, Any]) -> tuple[str, str]:
    metadata = item["metadata"]
    return metadata.get("namespace") or "", metadata.get("name", "")


def _status(code: int, reason: str, message: str) -> tuple[int, dict[str, Any]]:
    return code, {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    }  # fmt: skip


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that did not wait for its answer is none."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


@contextlib.contextmanager
def kubernetes_api() -> Iterator[KubernetesApi]:
    """Serve a KubernetesApi on loopback."""
    api = KubernetesApi()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # headers and body in one packet: two would wait for each other's acknowledgment

        def do_GET(self) -> None:
            status, body = api.answer(self.path, self.headers.get("Authorization"))
            content = json.dumps(body).encode()
            self.send_response(status)
            if status in (429, 503) and api.retry_after_s is not None:
                self.send_header("Retry-After", str(api.retry_after_s))
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = _Server(("127.0.0.1", 0), Handler)
    api.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield api
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
