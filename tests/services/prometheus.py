"""A real Prometheus on loopback, filled with a world's samples.

Debian's package is used where it is installed; without root it is fetched and unpacked into the project's cache folder.
"""

import contextlib
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "prometheus"


class Unavailable(Exception):
    """No Prometheus can be had on this machine; the message says why."""


def binaries() -> tuple[Path, Path]:
    """Paths of prometheus and promtool. Raises Unavailable."""
    for folder in (None, CACHE / "usr" / "bin"):
        found = [shutil.which(name, path=str(folder) if folder else None) for name in ("prometheus", "promtool")]
        if all(found):
            return Path(str(found[0])), Path(str(found[1]))
    if not shutil.which("apt-get") or not shutil.which("dpkg"):
        raise Unavailable("prometheus is not on PATH, and this is no Debian that could fetch its package")
    _fetch()
    prometheus, promtool = CACHE / "usr" / "bin" / "prometheus", CACHE / "usr" / "bin" / "promtool"
    if not prometheus.exists():
        raise Unavailable("Debian's prometheus package could not be fetched (is an `apt-get update` missing?)")
    return prometheus, promtool


def _fetch() -> None:
    """Unpack Debian's package into the cache folder; needs no root, unless the package lists were never fetched."""
    CACHE.mkdir(parents=True, exist_ok=True)
    for attempt in range(2):
        fetched = subprocess.run(["apt-get", "download", "prometheus"], cwd=CACHE, capture_output=True, check=False)
        if fetched.returncode == 0:
            break
        if attempt == 0:
            subprocess.run(["apt-get", "update"], capture_output=True, check=False)
    for package in sorted(CACHE.glob("prometheus_*.deb")):
        subprocess.run(["dpkg", "-x", str(package), str(CACHE)], check=True)


def free_port() -> int:
    """A loopback port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def prometheus_server(openmetrics: Path, folder: Path, *options: str) -> Iterator[str]:
    """Serve the samples of an OpenMetrics file; gives the server's URL.

    Args:
        openmetrics: file for `promtool tsdb create-blocks-from openmetrics`.
        folder: where the database goes.
        options: further command-line options of Prometheus.
    """
    prometheus, promtool = binaries()
    data = folder / "tsdb"
    subprocess.run(
 [
            # One block: the file is read once per block, and its samples are days at most.
            str(promtool), "tsdb", "create-blocks-from", "--max-block-duration=162h",
            "openmetrics", str(openmetrics), str(data),
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    config = folder / "prometheus.yml"
    config.write_text("global: {}\n")
    port = free_port()
    log = (folder / "prometheus.log").open("wb")
    process = subprocess.Popen(
        [
            str(prometheus), f"--config.file={config}", f"--storage.tsdb.path={data}",
            "--storage.tsdb.retention.time=100y", f"--web.listen-address=127.0.0.1:{port}", *options,
        ],
        stdout=log, stderr=log,
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_until_ready(url, process, folder / "prometheus.log")
        yield url
    finally:
        process.terminate()
        process.wait(timeout=20)
        log.close()


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(200):
        if process.poll() is not None:
            raise RuntimeError(f"prometheus ended at once: {log.read_text()[-2000:]}")
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/-/ready", timeout=1) as answer:
            if answer.status == 200:
                return
        time.sleep(0.05)
    raise RuntimeError(f"prometheus was not ready in time: {log.read_text()[-2000:]}")
