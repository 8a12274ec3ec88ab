"""Real Prometheus and Alertmanager programs of both generations, for tests and benches on this machine.

Debian's packages are unpacked into the lab's cache and nothing is installed. A program runs through the loader and the
libraries that were unpacked with it: it may be newer than this machine's own C library.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from vllm_node.lab.cache import entry, recipe_hash
from vllm_node.lab.command import run
from vllm_node.lab.errors import LabError
from vllm_node.lab.roots import RELEASES

Series = Literal["2.53", "3"]
"""Generations of Prometheus that a site may have: the last 2.x with long support, and 3.x."""

_PACKAGES = ("prometheus", "prometheus-alertmanager")
_OF_SERIES: dict[Series, str] = {"2.53": "5.4", "3": "5.8"}
# What a mirror ships moves on, so the programs are fetched anew once this is raised.
_REVISION = 1


def promtool(series: Series) -> list[str]:
    """First words of a command line of promtool of that generation."""
    return _program("promtool", series)


def prometheus(series: Series) -> list[str]:
    """First words of a command line of the Prometheus server of that generation."""
    return _program("prometheus", series)


def amtool(series: Series = "2.53") -> list[str]:
    """First words of a command line of amtool; Debian's of the release that has Prometheus `series`."""
    return _program("amtool", series)


def alertmanager(series: Series = "2.53") -> list[str]:
    """First words of a command line of Alertmanager; Debian's of the release that has Prometheus `series`.

    It reads its texts from a folder of the system, so it gets a view in which that folder is the unpacked one.
    """
    share = _root(series) / "usr/share"
    view = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /usr/share && exec "$@"', str(share)]
    return [*view, *_program("prometheus-alertmanager", series)]


def _program(name: str, series: Series) -> list[str]:
    root = _root(series)
    program = root / "usr/bin" / name
    if not program.is_file():
        raise LabError(f"{program} is not there; remove {root.parent} and run this again")
    return _argv(root, name)


def _argv(root: Path, name: str) -> list[str]:
    loader, libraries = root / "usr/lib64/ld-linux-x86-64.so.2", root / "usr/lib/x86_64-linux-gnu"
    return [str(word) for word in (loader, "--library-path", libraries, root / "usr/bin" / name)]


def _root(series: Series) -> Path:
    release = RELEASES[_OF_SERIES[series]]
    key = recipe_hash(_REVISION, release.suite, list(_PACKAGES), list(release.options))

    def build(folder: Path) -> None:
        _extract(release.suite, folder / "root", release.options)
        _check(folder / "root", series)

    return entry(f"tools-{release.suite}", key, build) / "root"


def _extract(suite: str, target: Path, options: Sequence[str]) -> None:
    """Unpack the packages and what they need; nothing of them runs, so no service can start."""
    run(
        [
            *("mmdebstrap", "--quiet", "--variant=extract", f"--include={','.join(_PACKAGES)}"),
            *options,
            *(suite, target),
        ],
        env={**os.environ, "SOURCE_DATE_EPOCH": "0"},
    )


def _check(root: Path, series: Series) -> None:
    """A release moves on: say so here rather than in a test that would then test another generation."""
    version = run([*_argv(root, "promtool"), "--version"]).partition("\n")[0]
    if f"version {series}." not in version:
        raise LabError(f"promtool {series} was expected, there is {version}; change vllm_node/lab/tools.py")
