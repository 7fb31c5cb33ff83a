"""What bash makes of a launch command."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterable
from pathlib import Path

from kvcore.planning.launch import Command


def assert_seen_as_words(commands: Iterable[Command], folder: Path) -> None:
    """bash that is given the texts sees exactly our words, and nothing in them is run; `folder` is an empty one."""
    lines, expected = [], []
    for command in commands:
        for line, words in zip(command.text.split("\n"), (command.words, *command.after), strict=True):
            assert tuple(shlex.split(line)) == words
            # Variables before a command are assignments and no words; printf shows the words, each ended by a zero byte.
            before = re.match(r"(?:OLLAMA_\w+=\w+ )*", line)
            lines.append(f"printf '%s\\0' {line[before.end() if before else 0 :]}")
            expected += [word for word in words if not word.startswith("OLLAMA_")]
    shown = subprocess.run(
        ["/bin/bash", "-c", "\n".join(lines)], capture_output=True, cwd=folder, check=True,
        env={"HOME": "/nowhere", "PATH": "/nowhere"},
    )  # fmt: skip
    assert shown.stdout.decode().split("\0")[:-1] == expected
    assert shown.stderr == b""
    assert list(folder.iterdir()) == []
