"""The dashboards of a node, for the role `grafana`: ours with the site's thresholds, and those that are imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

_FOLDER = "/etc/vllm-node/grafana/dashboards"


def dashboard_files(
    overrides: Mapping[str, Any], places: list[str] | None = None, lenient: bool = False
) -> list[dict[str, Any]]:
    """Files of all dashboards as `stage` takes them; `overrides` are `prometheus_alerts`, `places` what is imported."""
    # Ansible loads this file in nearly every task's process, and one of them needs what is behind it.
    from vllm_node.dashboards import importing, store

    try:
        numbers = store.numbers(overrides)
        own = {path.stem: store.text(path, numbers) for path in store.paths()}
    except (OSError, ValueError) as error:
        raise AnsibleFilterError(str(error)) from error
    verdicts = importing.judge([str(place) for place in places or []], lenient=bool(lenient))
    refused = [f"{verdict.path}: {reason}" for verdict in verdicts for reason in verdict.reasons]
    if refused:
        raise AnsibleFilterError("grafana_dashboards_import: " + "; ".join(refused))
    texts = {**own, **{verdict.uid: verdict.text for verdict in verdicts}}
    # Grafana looks into the folder by itself: a changed dashboard is no reason for a restart.
    return [{"path": f"{_FOLDER}/{uid}.json", "content": text, "live": True} for uid, text in texts.items()]


class FilterModule:
    """Names that the role uses."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name → function."""
        return {"dashboard_files": dashboard_files}
