"""Weights from the Hub, which a server on this machine plays: what is asked of it, and what happens when it fails."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import close_session, constants
from safetensors.numpy import save

from kvcore.errors import LiveError, SourceError
from kvcore.live import jobs, models
from kvcore.live import session as session_module
from kvcore.live.session import Session
from kvcore.live.settings import Limits
from kvcore.sources import hub as the_hub
from tests.live.real import TINY_CONFIG, tiny_folder, tiny_weights
from tests.live.test_jobs import HOST

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "some-org/tiny"
TOKEN = "hf_" + "s3cret" * 5


class Hub:
    """A repository's files over HTTP, with ranges; `breaks` counts down answers that end after half of their bytes."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.status: dict[str, tuple[int, str]] = {}
        self.breaks = 0
        self.ignores_ranges = False
        self.sha256: dict[str, str] = {}
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                headers = {key.lower(): value for key, value in self.headers.items()}
                hub.asked.append((self.path, headers))
                name = self.path.rsplit("/", 1)[-1]
                listing = self.path == f"/api/models/{NAME}/revision/main?blobs=true"
                body = hub.listing() if listing else hub.files.get(name, b"")
                wrong = hub.status.get("listing" if listing else name)
                is_known = listing or self.path == f"/{NAME}/resolve/{COMMIT}/{name}"
                if wrong or not is_known:
                    status, code = wrong or (404, "EntryNotFound")
                    self.answer(status, {"X-Error-Code": code}, b"")
                    return
                start = int(headers.get("range", "bytes=0-")[6:].split("-")[0])
                if start and not hub.ignores_ranges:
                    self.answer(206, {}, body[start:])
                else:
                    self.answer(200, {}, body)

            def answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
                self.send_response(status)
                for key, value in headers.items():
                    self.send_header(key, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                is_broken = hub.breaks > 0 and len(body) > 10_000
                with suppress(OSError):
                    self.wfile.write(body[: len(body) // 2] if is_broken else body)
                if is_broken:
                    hub.breaks -= 1
                    self.close_connection = True

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def listing(self) -> bytes:
        siblings: list[dict[str, Any]] = [
            {"rfilename": "onnx/model.onnx", "size": 7},
            {"rfilename": "modeling.py", "size": 9},
        ]
        for name, body in self.files.items():
            one: dict[str, Any] = {"rfilename": name, "size": len(body)}
            if name.endswith(".safetensors"):
                one["lfs"] = {"sha256": self.sha256.get(name, hashlib.sha256(body).hexdigest()), "size": len(body)}
            siblings.append(one)
        return json.dumps({"sha": COMMIT, "siblings": siblings}).encode()

    def files_asked(self) -> list[str]:
        return [path.rsplit("/", 1)[-1] for path, _ in self.asked if "/resolve/" in path]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    folder = tiny_folder(tmp_path / "published")
    files = {one.name: one.read_bytes() for one in folder.iterdir()}
    made = Hub(
        files | {"generation_config.json": b'{"eos_token_id": 5}', "pytorch_model.bin": b"pickle", "README.md": b"#"}
    )
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "ENDPOINT", made.url)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(models, "packaged_gguf", lambda: None)
    monkeypatch.setattr(the_hub.time, "sleep", lambda seconds: None)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture(scope="module", autouse=True)
def _no_client_is_left() -> Iterator[None]:
    yield
    close_session()


def go_on(what: str, done: int, of: int) -> bool:
    return True


def refused(name: str = f"hub:{NAME}") -> str:
    with pytest.raises(LiveError) as refusal:
        models.prepare(name, go_on)
    assert TOKEN not in str(refusal.value)
    return str(refusal.value)


def kept(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "kv-cache-explorer" / "models" / "some-org--tiny"


def test_a_model_is_downloaded_once_pinned_and_only_what_is_needed(hub: Hub, tmp_path: Path) -> None:
    assert "are not on this machine" in refused(NAME)
    assert hub.asked == []  # Nothing is asked unless it was wished.
    told: list[tuple[str, int, int]] = []
    found = models.prepare(f"hub:{NAME}", lambda *one: told.append(one) is None)
    assert found.folder == kept(tmp_path) / COMMIT
    assert found.origin == "some-org/tiny at 0123456789ab, from the Hub"
    assert found.tokenizer.stop_ids == {5, 261}
    wanted = {"config.json", "tokenizer.json", "generation_config.json", "model.safetensors"}
    assert {one.name for one in found.folder.iterdir()} == wanted
    assert sorted(hub.files_asked()) == sorted(wanted)
    assert all((found.folder / name).read_bytes() == hub.files[name] for name in wanted)
    total = sum(len(hub.files[name]) for name in wanted)
    downloads = [(done, of) for what, done, of in told if what == f"downloading {NAME}"]
    assert downloads[-1] == (total, total)
    assert all(done <= of for done, of in downloads)
    assert [done for done, _ in downloads] == sorted(done for done, _ in downloads)
    assert all(headers["authorization"] == f"Bearer {TOKEN}" for _, headers in hub.asked)
    # From now on it is there, without the Hub.
    hub.server.shutdown()
    assert models.prepare(NAME, go_on).folder == found.folder
    assert [one.name for one in kept(tmp_path).iterdir() if one.is_dir()] == [COMMIT]


def test_shards_by_their_index(hub: Hub) -> None:
    hub.files["model-00001-of-00001.safetensors"] = hub.files.pop("model.safetensors")
    hub.files["model.safetensors.index.json"] = b'{"weight_map": {"a": "model-00001-of-00001.safetensors"}}'
    hub.files["consolidated.safetensors"] = b"the same again"
    found = models.prepare(NAME, go_on, allow_hub=True)
    assert "consolidated.safetensors" not in hub.files_asked()
    assert (found.folder / "model-00001-of-00001.safetensors").is_file()


def test_a_download_that_breaks_off_goes_on_where_it_was(hub: Hub) -> None:
    hub.breaks = 3
    found = models.prepare(f"hub:{NAME}", go_on)
    assert (found.folder / "model.safetensors").read_bytes() == hub.files["model.safetensors"]
    ranges = [headers["range"] for path, headers in hub.asked if "range" in headers]
    # Thrice half of what was left: the file ends after three breaks and four answers.
    size = len(hub.files["model.safetensors"])
    halves = [size // 2]
    halves.append(halves[0] + (size - halves[0]) // 2)
    assert ranges[:2] == [f"bytes={at}-" for at in halves]


def test_a_server_that_ignores_ranges_begins_again(hub: Hub) -> None:
    hub.breaks, hub.ignores_ranges = 1, True
    found = models.prepare(f"hub:{NAME}", go_on)
    assert (found.folder / "model.safetensors").read_bytes() == hub.files["model.safetensors"]


def test_a_hub_that_always_breaks_off_is_given_up(hub: Hub) -> None:
    hub.breaks, hub.ignores_ranges = 10**6, True
    assert "cannot be reached" in refused()


def test_cancelling_keeps_what_there_is_for_the_next_time(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "_TELL_SECONDS", 0.0)
    weights = {**tiny_weights(), "large": np.zeros(1_000_000, np.uint8)}
    hub.files["model.safetensors"] = save(weights)
    total = len(hub.files["model.safetensors"])
    before = len(hub.files["config.json"]) + len(hub.files["tokenizer.json"]) + len(hub.files["generation_config.json"])

    def half(what: str, done: int, of: int) -> bool:
        return not what.startswith("downloading") or done < before + total // 2

    with pytest.raises(LiveError, match="^cancelled$"):
        models.prepare(f"hub:{NAME}", half)
    assert not (kept(tmp_path) / COMMIT).exists()
    there = (kept(tmp_path) / f".partial-{COMMIT}" / "model.safetensors").stat().st_size
    assert total // 2 <= there < total
    hub.asked.clear()
    models.prepare(f"hub:{NAME}", go_on)
    assert hub.files_asked() == ["model.safetensors"]
    assert hub.asked[-1][1]["range"] == f"bytes={there}-"


def test_damage_on_the_way_is_noticed_and_thrown_away(hub: Hub, tmp_path: Path) -> None:
    hub.sha256["model.safetensors"] = "0" * 64
    assert "arrived damaged" in refused()
    assert not (kept(tmp_path) / f".partial-{COMMIT}" / "model.safetensors").exists()
    hub.sha256.clear()
    models.prepare(f"hub:{NAME}", go_on)


def test_a_job_downloads_can_be_cancelled_and_goes_on_the_next_time(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the screen asks for it: a run of a model that is on the Hub, stopped half way, then run again to its end."""
    monkeypatch.setattr(models, "_TELL_SECONDS", 0.0)
    monkeypatch.setattr(session_module, "_PROGRESS_S", 0.0)
    monkeypatch.setattr(session_module, "measure", lambda progress, **more: HOST)
    monkeypatch.setattr(jobs, "_SESSION", [Session(Limits(max_seconds=60.0, max_tokens=400))])
    # A layer beyond those that are kept makes the file large and is not read.
    spare = {"model.layers.99.spare": np.zeros(1_000_000, np.uint8)}
    hub.files["model.safetensors"] = save(tiny_weights() | spare)
    total = len(hub.files["model.safetensors"])
    job = {"job": "run", "model": f"hub:{NAME}", "prompt_tokens": 8, "new_tokens": 2, "calibrate": False}
    told: list[dict[str, Any]] = []

    def stop_half_way(event: dict[str, Any]) -> bool:
        told.append(event)
        return not (
            event["event"] == "progress" and event["what"] == f"downloading {NAME}" and event["done"] > total // 2
        )

    jobs.run(job, stop_half_way)
    assert told[-1] == {"event": "done", "reason": "cancelled"}
    assert not any(event["event"] in ("ready", "prefill") for event in told)
    there = (kept(tmp_path) / f".partial-{COMMIT}" / "model.safetensors").stat().st_size
    assert 0 < there < total
    hub.asked.clear()
    told.clear()
    jobs.run(job, lambda event: told.append(event) is None)
    assert told[-1] == {"event": "done", "reason": "length"}
    assert hub.asked[-1][1]["range"] == f"bytes={there}-"
    (ready,) = [event for event in told if event["event"] == "ready"]
    assert (ready["weights"], ready["origin"]) == ("real", "some-org/tiny at 0123456789ab, from the Hub")


def test_a_job_refuses_weights_whose_hash_is_another(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "measure", lambda progress, **more: HOST)
    monkeypatch.setattr(jobs, "_SESSION", [Session(Limits())])
    hub.sha256["model.safetensors"] = "0" * 64
    told: list[dict[str, Any]] = []
    with pytest.raises(LiveError, match="arrived damaged"):
        jobs.run({"job": "run", "model": f"hub:{NAME}"}, lambda event: told.append(event) is None)
    assert not any(event["event"] in ("ready", "prefill", "done") for event in told)
    assert not (kept(tmp_path) / COMMIT).exists()


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"model.safetensors": None}, "has no safetensors files; pickles and GGUF are not loaded"),
        ({"tokenizer.json": None}, "has no tokenizer.json"),
        ({"config.json": None}, "has no config.json"),
        ({"config.json": TINY_CONFIG | {"model_type": "strange_net"}}, "strange_net"),
        ({"config.json": TINY_CONFIG | {"auto_map": {"AutoModel": "x.y"}}}, "needs code from its repository"),
        ({"config.json": TINY_CONFIG | {"quantization_config": {"quant_method": "awq"}}}, "quantised (awq)"),
        ({"config.json": "no JSON"}, "some-org/tiny"),
        ({"model.safetensors": None, "model.safetensors.index.json": {"weight_map": {"a": "../x.safetensors"}}}, "names files that are not"),
        ({"model.safetensors": None, "model.safetensors.index.json": {"weight_map": {"a": "x.safetensors"}}}, "lacks x.safetensors"),
    ],
)  # fmt: skip
def test_what_cannot_be_loaded_is_refused_before_its_weights_are_fetched(
    hub: Hub, files: dict[str, Any], reason: str
) -> None:
    for name, content in files.items():
        if content is None:
            del hub.files[name]
        else:
            hub.files[name] = (content if isinstance(content, str) else json.dumps(content)).encode()
    assert reason in refused()
    assert not any(name.endswith(".safetensors") for name in hub.files_asked())


def test_what_does_not_fit_is_refused_with_the_numbers(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KV_LIVE_MAX_MEMORY", "1 GiB")
    large = TINY_CONFIG | {"hidden_size": 4096, "intermediate_size": 16384, "num_hidden_layers": 40}
    hub.files["config.json"] = json.dumps(large).encode()
    message = refused()
    # Heads of 1,024, two of them for keys: 262·4096 + 40·(3·4096² + 3·4096·16384 + 2·4096) + 4096 numbers of two bytes.
    assert "needs 18.75 GiB of weights in bf16" in message
    assert "1 GiB are free" in message
    assert hub.files_asked() == ["config.json"]


def test_a_full_disk_is_said_before_it_is_full(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models.shutil, "disk_usage", lambda place: type("Usage", (), {"free": 1000})())
    assert "on disk, and 1,000 B are free there" in refused()
    assert "model.safetensors" not in hub.files_asked()


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ((401, "GatedRepo"), "is gated"),
        ((401, ""), "token in HF_TOKEN is not valid"),
        ((404, "RepoNotFound"), "is not on the Hub"),
        ((429, ""), "rate limit"),
        ((500, ""), "answered with 500"),
    ],
)
@pytest.mark.parametrize("what", ["listing", "model.safetensors"])
def test_refusals_of_the_hub(hub: Hub, what: str, status: tuple[int, str], reason: str) -> None:
    hub.status[what] = status
    assert reason in refused()


def test_offline_and_out_of_reach(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE forbids" in refused()
    assert hub.asked == []
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert "cannot be reached" in refused()


@pytest.mark.parametrize(
    "answer",
    [
        b"[]",
        b"{}",
        b'{"sha": "x", "siblings": []}',
        b'{"sha": "' + b"a" * 40 + b'", "siblings": [{"size": 1}]}',
        b"<html>",
    ],
)
def test_a_list_that_is_not_understood(hub: Hub, monkeypatch: pytest.MonkeyPatch, answer: bytes) -> None:
    monkeypatch.setattr(hub, "listing", lambda: answer)
    assert "list of its files is not understood" in refused()


def test_a_file_longer_than_the_hub_said(hub: Hub, tmp_path: Path) -> None:
    short = the_hub.RemoteFile(name="model.safetensors", size=10)
    with pytest.raises(SourceError, match="is larger than the Hub said"):
        the_hub.download(NAME, COMMIT, short, tmp_path / "x", lambda done: True)
    (tmp_path / "y").write_bytes(b"12345678901234567890")  # More than the file has: begun again.
    whole = the_hub.RemoteFile(name="README.md", size=1)
    assert the_hub.download(NAME, COMMIT, whole, tmp_path / "y", lambda done: True)
    assert (tmp_path / "y").read_bytes() == b"#"
    empty = the_hub.RemoteFile(name="none", size=0)
    assert the_hub.download(NAME, COMMIT, empty, tmp_path / "z", lambda done: True)
    assert (tmp_path / "z").read_bytes() == b""


def test_two_at_once_download_it_once(hub: Hub) -> None:
    found: list[Any] = []

    def get() -> None:
        found.append(models.prepare(f"hub:{NAME}", go_on).folder)

    started = [threading.Thread(target=get) for _ in range(2)]
    for one in started:
        one.start()
    for one in started:
        one.join(60)
    assert len(found) == 2
    assert len(set(found)) == 1
    assert hub.files_asked().count("model.safetensors") == 1


def test_a_damaged_download_is_fetched_anew(hub: Hub) -> None:
    folder = models.prepare(f"hub:{NAME}", go_on).folder
    (folder / "model.safetensors").write_bytes(b"x")
    assert models.prepare(f"hub:{NAME}", go_on).folder == folder
    assert (folder / "model.safetensors").read_bytes() == hub.files["model.safetensors"]
