"""The stored dashboards: where they lie, their text for a node, where a panel is to be found."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from vllm_node.paths import project_root

MARK = "alert:"
"""Begins a threshold that stands for that of an alert."""
_IN_TEXT = re.compile(r"\{alert:([\w.]+)\}")

Model = dict[str, Any]


def folder() -> Path:
    """Where they are stored: with the role that brings them to a node."""
    return project_root() / "roles/grafana/files/dashboards"


def paths() -> list[Path]:
    """Files of all dashboards, in the order of their names."""
    return sorted(folder().glob("*.json"))


def load(uid: str) -> Model:
    """A stored dashboard, with its thresholds still open.

    Raises:
        ValueError: there is none with this uid.
    """
    known = {path.stem: path for path in paths()}
    if uid not in known:
        raise ValueError(f"there is no dashboard {uid}{_guess(uid, known)}")
    model: Model = json.loads(known[uid].read_text())
    return model


def panels(model: Model) -> Iterator[Model]:
    """All panels of a dashboard, those inside of rows too."""
    for panel in model.get("panels") or []:
        yield panel
        yield from panels(panel)


def panel_path(uid: str, title: str) -> str:
    """Address of a panel below that of Grafana, such as `/d/vllm-node-gpu?viewPanel=7`.

    Raises:
        ValueError: there is no such dashboard, or none of its panels has this title.
    """
    ids = _panel_ids(uid)
    if title not in ids:
        raise ValueError(f"{uid}: there is no panel {title!r}{_guess(title, ids)}")
    return f"/d/{uid}?viewPanel={ids[title]}"


@cache
def _panel_ids(uid: str) -> Mapping[str, int]:
    """Ids by title; each alert asks twice, and the files do not change while a node is brought up."""
    return {panel["title"]: panel["id"] for panel in panels(load(uid)) if panel.get("title")}


def numbers(overrides: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """What may stand for a number in a stored dashboard: thresholds by alert, an alert's own numbers as `Alert.name`.

    `overrides` are the site's `prometheus_alerts`. Raises ValueError when they are not good.
    """
    # The alerts ask this module for the addresses of panels.
    from vllm_node import alerts

    own = {
        f"{name}.{key}": float(value)
        for name, alert in alerts.in_force(overrides).items()
        for key, value in alert.params.items()
        if not isinstance(value, str)
    }
    return {**alerts.thresholds(overrides), **own}


def text(path: Path, thresholds: Mapping[str, float]) -> str:
    """A stored dashboard as a node gets it: `alert:<Name>` replaced by numbers (see `numbers`).

    Raises:
        ValueError: an alert is named that has no number; the dashboard and the panel are told.
    """
    model: Model = json.loads(path.read_text())
    for panel in panels(model):
        try:
            _fill(panel, thresholds)
        except KeyError as error:
            raise ValueError(
                f"{path.name}, panel {panel.get('title')!r}: there is no number of {error.args[0]}"
                f"{_guess(error.args[0], thresholds)}"
            ) from None
    return json.dumps(model, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def _fill(node: Any, thresholds: Mapping[str, float]) -> None:
    if isinstance(node, list):
        for entry in node:
            _fill(entry, thresholds)
    elif isinstance(node, dict):
        for key, value in node.items():
            if isinstance(value, str):
                node[key] = _filled(value, thresholds)
            else:
                _fill(value, thresholds)
        steps = node.get("steps")
        if isinstance(steps, list):
            # A site may set an alert below a step of our own, and Grafana wants them in order.
            steps.sort(key=lambda step: float("-inf") if step["value"] is None else step["value"])


def _filled(value: str, thresholds: Mapping[str, float]) -> str | float:
    """A threshold becomes a number; inside of a text its digits, as Prometheus writes the edge of a bucket."""
    if value.startswith(MARK):
        return thresholds[value.removeprefix(MARK)]
    return _IN_TEXT.sub(lambda match: repr(float(thresholds[match[1]])), value)


def _guess(name: str, known: Mapping[str, object]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""
