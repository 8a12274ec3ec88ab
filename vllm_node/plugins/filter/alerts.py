"""The rule files of `vllm_node.alerts`, for the role `prometheus`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

from vllm_node import alerts


def alert_rules(
    overrides: Mapping[str, Any],
    *,
    dashboards_url: str,
    jobs: Collection[str] | None = None,
    gpus: int | None = None,
) -> dict[str, str]:
    """`{component: rule file}` of `prometheus_alerts`; components of which the node has nothing are left out."""
    try:
        texts = {
            component: alerts.rule_file(component, overrides, dashboards_url=dashboards_url, jobs=jobs, gpus=gpus)
            for component in alerts.COMPONENTS
        }
    except ValueError as error:
        raise AnsibleFilterError(str(error)) from error
    return {component: text for component, text in texts.items() if text}


def alert_rule_files(overrides: Mapping[str, Any], folder: str, **context: Any) -> list[dict[str, Any]]:
    """The same as files below `folder`, as `stage` takes them: Prometheus takes them up without a restart."""
    return [
        {"path": f"{folder}/alerts-{component}.yml", "content": text, "live": True}
        for component, text in alert_rules(overrides, **context).items()
    ]


class FilterModule:
    """Names that the role uses."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name → function."""
        return {
            "alert_rule_files": alert_rule_files,
            "duration_s": alerts.seconds,
        }
