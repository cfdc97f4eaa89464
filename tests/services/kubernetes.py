"""A Kubernetes API on loopback for the real client: discovery, lists in pages, 410, refusals, faults.

It serves several clusters under path prefixes (`http://127.0.0.1:PORT/<cluster>`) and lists what it was given.
"""

import contextlib
import json
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


class KubernetesApi:
    """What the server lists and how it misbehaves; may be changed while it runs."""

    def __init__(self) -> None:
        self.clusters: dict[str, Objects] = {}
        self.page_size: int | None = None  # smaller than the client's limit: more pages
        self.token: str | None = None  # required bearer token
        self.forbidden: set[str] = set()  # plurals that answer 403
        self.expire: dict[str, int] = {}  # plural -> how many continued pages answer 410
        self.faults: list[int] = []  # status codes that the next list requests answer with
        self.delay_s = 0.0
        self.served_groups = {"apps", "batch", "resource.k8s.io"}
        self.requests: list[str] = []
        self.url = ""

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
        cluster, _, rest = parts.path.lstrip("/").partition("/")
        if self.token is not None and authorization != f"Bearer {self.token}":
            return _status(401, "Unauthorized", "Unauthorized")
        if cluster not in self.clusters:
            return _status(404, "NotFound", "the server could not find the requested resource")
        discovered = self._discovery(rest)
        if discovered is not None:
            return 200, discovered
        for kind, (group, versions, plural) in KINDS.items():
            for version in versions:
                prefix = f"apis/{group}/{version}" if group else f"api/{version}"
                if rest == f"{prefix}/{plural}" and (not group or group in self.served_groups):
                    return self._list(cluster, kind, plural, f"{group}/{version}".lstrip("/"), parse_qs(parts.query))
        return _status(404, "NotFound", "the server could not find the requested resource")

    def _discovery(self, rest: str) -> dict[str, Any] | None:
        if rest == "version":
            return {"major": "1", "minor": "36", "gitVersion": "v1.36.0"}
        if rest == "api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        groups = {group: versions for group, versions, _ in KINDS.values() if group and group in self.served_groups}
        described = {
            name: {
                "name": name,
                "versions": [{"groupVersion": f"{name}/{version}", "version": version} for version in versions],
                "preferredVersion": {"groupVersion": f"{name}/{versions[0]}", "version": versions[0]},
            }
            for name, versions in groups.items()
        }
        if rest == "apis":
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": list(described.values())}
        if rest.removeprefix("apis/") in described:
            return {"kind": "APIGroup", "apiVersion": "v1", **described[rest.removeprefix("apis/")]}
        return None

    def _list(
        self, cluster: str, kind: str, plural: str, api_version: str, query: dict[str, list[str]]
    ) -> tuple[int, dict[str, Any]]:
        if self.faults:
            code = self.faults.pop(0)
            return _status(code, "ServiceUnavailable", f"fault {code}")
        if plural in self.forbidden:
            return _status(
                403, "Forbidden", f"{plural} is forbidden: cannot list resource {plural!r} at the cluster scope"
            )
        items = self.clusters[cluster].get(kind, [])
        start = int(query.get("continue", ["0"])[0])
        if start and self.expire.get(plural, 0) > 0:
            self.expire[plural] -= 1
            return _status(410, "Expired", "The provided continue parameter is too old")
        limit = int(query.get("limit", [str(len(items) or 1)])[0])
        size = min(limit, self.page_size) if self.page_size else limit
        page = items[start : start + size]
        left = len(items) - start - len(page)
        metadata: dict[str, Any] = {"resourceVersion": "1"}
        if left > 0:
            metadata |= {"continue": str(start + len(page)), "remainingItemCount": left}
        return 200, {"kind": f"{kind}List", "apiVersion": api_version, "metadata": metadata, "items": page}


def _status(code: int, reason: str, message: str) -> tuple[int, dict[str, Any]]:
    return code, {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    }  # fmt: skip


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
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    api.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield api
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
