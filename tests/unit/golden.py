"""What `playbooks/render.yml` makes of the golden inventory, rendered once a run."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.unit.role_code import ROOT

GOLDEN = ROOT / "tests/golden"
_FILLED_IN = re.compile(r"/grafana/dashboards/|/prometheus/rules/alerts-")


def tree(folder: Path) -> dict[str, str]:
    """Text of each file below `folder` by its relative path; hidden files are not of the node."""
    paths = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(paths)}


@functools.cache
def rendered() -> dict[str, str]:
    """`{"node-a/etc/…": text}`, out of the real playbook and the real roles, without connecting to anybody."""
    with tempfile.TemporaryDirectory() as folder:
        words: list[str | Path] = [
            *(Path(sys.executable).with_name("ansible-playbook"), "-i", GOLDEN / "inventory.yml"),
            *(ROOT / "playbooks/render.yml", "-e", f"render_output={folder}"),
        ]
        done = subprocess.run(
            words,
            cwd=ROOT,
            env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return tree(Path(folder))


@functools.cache
def copied() -> dict[str, str]:
    """Files of roles that go to a node as they are: their text, and where they lie in the project."""
    paths = (path for path in (ROOT / "roles").glob("*/files/**/*") if path.is_file())
    return {path.read_text(): str(path.relative_to(ROOT)) for path in paths if "__pycache__" not in path.parts}


def as_golden(files: dict[str, str]) -> dict[str, str]:
    """The same, with the copies in one list (`path <- source`) instead of in full.

    Dashboards and alerts are left out: they are stored files with numbers filled in, and have tests of their own.
    """
    sources = copied()
    files = {path: text for path, text in files.items() if not _FILLED_IN.search(path)}
    copies = "".join(f"{path} <- {sources[text]}\n" for path, text in files.items() if text in sources)
    return {**{path: text for path, text in files.items() if text not in sources}, "copies.txt": copies}
