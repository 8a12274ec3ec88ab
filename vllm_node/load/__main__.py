"""`python -m vllm_node.load run --plan plan.json --out DIR` and `python -m vllm_node.load selftest`.

Exit codes: 0 pass (or the self-test ran), 10 fail, 11 insufficient (void and partial runs too), 2 wrong plan or usage,
4 the run could not be made, 1 a fault of the program.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from vllm_node.load import plan as plans
from vllm_node.load import selftest
from vllm_node.load.distribution import INSUFFICIENT
from vllm_node.load.framing import NAMES
from vllm_node.load.run import run
from vllm_node.load.verdict import FAIL, PASS

_CODES = {PASS: 0, FAIL: 10, INSUFFICIENT: 11}


def main(words: list[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m vllm_node.load", description="Measures a server that streams.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("run", help="run one stage")
    one.add_argument("--plan", type=Path, required=True, help="JSON file; docs/benchmark.md describes it")
    one.add_argument("--out", type=Path, required=True, help="folder for result.json and records.bin")
    two = verbs.add_parser("selftest", help="find how much load this machine can make")
    two.add_argument("--backend", choices=NAMES, default="auto")
    two.add_argument("--seconds", type=float, default=2.0, help="length of a step (default: 2)")
    given = parser.parse_args(words)
    try:
        if given.verb == "selftest":
            sys.stdout.write(json.dumps(selftest.ceiling(given.backend, given.seconds), indent=1) + "\n")
            return 0
        result = run(plans.read(given.plan), given.out)
    except plans.PlanError as error:
        sys.stderr.write("".join(f"plan: {problem}\n" for problem in error.problems))
        return 2
    except OSError as error:
        sys.stderr.write(f"the run could not be made: {error}\n")
        return 4
    return _CODES[result["verdict"]["verdict"]]


if __name__ == "__main__":
    sys.exit(main())
