"""A real Prometheus on loopback, filled with a world's samples.

Debian's package is used where it is installed; without root it is fetched and unpacked into the project's cache folder.
"""

import contextlib
import re
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

from filelock import FileLock

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "prometheus"
_FETCH_S, _READY_S, _STOP_S = 300, 30, 20


class Unavailable(Exception):
    """No Prometheus can be had on this machine; the message says why."""


class PrometheusServer:
    """A Prometheus with a database of its own and nothing to scrape; a context manager, stopped at its end.

    `url` is its address while it runs.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        """
        Args:
            folder: where its database, configuration and log go.
            options: further command-line options.

        Raises:
            Unavailable: there is no Prometheus, and none can be fetched.
        """
        self._prometheus, self._promtool = binaries()
        self._folder, self._options = folder, options
        self._log = folder / "prometheus.log"
        self.url = ""

    def create_blocks(self, openmetrics: Path) -> None:
        """Back-fill from an OpenMetrics file, before the server starts."""
        # The file is read anew for every block, by default one for two hours: one is ten times faster for two days.
        command = ["tsdb", "create-blocks-from", "--max-block-duration=486h", "openmetrics"]
        _run([str(self._promtool), *command, str(openmetrics), str(self._folder / "tsdb")])

    def __enter__(self) -> Self:
        config = self._folder / "prometheus.yml"
        config.write_text("global: {}\n")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    str(self._prometheus),
                    f"--config.file={config}",
                    f"--storage.tsdb.path={self._folder / 'tsdb'}",
                    "--storage.tsdb.retention.time=100y",  # else old blocks vanish
                    "--web.listen-address=127.0.0.1:0",  # it takes a free port, and its log says which
                    *self._options,
                ],
                stdout=log,
                stderr=log,
            )
        try:
            self._wait_until_ready()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _READY_S
        while self._process.poll() is None and time.monotonic() < deadline:
            listening = re.search(r'"Listening on" address=(127\.0\.0\.1:\d+)', self._log.read_text())
            if listening:
                self.url = f"http://{listening[1]}"
                # Before it has opened its database it answers 503 (an OSError of urllib).
                with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/-/ready", timeout=1):
                    return
            time.sleep(0.02)
        ended = "ended at once" if self._process.poll() is not None else f"was not ready in {_READY_S} s"
        raise RuntimeError(f"prometheus {ended}: {self._log.read_text()[-2000:]}")

    def _stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise


@contextlib.contextmanager
def prometheus_server(openmetrics: Path, folder: Path, *options: str) -> Iterator[str]:
    """Serve the samples of an OpenMetrics file; gives the server's URL.

    Args:
        openmetrics: file for `promtool tsdb create-blocks-from openmetrics`.
        folder: where the database goes.
        options: further command-line options of Prometheus.
    """
    server = PrometheusServer(folder, *options)
    server.create_blocks(openmetrics)
    with server:
        yield server.url


def free_port() -> int:
    """A loopback port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def binaries() -> tuple[Path, Path]:
    """Paths of prometheus and promtool: installed, fetched before, or fetched now. Raises Unavailable."""
    found = _on_path(None) or _on_path(CACHE / "usr" / "bin")
    if found:
        return found
    if not shutil.which("apt-get") or not shutil.which("dpkg"):
        raise Unavailable("prometheus is not on PATH, and this is no Debian that could fetch its package")
    CACHE.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(CACHE.with_suffix(".lock")):
        found = _on_path(CACHE / "usr" / "bin")  # somebody else fetched it meanwhile
        if not found:
            _fetch()
            found = _on_path(CACHE / "usr" / "bin")
    if not found:
        raise Unavailable("Debian's prometheus package has no prometheus and promtool in /usr/bin")
    return found


def _on_path(folder: Path | None) -> tuple[Path, Path] | None:
    prometheus, promtool = (shutil.which(name, path=folder and str(folder)) for name in ("prometheus", "promtool"))
    return (Path(prometheus), Path(promtool)) if prometheus and promtool else None


def _fetch() -> None:
    """Unpack Debian's package into the cache folder, without root; it needs no library but libc.

    Where the machine has no package lists, lists of our own are fetched. Raises Unavailable.
    """
    with tempfile.TemporaryDirectory(dir=CACHE.parent) as name:
        folder = Path(name)
        lists, unpacked = folder / "lists", folder / "unpacked"
        for made in (lists / "partial", folder / "partial", unpacked):
            made.mkdir(parents=True)
        ours = ["-o", f"Dir::State::Lists={lists}", "-o", f"Dir::Cache={folder}"]
        try:
            try:
                _run(["apt-get", "download", "prometheus"], folder, within_s=_FETCH_S)
            except RuntimeError:
                _run(["apt-get", *ours, "update"], folder, within_s=_FETCH_S)
                _run(["apt-get", *ours, "download", "prometheus"], folder, within_s=_FETCH_S)
            for package in folder.glob("prometheus_*.deb"):
                _run(["dpkg", "-x", str(package), str(unpacked)])
            _run([str(unpacked / "usr" / "bin" / "prometheus"), "--version"])
        except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
            raise Unavailable(f"Debian's prometheus package could not be fetched: {error}") from error
        unpacked.rename(CACHE)


def _run(command: Sequence[str], folder: Path | None = None, *, within_s: int | None = None) -> None:
    """Run a command that must succeed; its complaint is in the error."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=within_s)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[:3])} ended with {done.returncode}: {done.stderr.strip()[-500:]}")
