"""Data sources of a dashboard from elsewhere: every way to name one, resolved to the one that a node has.

File provisioning asks for nothing, so what `__inputs` would ask when a person imports the dashboard has to be
settled before. Variables that choose a data source go as well: there is only one to choose.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

NODE_SOURCE = {"type": "prometheus", "uid": "vllm-node-prometheus"}
_GRAFANAS_OWN = ("-- Grafana --", "-- Mixed --", "-- Dashboard --", "grafana")
_OWN_TYPES = ("grafana", "datasource", "__expr__")
_NAME = re.compile(r"\$\{(\w+)(?::\w+)?\}|\$(\w+)|\[\[(\w+)\]\]")


class Sources:
    """Resolves the data sources of one dashboard in place. What cannot be is in `reasons`, guesses in `warnings`."""

    def __init__(self, board: dict[str, Any]) -> None:
        """Resolve all of `board`."""
        self.reasons: list[str] = []
        self.warnings: list[str] = []
        self._values = self._inputs(board) | self._variables(board)
        self._resolve(board)
        for key in ("__inputs", "__requires", "__elements"):
            board.pop(key, None)

    def _inputs(self, board: Mapping[str, Any]) -> dict[str, str]:
        found = {}
        for entry in _dicts(board.get("__inputs")):
            name, kind = str(entry.get("name")), entry.get("type")
            if kind == "datasource" and entry.get("pluginId") in (None, "", "prometheus"):
                found[name] = NODE_SOURCE["uid"]
            elif kind == "datasource":
                self.reasons.append(
                    f"input {name} asks for a data source of type {entry.get('pluginId')}; a node has Prometheus only"
                )
            elif entry.get("value") not in (None, ""):
                found[name] = str(entry["value"])
            else:
                self.reasons.append(f"input {name} has no value: write one into the file, nobody is asked for it here")
        return found

    def _variables(self, board: dict[str, Any]) -> dict[str, str]:
        templating = board.get("templating")
        if not isinstance(templating, dict):
            return {}
        found, kept = {}, []
        for entry in _dicts(templating.get("list")):
            if entry.get("type") != "datasource":
                kept.append(entry)
            elif entry.get("query") in (None, "", "prometheus"):
                found[str(entry.get("name"))] = NODE_SOURCE["uid"]
            else:
                self.reasons.append(
                    f"variable {entry.get('name')} chooses among data sources of type {entry.get('query')}; "
                    "a node has Prometheus only"
                )
        templating["list"] = kept
        return found

    def _resolve(self, node: Any, place: str = "the dashboard") -> None:
        if isinstance(node, list):
            for index, entry in enumerate(node):
                if isinstance(entry, str):
                    node[index] = self._text(entry)
                else:
                    self._resolve(entry, place)
        elif isinstance(node, dict):
            here = f"panel {node['title']!r}" if "gridPos" in node and node.get("title") else place
            for key, value in node.items():
                if key == "datasource":
                    node[key] = self._source(value, here)
                elif isinstance(value, str):
                    node[key] = self._text(value)
                else:
                    self._resolve(value, here)

    def _text(self, text: str) -> str:
        """A text with the inputs and data source variables filled in; other variables stay."""

        def value(match: re.Match[str]) -> str:
            name = match[1] or match[2] or match[3]
            return self._values.get(name, match[0])

        return _NAME.sub(value, text)

    def _source(self, value: Any, place: str) -> Any:
        if value is None:
            return dict(NODE_SOURCE)
        if isinstance(value, dict):
            return self._object(value, place)
        name = str(value)
        if name in _GRAFANAS_OWN:
            return value
        self._remark(name, place)
        return dict(NODE_SOURCE)

    def _object(self, value: dict[str, Any], place: str) -> dict[str, Any]:
        kind, uid = value.get("type"), str(value.get("uid") or "")
        if kind in _OWN_TYPES or uid in _GRAFANAS_OWN:
            return value
        if kind not in (None, "", "prometheus"):
            self.reasons.append(f"{place} asks a data source of type {kind}; a node has Prometheus only")
            return value
        self._remark(uid, place)
        return dict(NODE_SOURCE)

    def _remark(self, name: str, place: str) -> None:
        """A variable that nobody declares is taken for the node's Prometheus, and that is said."""
        match = _NAME.fullmatch(name)
        variable = (match[1] or match[2] or match[3]) if match else None
        if variable and variable not in self._values and not variable.startswith("DS_"):
            self.warnings.append(f"{place} names the data source {name}, which the file does not declare")


def _dicts(entries: Any) -> list[dict[str, Any]]:
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
