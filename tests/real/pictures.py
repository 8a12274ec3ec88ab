"""`make pictures`: a lab node is brought up and loaded for a while, and each dashboard is drawn from its Prometheus."""

from __future__ import annotations

import subprocess
import sys

from tests.labs import Nodes
from tests.real.load import some_load
from vllm_node.lab.lab import Lab
from vllm_node.lab.node import Spec
from vllm_node.paths import project_root

LAB, NODE = "pictures", "gpu1"
# Half a minute each, with a pause of the length of a scrape or two between them.
ROUNDS = 6
MINUTES = 5


def main() -> int:
    """Draw them; returns an exit code."""
    nodes = Nodes(LAB)
    Lab.up(LAB, [Spec(NODE)])
    try:
        run = nodes.run("up", limit=NODE)
        if run.code != 0:
            sys.exit(f"the node does not come up: {run.document}")
        with nodes.tunnel(NODE, 8000) as url:
            for _ in range(ROUNDS):
                some_load(url)
        with nodes.tunnel(NODE, 9091) as url:
            words = ["--prometheus", url, "--output", str(project_root() / "docs/images"), "--minutes", str(MINUTES)]
            return subprocess.run([sys.executable, "-m", "vllm_node.dashboards.pictures", *words], check=False).returncode
    finally:
        found = Lab.find(LAB)
        if found is not None:
            found.down()


if __name__ == "__main__":
    sys.exit(main())
