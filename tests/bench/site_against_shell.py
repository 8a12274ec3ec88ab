"""Wall time of `site.yml` against a shell script that does the same by hand, on fresh nodes in one run.

Prints both times and their ratio for each repetition, the time of a second `site.yml` with nothing to do, and how
many module calls each takes. Exit code 1 when a bound is broken: ratio 1.3 (median), second run 20 s.
"""

# ruff: noqa: T201 - its table is for a person at a terminal

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.labs import Nodes
from vllm_node.lab.lab import Lab
from vllm_node.lab.node import Spec
from vllm_node.paths import project_root

RATIO_LIMIT = 1.3
SECOND_RUN_LIMIT_S = 20.0
REPEATS = int(os.environ.get("REPEATS", "2"))
LAB = "bench"


def timed(argv: list[str], nodes: Nodes) -> tuple[float, str]:
    """Seconds that a command took, and its output; it has to succeed."""
    started = time.monotonic()
    done = subprocess.run(
        argv, cwd=project_root(), env=nodes.environment(), capture_output=True, text=True, check=False
    )
    took_s = time.monotonic() - started
    if done.returncode != 0:
        sys.exit(f"{' '.join(argv[:3])} failed:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return took_s, done.stdout


def site(node: str, *words: str) -> list[str]:
    """The command line of a bring-up."""
    words = ("-e", '{"smoke_benchmark": false}', *words)  # the script by hand does not measure either
    return ["ansible-playbook", "-i", "inventories/lab", "playbooks/site.yml", "--limit", node, *words]


def module_calls(output: str) -> int:
    """Modules that were sent to the node, from Ansible's own account at -vvv."""
    return output.count("Using module file")


def take_files(nodes: Nodes, node: str, folder: Path) -> None:
    """Everything that the script needs, taken from a node that site.yml has brought up."""
    manifest = json.loads(nodes.shell(node, "cat /var/lib/vllm-node/manifest.json"))
    (folder / "references").write_text("".join(f"{one}\n" for one in manifest["images"]))
    with (folder / "files.tar").open("wb") as tar:
        words = ["tar", "-C", "/", "-cf", "-", *(path.lstrip("/") for path in manifest["files"])]
        subprocess.run([*nodes.lab.ssh(node), *words], stdout=tar, check=True)
    question = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "What is a GPU node for?"}],
        "max_tokens": 32,
        "temperature": 0,
    }
    (folder / "question.json").write_text(json.dumps(question))


def by_hand(nodes: Nodes, node: str, folder: Path) -> list[str]:
    """The command line of the script."""
    return [
        *(str(Path(__file__).with_name("by_hand.sh")), str(folder / "files.tar"), str(folder / "references")),
        *("/etc/containers/auth-vllm-node.json", "lab-only-password", str(folder / "question.json"), "--"),
        *nodes.lab.ssh(node),
    ]


def main() -> int:
    """Run the comparison and print its table."""
    nodes = Nodes(LAB)
    Lab.up(LAB, [])
    ratios, second_s, calls = [], [], (0, 0)
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            nodes.make(Spec("a"))
            timed(site("a"), nodes)  # warms the page cache, and gives the script its files
            take_files(nodes, "a", folder)
            print(f"{'run':>4} {'site.yml s':>11} {'by hand s':>10} {'ratio':>6} {'second site.yml s':>18}")
            for number in range(REPEATS):
                times = {}
                # The order alternates: whatever the machine does meanwhile hits both.
                for kind in ("site", "hand") if number % 2 == 0 else ("hand", "site"):
                    nodes.remake(Spec("a"))
                    times[kind] = timed(site("a") if kind == "site" else by_hand(nodes, "a", folder), nodes)[0]
                    if kind == "site":
                        second_s.append(timed(site("a"), nodes)[0])
                ratios.append(times["site"] / times["hand"])
                print(
                    f"{number + 1:>4} {times['site']:>11.1f} {times['hand']:>10.1f} {ratios[-1]:>6.2f} {second_s[-1]:>18.1f}",
                    flush=True,
                )
            nodes.remake(Spec("a"))
            first = module_calls(timed(site("a", "-vvv"), nodes)[1])
            calls = (first, module_calls(timed(site("a", "-vvv"), nodes)[1]))
    finally:
        found = Lab.find(LAB)
        if found is not None:
            found.down()
    ratio, second = statistics.median(ratios), max(second_s)
    print(f"median ratio {ratio:.2f} (at most {RATIO_LIMIT}), slowest second run {second:.1f} s (at most {SECOND_RUN_LIMIT_S:.0f} s)")
    print(f"module calls: {calls[0]} in a first run, {calls[1]} in a second one")
    return 0 if ratio <= RATIO_LIMIT and second <= SECOND_RUN_LIMIT_S else 1


if __name__ == "__main__":
    sys.exit(main())
