"""Make the recordings that the Live screen plays where nothing can run: `python -m benchmarks.live_recording`.

A run with and without the cache, the probe and the race of the default model, on this machine, with its real engine,
into data/live. Run it on a quiet machine: what it writes is shown as measured.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from kvcore.live import runs
from kvcore.live.queue import DONE, LiveQueue

FOLDER = Path(__file__).parents[1] / "data" / "live"
PROMPT = "Explain in a few sentences why the sky is blue."
JOBS: dict[str, dict[str, Any]] = {
    "run": {"job": "run", "prompt": PROMPT, "new_tokens": 64, "also_recompute": True},
    "probe": {"job": "probe", "contexts": [16, 64, 256, 1024]},
    "race": {"job": "race", "variants": ["mha", "shipped", "mqa", "mla:256+32", "sliding:256"],
             "contexts": [128, 512, 1024]},
}  # fmt: skip


def main() -> int:
    """Write one file a kind; 1 where a job fails."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    queue = LiveQueue()
    try:
        for kind, job in JOBS.items():
            ticket = queue.submit(job, lease_s=3600)
            ticket.wait()
            if ticket.state != DONE:
                print(f"{kind}: {ticket.state}: {ticket.message}", file=sys.stderr)
                return 1
            record = runs.from_events(
                ticket.events(0), name=f"The {kind} that comes with the dashboard", kind=kind,
                prompt=str(job.get("prompt", "")),
            )  # fmt: skip
            (FOLDER / f"{kind}.json").write_text(runs.to_json(record), "utf-8")
            print(f"{kind}: {record.duration_s:.1f} s, {len(record.events)} events")
    finally:
        queue.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
