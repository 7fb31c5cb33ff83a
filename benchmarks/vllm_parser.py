"""vLLM's own parser, run by a Python that has vLLM (see benchmarks.check_launch); it imports nothing of this project.

`record` prints the parser's options as JSON. `parse` reads a JSON list of word lists on standard input, each without
`vllm serve`, and prints what each parses to, or why it does not.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from argparse_record import parse, record

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")


def parser() -> Any:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    return make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))


def version() -> str:
    import vllm

    return str(vllm.__version__)


if __name__ == "__main__":
    made = parser()
    answer = record(made) if sys.argv[1] == "record" else parse(made, json.load(sys.stdin))
    print(json.dumps({"version": version(), "answer": answer}))
