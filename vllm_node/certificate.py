"""The certificate of a teardown: what differs from the node as it was found, as JSON and as a readable page."""

from __future__ import annotations

import datetime
import glob
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jinja2

from vllm_node.difference import AREAS, Difference, difference
from vllm_node.paths import project_root

SCHEMA = 1
FIRST_SNAPSHOT = "the snapshot taken before the first change"
EARLIER = "the snapshot in the certificate before this one"
NOTHING = "nothing: no bring-up is on record, so it was only checked that nothing carries our names"


@dataclass(frozen=True)
class Certificate:
    """One certificate. `left`: what could not be removed; `kept`: what stays on purpose, by name."""

    host: str
    issued_at: str
    compared_with: str
    left: tuple[str, ...]
    kept: tuple[str, ...]
    found: Difference
    as_found: Mapping[str, Any] | None
    now: Mapping[str, Any]

    @property
    def clean(self) -> bool:
        """Whether nothing is left and nothing differs, but for what was kept on purpose."""
        return not self.left and self.found.clean

    def summary(self) -> dict[str, Any]:
        """What a person is told: texts only."""
        return {
            "clean": self.clean,
            "left": list(self.left),
            "kept": list(self.kept),
            "difference": [
                f"{entry.area}: {entry.item}: was {entry.as_found}, is {entry.now}" for entry in self.found.left_over
            ],
        }

    def document(self) -> dict[str, Any]:
        """Everything, for a program and for the next certificate."""
        return {
            "schema": SCHEMA,
            "host": self.host,
            "issued_at": self.issued_at,
            "version": version("vllm-node"),
            "compared_with": self.compared_with,
            "areas": list(AREAS),
            "clean": self.clean,
            "left": list(self.left),
            "kept": list(self.kept),
            "difference": self.found.as_dict()["left_over"],
            "as_found": self.as_found,
            "now": self.now,
        }


def issue(host: str, teardown: Mapping[str, Any], now: Mapping[str, Any], folder: Path) -> Certificate:
    """Certificate over a teardown (`removed`, `left`, `kept`, `as_found`, `by_packages`) and the snapshot after it.

    A second teardown finds no record on the node any more; then the first snapshot comes from the certificate that
    the earlier one left in `folder`.
    """
    as_found, compared_with = teardown.get("as_found"), FIRST_SNAPSHOT
    if as_found is None:
        as_found, compared_with = _earlier(folder, now.get("machine_id")), EARLIER
    if as_found is None:
        as_found, compared_with = _without_ours(now), NOTHING
    kept = list(teardown["kept"])
    patterns = [f"volumes:{entry['name']}" for entry in kept if entry["kind"] == "volume"]
    references = {entry["name"] for entry in kept if entry["kind"] == "image"}
    patterns += [f"images:{image['id']}" for image in now["images"] or [] if references & set(image["digests"])]
    found = difference(as_found, now, patterns)
    # A package that stays keeps what it brought, as long as that is as the package left it.
    brought = teardown.get("by_packages") or {}
    of_packages = [each for each in found.left_over if brought.get(f"{each.area}:{each.item}") == each.now]
    patterns += [glob.escape(f"{each.area}:{each.item}") for each in of_packages]
    return Certificate(
        host=host,
        issued_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        compared_with=compared_with,
        left=tuple(teardown["left"]),
        kept=tuple(f"{entry['kind']} {entry['name']}" for entry in kept),
        found=difference(as_found, now, patterns),
        as_found=as_found,
        now=now,
    )


def write(certificate: Certificate, folder: Path) -> Sequence[Path]:
    """Write `certificate.json` and `certificate.md` into `folder`; returns both paths."""
    folder.mkdir(parents=True, exist_ok=True)
    document = certificate.document()
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(project_root() / "templates"),
        trim_blocks=True,
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701 - it is Markdown, for a person at a terminal
    )
    page = environment.get_template("certificate.md.j2").render(document)
    paths = (folder / "certificate.json", folder / "certificate.md")
    for path, text in zip(paths, (json.dumps(document, indent=1), page), strict=True):
        # The next certificate may have nothing but this one to compare with: it is never left half written.
        partial = path.with_name(f".{path.name}")
        partial.write_text(text)
        partial.replace(path)
    return paths


def _earlier(folder: Path, machine_id: str | None) -> Mapping[str, Any] | None:
    """The first snapshot that an earlier certificate holds; a node that was installed anew is another one."""
    try:
        document = json.loads((folder / "certificate.json").read_text())
    except FileNotFoundError:
        return None
    then = document["as_found"].get("machine_id")
    another = machine_id is not None and then is not None and then != machine_id
    # A certificate over nothing has nothing to offer to the next one.
    return None if document["compared_with"] == NOTHING or another else document["as_found"]


def _without_ours(now: Mapping[str, Any]) -> Mapping[str, Any]:
    """What `now` would be without anything of ours: what a node on which nothing is on record is held against."""
    units = now["units"]
    if units is not None:
        units = {**units, "toolkit": [], **{kind: _others(units[kind]) for kind in ("failed", "installed")}}
    containers = now["containers"]
    if containers is not None:
        containers = [one for one in containers if "io.vllm-node.component" not in (one["labels"] or {})]
    files = now["files"]
    if files is not None:
        files = {path: state for path, state in files.items() if "vllm-node" not in path}
    return {**now, "units": units, "containers": containers, "files": files}


def _others(names: Sequence[str] | None) -> list[str] | None:
    """`names` without ours; what could not be seen stays unseen."""
    return None if names is None else [name for name in names if not _is_ours(name)]


def _is_ours(name: str) -> bool:
    return name.rpartition("/")[2].startswith(("vllm-", "gpu-cdi-ready"))
