"""A server that a test starts, waits for and ends."""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def serving(words: Sequence[str | Path], folder: Path, log: Path) -> Iterator[str]:
    """The address of the dashboard that a command serves from `folder`, on a free port; what it prints goes to `log`.

    The command gets the options for a server without a browser. It ends by SIGTERM, with exit status 0.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [*words, "--server.headless", "true", "--server.port", str(port)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    address = f"http://127.0.0.1:{port}"
    with (
        log.open("wb") as stream,
        subprocess.Popen(command, cwd=folder, env=environment, stdout=stream, stderr=stream) as server,
    ):
        try:
            for _ in range(300):
                if _is_healthy(address):
                    break
                time.sleep(0.2)
            else:
                raise RuntimeError(log.read_text("utf-8", "replace"))
            yield address
        finally:
            server.terminate()
            status = server.wait(timeout=20)
    if status:
        raise RuntimeError(f"ended with {status}: {log.read_text('utf-8', 'replace')}")


def _is_healthy(address: str) -> bool:
    try:
        return fetch(f"{address}/_stcore/health") == b"ok"
    except OSError:
        return False


def fetch(address: str) -> bytes:
    """What a server answers with status 200; OSError where it does not."""
    with urllib.request.urlopen(address, timeout=10) as answer:
        return bytes(answer.read())
