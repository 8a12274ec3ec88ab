"""All hypotheses, and the expressions that their next measurements ask."""

from __future__ import annotations

from vllm_node.diagnosis.facts import Instance, Subject
from vllm_node.diagnosis.hypothesis import Hypothesis
from vllm_node.diagnosis.life import LIFE
from vllm_node.diagnosis.machine import MACHINE
from vllm_node.diagnosis.serving import SERVING
from vllm_node.diagnosis.signals import DEFAULT_WINDOW

HYPOTHESES: tuple[Hypothesis, ...] = (*SERVING, *LIFE, *MACHINE)
BY_ID: dict[str, Hypothesis] = {one.id: one for one in HYPOTHESES}
assert len(BY_ID) == len(HYPOTHESES), "two hypotheses have one id"


def fill(text: str, subject: Subject, window: str, prometheus_url: str) -> str:
    """A command or query of a next measurement, with the names of its subject."""
    instance = subject.instance
    return text.format(
        node=subject.node,
        instance=instance.name if instance else "",
        unit=instance.unit if instance else "",
        container=instance.unit.removesuffix(".service") if instance else "",
        port=instance.port if instance else "",
        window=window,
        prometheus=prometheus_url,
    )


def next_queries(window: str = DEFAULT_WINDOW) -> dict[str, str]:
    """PromQL of next measurements by hypothesis, for an instance of any name."""
    subject = Subject("node", Instance("instance"))
    return {one.id: fill(one.next.query, subject, window, "") for one in HYPOTHESES if one.next.query}
