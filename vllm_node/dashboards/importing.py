"""Takes in dashboards from elsewhere: made fit for file provisioning, or refused with all reasons at once."""

from __future__ import annotations

import copy
import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vllm_node.dashboards import panel_types, queries, store
from vllm_node.dashboards.sources import Sources

_UID = re.compile(r"[a-zA-Z0-9_-]{1,40}")
_LARGEST_BYTES = 2_000_000


@dataclass(frozen=True)
class Verdict:
    """What came of one file. `text` is what a node gets; it is empty when there are `reasons`, which refuse it."""

    path: str
    uid: str = ""
    title: str = ""
    text: str = ""
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def taken(self) -> bool:
        """Whether it can be imported."""
        return not self.reasons

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "file": self.path,
            "uid": self.uid,
            "title": self.title,
            "verdict": "imported" if self.taken else "refused",
            "reasons": list(self.reasons),
            "warnings": list(self.warnings),
        }


def judge(places: Iterable[str], *, lenient: bool = False) -> list[Verdict]:
    """A verdict on each file of `places`: files, or folders whose `*.json` are taken.

    `lenient` turns panel types that Grafana converts by itself, and metrics that nobody knows, into warnings.
    """
    verdicts = []
    for place in places:
        files, problem = _files(place)
        if problem:
            verdicts.append(Verdict(place, reasons=(problem,)))
        verdicts += [_judge_file(path, lenient) for path in files]
    return _without_clashes(verdicts)


def from_variables(variables: Mapping[str, Any]) -> list[Verdict]:
    """The same for what a site's `grafana_dashboards_import` and `grafana_dashboards_import_lenient` say."""
    places = variables.get("grafana_dashboards_import")
    if not isinstance(places, list | tuple):
        return []
    lenient = str(variables.get("grafana_dashboards_import_lenient", False)).lower() in ("true", "yes", "on", "1")
    return judge([str(place) for place in places], lenient=lenient)


def _files(place: str) -> tuple[list[Path], str | None]:
    path = Path(place).expanduser()
    if not path.is_absolute():
        return [], "the path is relative: write {{ inventory_dir }}/… for files beside the inventory"
    if path.is_dir():
        found = sorted(path.glob("*.json"))
        return found, None if found else "there is no *.json in this folder"
    return ([path], None) if path.is_file() else ([], "there is no such file or folder")


def _judge_file(path: Path, lenient: bool) -> Verdict:
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            return Verdict(str(path), reasons=(f"it is larger than {_LARGEST_BYTES // 1_000_000} MB",))
        return replace(_judge_text(path.stem, path.read_text(encoding="utf-8-sig"), lenient), path=str(path))
    except (OSError, UnicodeDecodeError) as error:
        return Verdict(str(path), reasons=(f"it cannot be read: {error}",))


# A run asks for every host, and each time before and while it stages.
@functools.lru_cache(maxsize=256)
def _judge_text(stem: str, text: str, lenient: bool) -> Verdict:
    try:
        content = json.loads(text)
    except ValueError as error:
        return Verdict("", reasons=(f"it is no JSON: {error}",))
    except RecursionError:
        return Verdict("", reasons=("it is nested too deeply",))
    board, problem = _unwrapped(content)
    if board is None:
        return Verdict("", reasons=(problem,))
    return _judge_board(stem, copy.deepcopy(board), lenient)


def _unwrapped(content: Any) -> tuple[dict[str, Any] | None, str]:
    """The dashboard itself, out of the wrappers that Grafana's interfaces put around it."""
    if not isinstance(content, dict):
        return None, "it is no dashboard: the file holds no JSON object"
    if isinstance(content.get("dashboard"), dict):
        content = content["dashboard"]
    elif isinstance(content.get("spec"), dict):
        content = content["spec"]
    if "elements" in content and "layout" in content:
        return None, "it is in the second schema (elements and layout): export it anew as the classic model"
    if not isinstance(content.get("title"), str) or not content["title"].strip():
        return None, "it is no dashboard: it has no title"
    if not isinstance(content.get("panels", content.get("rows")), list):
        return None, "it is no dashboard: it has no list of panels"
    return content, ""


def _judge_board(stem: str, board: dict[str, Any], lenient: bool) -> Verdict:
    title = board["title"]
    reasons: list[str] = []
    warnings: list[str] = []
    sources = Sources(board)
    reasons += sources.reasons
    warnings += sources.warnings
    board["id"] = None
    for name in ("iteration", "version", "gnetId"):
        board.pop(name, None)
    uid = str(board.get("uid") or "")
    if not _UID.fullmatch(uid):
        made = _made_uid(stem)
        if uid:
            warnings.append(f"its uid {uid!r} cannot be used (1 to 40 letters, digits, - and _): it is now {made}")
        uid = made
    board["uid"] = uid
    _number_panels(board)
    softened = warnings if lenient else reasons
    for panel in all_panels(board):
        name = _name(panel)
        complaint = panel_types.complaint(panel.get("type"))
        if complaint:
            (softened if panel.get("type") in panel_types.RETIRED else reasons).append(f"{name} {complaint}")
        if "libraryPanel" in panel:
            reasons.append(f"{name} is a library panel, which is not in the file: unlink it and export anew")
        found = queries.judge_panel(panel)
        softened += [f"{name}: {text}" for text in found.unknown]
        reasons += [f"{name}: {text}" for text in found.broken]
        warnings += [f"{name}: {text}" for text in found.doubtful]
    found = queries.judge_variables(board)
    softened += found.unknown
    reasons += found.broken
    warnings += found.doubtful
    text = "" if reasons else json.dumps(board, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    return Verdict("", uid, title, text, _once(reasons), _once(warnings))


def all_panels(board: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Panels at every depth, also those of the old schema with `rows`."""
    found = []
    for place in ("panels", "rows"):
        for panel in board.get(place) or []:
            if isinstance(panel, dict):
                found += [panel] if place == "panels" else []
                found += all_panels(panel)
    return found


def _name(panel: Mapping[str, Any]) -> str:
    return f"panel {str(panel.get('title') or panel.get('id') or '(untitled)')!r}"


def _number_panels(board: Mapping[str, Any]) -> None:
    """Ids of panels are kept where they are unique; the rest get free ones."""
    panels = all_panels(board)
    taken: set[int] = set()
    free = iter(range(1 + max([_id(panel) for panel in panels], default=0), 1_000_000_000))
    for panel in panels:
        if _id(panel) < 1 or _id(panel) in taken:
            panel["id"] = next(free)
        taken.add(panel["id"])


def _id(panel: Mapping[str, Any]) -> int:
    value = panel.get("id")
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _made_uid(stem: str) -> str:
    """A uid from the file's name, so that links stay good when the content changes."""
    slug = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")
    return f"import-{slug}"[:40].rstrip("-")


def _without_clashes(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Refuse what would take the place of one of ours, or of another file."""
    owners = {path.stem: f"the project's own {path.stem}" for path in store.paths()}
    done = []
    for verdict in verdicts:
        owner = owners.get(verdict.uid) if verdict.uid else None
        if owner:
            reason = f"its uid {verdict.uid} is already that of {owner}: give it another one"
            verdict = replace(verdict, reasons=(*verdict.reasons, reason), text="")
        elif verdict.uid:
            owners[verdict.uid] = verdict.path
        done.append(verdict)
    return done


def _once(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))
