"""Answers of the command line that are recorded and compared: benchmarks/answers.py."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.answers import (
    ENGINES,
    MISSING,
    Allowed,
    Answer,
    Command,
    Difference,
    Record,
    answer,
    commands,
    compare,
    differences,
    main,
    read,
    read_allowed,
    write,
)
from tests.models import LLAMA, catalogue_rows

SIZE = Command(argv=("size", "-", "--tokens", "10", "--json"), stdin=json.dumps(LLAMA))


def answered(value: object, status: int = 0, stderr: str = "") -> Answer:
    return Answer(command=SIZE, status=status, stdout=json.dumps(value) + "\n", stderr=stderr)


def test_the_commands_cover_models_engines_and_gpus() -> None:
    asked, files = commands()
    assert (asked, files) == commands()
    assert len(asked) == len(set(asked)) >= 3000
    words = {word for one in asked for word in one.argv}
    assert words >= {row["model_id"] for row in catalogue_rows()}
    assert words >= {"size", "engine", "plan", "log", "variants", "compare", "sweep", *ENGINES, "--mtp", "--draft"}
    assert not any(word.startswith(("/", "~", "..")) for word in words)
    assert len([one for one in asked if "--json" not in one.argv]) >= 140
    for name in ENGINES:
        assert len([one for one in asked if one.argv[:1] == ("plan",) and name in one.argv]) > 300


def test_an_answer_is_what_the_command_line_says() -> None:
    found, seconds = answer(SIZE)
    assert (found.status, found.stderr, seconds > 0) == (0, "", True)
    assert json.loads(found.stdout)["bytes_per_token"] == 4 * 2 * 2 * 64 * 2
    refused, _ = answer(replace(SIZE, argv=("size", "nobody/nothing", "--tokens", "1", "--json")))
    assert (refused.status, json.loads(refused.stdout)["kind"]) == (2, "model")
    assert refused.stderr.startswith("kvcore: ")


def test_a_record_comes_back_from_its_file(tmp_path: Path) -> None:
    made = Record(files={"files/x": b"\0\xff"}, answers=(answered({"a": "é\u2028"}),), every=3)
    write(made, tmp_path / "record.gz")
    assert read(tmp_path / "record.gz") == made


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"a": 1, "b": [{"c": 2}, {"c": 3}]}, {"a": 1, "b": [{"c": 2}, {"c": 4}]}, [("b[].c", 3, 4)]),
        # One more item, wherever it stands, is one difference.
        ({"b": [1, 2, 3]}, {"b": [0, 1, 2, 3]}, [("b[]", MISSING, 0)]),
        ({"a": 1}, {"a": 1.0}, [("a", 1, 1.0)]),
        ({"a": 1}, {"a": True}, [("a", 1, True)]),
        ({"a": None}, {}, [("a", None, MISSING)]),
    ],
)
def test_differences_are_named_by_their_key(
    before: object, after: object, expected: list[tuple[str, object, object]]
) -> None:
    found = list(differences(answered(before), answered(after)))
    assert found == [Difference(path=path, before=old, after=new) for path, old, new in expected]


def test_every_byte_counts() -> None:
    assert not list(differences(answered({"a": 1}), answered({"a": 1})))
    (order,) = differences(answered({"a": 1, "b": 2}), answered({"b": 2, "a": 1}))
    assert order.path.startswith("(order of keys")
    (status,) = differences(answered({"a": 1}), answered({"error": "no"}, 2, "kvcore: no"))
    assert status.path == "(exit status)"
    # The line on stderr says what the object says.
    (error,) = differences(answered({"error": "a"}, 2, "kvcore: a"), answered({"error": "b"}, 2, "kvcore: b"))
    assert error.path == "error"
    (warned,) = differences(answered({"a": 1}), answered({"a": 1}, 0, "a warning"))
    assert warned.path == "(stderr)"


def test_expected_differences_are_listed_apart(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    before = Record(files={}, answers=(answered({"a": [200]}),))
    after = Record(files={}, answers=(answered({"a": [250]}),))
    assert compare(before, after, [], 1)
    assert "200 → 250 (+25.000%)" in capsys.readouterr().out
    (tmp_path / "expected.toml").write_text('[[allow]]\nargv = "size *--json"\npath = "a[]"\nreason = "mended"\n')
    allowed = read_allowed(tmp_path / "expected.toml")
    assert allowed == [Allowed(argv="size *--json", path="a[]", reason="mended")]
    assert not compare(before, after, allowed, 1)
    assert re.search(r"Allowed: mended.*\n\nsize: a\[\] \(1 answer\)", capsys.readouterr().out)
    assert compare(before, after, [Allowed(argv="plan *", path="*", reason="not this")], 1)
    assert "not found" in capsys.readouterr().out


def test_commands_that_only_one_record_has_are_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    whole = Record(files={}, answers=(answered({}), replace(answered({}), command=Command(argv=("log",)))))
    part = replace(whole, answers=whole.answers[:1])
    assert compare(whole, part, [], 1)
    assert "1 commands of the first record alone" in capsys.readouterr().out
    for name, one in (("whole", whole), ("part", replace(part, every=2))):
        write(one, tmp_path / name)
    assert main(("compare", str(tmp_path / "whole"), str(tmp_path / "part"))) == 0
