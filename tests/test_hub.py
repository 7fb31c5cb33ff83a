"""Models from the Hub, which a server on this machine plays: what is asked of it, and every way in which it refuses."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import close_session, constants

from kvcore.errors import ConfigError, SourceError, UnknownLayoutError
from kvcore.sources import files
from tests.test_sources import CONFIG, LAYER, STRANGE, TEXT, header

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_" + "s3cret" * 5
INDEXED = b'{"metadata": {"total_size": 123456}}'


class Hub:
    """Routes of a stand-in for the Hub: path → (status, headers, body); remembers what was asked."""

    def __init__(self) -> None:
        self.routes: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.release = threading.Event()
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.asked.append((self.path, {key.lower(): value for key, value in self.headers.items()}))
                status, headers, body = hub.routes.get(self.path, (404, {"X-Error-Code": "EntryNotFound"}, b""))
                if status == 0:
                    hub.release.wait(30)
                    return
                self.send_response(status)
                for key, value in headers.items():
                    self.send_header(key, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                with suppress(OSError):
                    if headers.get("X-Drip"):
                        while not hub.release.wait(0.05):
                            self.wfile.write(b" ")
                            self.wfile.flush()
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def add(self, path: str, body: bytes = b"", status: int = 200, **headers: str) -> None:
        named = {"ETag": '"1"', "X-Repo-Commit": COMMIT} | {
            key.replace("_", "-"): value for key, value in headers.items()
        }
        self.routes[path] = (status, named, body)

    def close(self) -> None:
        self.release.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def make_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[], Hub]]:
    made: list[Hub] = []

    def make() -> Hub:
        made.append(Hub())
        return made[-1]

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.delenv("HUGGING_FACE_HUB_TOKEN", raising=False)
    yield make
    for hub in made:
        hub.close()


@pytest.fixture(scope="module", autouse=True)
def _no_client_is_left() -> Iterator[None]:
    yield
    close_session()


@pytest.fixture
def hub(make_hub: Callable[[], Hub], monkeypatch: pytest.MonkeyPatch) -> Hub:
    """The endpoint that the environment configures."""
    made = make_hub()
    monkeypatch.setattr(constants, "ENDPOINT", made.url)
    made.add("/some-org/tiny/resolve/main/config.json", TEXT.encode())
    return made


def hub_refuses(name: str = "some-org/tiny", **more: Any) -> str:
    with pytest.raises(SourceError) as refusal:
        files.from_hub(name, **more)
    message = str(refusal.value)
    assert "\n" not in message
    assert TOKEN not in message
    return message


def test_the_hub_gives_a_configuration_and_exact_weights(hub: Hub) -> None:
    hub.add(f"/some-org/tiny/resolve/{COMMIT}/model.safetensors.index.json", INDEXED)
    loaded = files.load("https://huggingface.co/some-org/tiny/tree/main", hub=True)
    assert (loaded.origin, loaded.model.name, loaded.model.layers) == ("hub", "some-org/tiny", (LAYER,) * 2)
    assert loaded.model.checkpoint_bytes == 123456
    assert loaded.detail == f"revision {COMMIT}; weights measured from model.safetensors.index.json"
    assert loaded.raw == CONFIG
    assert [path.rsplit("/", 1)[-1] for path, _ in hub.asked] == ["config.json", "model.safetensors.index.json"]


def test_a_single_file_is_asked_for_its_header_only(hub: Hub) -> None:
    hub.add(f"/some-org/tiny/resolve/{COMMIT}/model.safetensors", header(10, 20) + b"x" * 3_000_000)
    assert files.from_hub("some-org/tiny").model.checkpoint_bytes == 30
    assert hub.asked[-1][1]["range"] == "bytes=0-1048575"


def test_without_safetensors_the_weights_are_estimated(hub: Hub) -> None:
    loaded = files.from_hub("some-org/tiny")
    assert loaded.model.checkpoint_bytes is None
    assert loaded.detail == f"revision {COMMIT}; weights estimated from the configuration"


def test_a_revision_is_asked_for_as_given(hub: Hub) -> None:
    hub.add("/some-org/tiny/resolve/refs%2Fpr%2F1/config.json", TEXT.encode())
    assert files.from_hub("some-org/tiny", revision="refs/pr/1").detail.startswith(f"revision {COMMIT}")
    assert hub.asked[0][0] == "/some-org/tiny/resolve/refs%2Fpr%2F1/config.json"


def test_nothing_is_written(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files.from_hub("some-org/tiny")
    assert list(tmp_path.iterdir()) == []


def test_the_token_goes_to_the_configured_endpoint_only(
    hub: Hub, make_hub: Callable[[], Hub], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    store, mirror = make_hub(), make_hub()
    hub.add(f"/some-org/tiny/resolve/{COMMIT}/model.safetensors", b"", 302, Location=f"{store.url}/blob")
    store.add("/blob", header(10))
    mirror.add("/some-org/tiny/resolve/main/config.json", TEXT.encode())
    loaded = files.from_hub("some-org/tiny")
    assert loaded.model.checkpoint_bytes == 10
    files.from_hub("some-org/tiny", endpoint=mirror.url + "/")
    assert [headers["authorization"] for _, headers in hub.asked] == [f"Bearer {TOKEN}"] * 3
    assert store.asked
    assert mirror.asked
    assert not any("authorization" in headers for _, headers in store.asked + mirror.asked)
    assert TOKEN not in caplog.text + repr(loaded)


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (403, "GatedRepo", "some-org/tiny: is gated: accept its terms"),
        (401, "GatedRepo", "some-org/tiny: is gated: accept its terms"),
        (404, "RepoNotFound", "some-org/tiny: is not on the Hub, or is private"),
        (401, "RepoNotFound", "some-org/tiny: is not on the Hub, or is private"),
        (404, "RevisionNotFound", "some-org/tiny: has no such revision"),
        (404, "EntryNotFound", "some-org/tiny: has no config.json"),
        (401, "", "some-org/tiny: is private, gated, or the token in HF_TOKEN is not valid"),
        (403, "", "some-org/tiny: may not be read with this token"),
        (404, "", "some-org/tiny: was not found on the Hub"),
        (429, "", "some-org/tiny: was not fetched: the Hub's rate limit is reached"),
        (503, "", "some-org/tiny: the Hub answered with 503"),
    ],
)
def test_each_refusal_of_the_hub(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, status: int, code: str, message: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.add("/some-org/tiny/resolve/main/config.json", TOKEN.encode(), status, X_Error_Code=code, X_Error_Message=TOKEN)
    assert hub_refuses().startswith(message)
    assert len(hub.asked) == 1


def test_a_hub_that_is_slow_silent_or_away(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.routes["/some-org/slow/resolve/main/config.json"] = (0, {}, b"")
    assert "did not answer in time" in hub_refuses("some-org/slow", timeout=0.3)
    hub.add("/some-org/drip/resolve/main/config.json", b" " * 100_000, X_Drip="1")
    assert "did not answer in time" in hub_refuses("some-org/drip", timeout=0.3)
    readers = [thread for thread in threading.enumerate() if thread.name == "hub"]
    for thread in readers:
        thread.join(5)
    assert not any(thread.is_alive() for thread in readers)
    hub.add("/some-org/loop/resolve/main/config.json", b"", 302, Location="/some-org/loop/resolve/main/config.json")
    assert "cannot be reached" in hub_refuses("some-org/loop")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert "cannot be reached" in hub_refuses(endpoint=f"http://127.0.0.1:{port}")


def test_names_that_do_not_resolve(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    def hangs(*_: object, **__: object) -> None:
        hub.release.wait(30)
        unknown()

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert "cannot be reached" in hub_refuses(endpoint="http://hub.invalid")
    monkeypatch.setattr(socket, "getaddrinfo", hangs)
    assert "did not answer in time" in hub_refuses(endpoint="http://hub.invalid", timeout=0.1)


def test_absurd_answers(hub: Hub) -> None:
    hub.add("/some-org/huge/resolve/main/config.json", b" " * 2_000_001)
    assert "config.json is larger than 2,000,000 bytes" in hub_refuses("some-org/huge")
    hub.add("/some-org/page/resolve/main/config.json", b"<html>", X_Repo_Commit="<script>")
    with pytest.raises(ConfigError, match=r"some-org/page's config\.json: this is a web page"):
        files.from_hub("some-org/page")
    hub.add("/some-org/odd/resolve/main/config.json", STRANGE.encode(), X_Repo_Commit="<script>")
    with pytest.raises(UnknownLayoutError):
        files.from_hub("some-org/odd")
    bound = files.from_hub("some-org/odd", upper_bound=True)
    assert (bound.model.knowledge, bound.detail.split(";")[0]) == ("upper_bound", "revision main")


@pytest.mark.parametrize(
    "name",
    [
        "", "name", "a/b/c", "../b", "a/..", "a/.b", "a/b--c", "a/b..c", "-a/b", "a/b-", "a b/c", "a/b\nc", "a/b?x",
        "a/b#x", "a/%2e%2e", "http://example.org/a/b", "https://huggingface.co/a/b/tree/other",
        "https://huggingface.co.evil/a/b", "https://huggingface.co/datasets/a/b", "a/" + "b" * 200, "ä/b",
    ],
)  # fmt: skip
def test_no_request_for_what_is_no_id(hub: Hub, name: str) -> None:
    assert "write it as organisation/name" in hub_refuses(name)
    assert hub.asked == []


@pytest.mark.parametrize("name", ["a/b", "Qwen/Qwen3-0.6B", "01-ai/Yi-6B", "a_b/c_", "https://hf.co/a/b/?x=1"])
def test_what_is_an_id(hub: Hub, name: str) -> None:
    assert "has no config.json" in hub_refuses(name)


def test_no_request_to_an_odd_revision_or_endpoint(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    for revision in ("../x", "a b", "-x", "a/../b", "x" * 300):
        assert "is not a branch, a tag or a commit" in hub_refuses(revision=revision)
    for endpoint in ("file:///etc", "huggingface.co", "http://user:pass@host", "http://host/?q", "http://host:port"):
        message = hub_refuses(endpoint=endpoint)
        assert "HF_ENDPOINT" in message
        assert "pass@" not in message
    assert hub.asked == []


def test_offline_mode_reads_the_cache_and_asks_nothing(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "offline mode is on; unset HF_HUB_OFFLINE" in hub_refuses()
    cached = tmp_path / "cache" / "models--some-org--tiny"
    (cached / "snapshots" / COMMIT).mkdir(parents=True)
    (cached / "snapshots" / COMMIT / "config.json").write_text(TEXT, "utf-8")
    (cached / "snapshots" / COMMIT / "model.safetensors.index.json").write_bytes(INDEXED)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(COMMIT, "utf-8")
    loaded = files.from_hub("some-org/tiny")
    assert (loaded.origin, loaded.model.name, loaded.model.checkpoint_bytes) == ("hub", "some-org/tiny", 123456)
    assert loaded.detail.startswith(f"cached revision {COMMIT}; weights measured")
    assert hub.asked == []
