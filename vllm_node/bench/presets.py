"""The workloads that come with this project. Their numbers are ours: illustrative, measured from nobody's traffic."""

from __future__ import annotations

from dataclasses import dataclass

from vllm_node.load.lengths import Lengths


@dataclass(frozen=True)
class Steps:
    """What makes a workload one of workflows: calls one after the other, with something done in between."""

    calls: Lengths
    new_tokens: Lengths
    think_ms: Lengths


@dataclass(frozen=True)
class Workload:
    """Lengths in tokens. `shared_prefix_share` is of the prompts (of a workflow's first one)."""

    name: str
    description: str
    prompt_tokens: Lengths
    output_tokens: Lengths
    shared_prefix_share: float = 0.0
    steps: Steps | None = None


def _spread(p50: int, p95: int, p99: int, most: int, least: int = 1) -> Lengths:
    return Lengths(least, most, p50, p95, p99)


PRESETS = {
    one.name: one
    for one in (
        Workload(
            "smoke",
            "short questions and short answers, so that a few minutes hold enough of them to judge by",
            prompt_tokens=_spread(96, 192, 256, 384, 32),
            output_tokens=_spread(24, 48, 64, 96, 4),
            shared_prefix_share=0.3,
        ),
        Workload(
            "chat",
            "people who talk to an assistant: one system prompt for all, a history that is mostly short, sometimes a "
            "long text that was pasted in; a few answers are essays",
            prompt_tokens=_spread(450, 2200, 4500, 8000, 32),
            output_tokens=_spread(220, 800, 1400, 2048, 8),
            shared_prefix_share=0.3,
        ),
        Workload(
            "rag",
            "questions over documents that were looked up: long prompts of which only the instructions are alike, "
            "short answers",
            prompt_tokens=_spread(3000, 7000, 12000, 24000, 512),
            output_tokens=_spread(180, 500, 900, 1500, 8),
            shared_prefix_share=0.1,
        ),
        Workload(
            "agent",
            "programs that call the model several times in a row and run a tool in between; each prompt is the one "
            "before with the answer and the tool's result at its end",
            prompt_tokens=_spread(2500, 5000, 8000, 12000, 512),
            output_tokens=_spread(120, 450, 900, 1500, 8),
            shared_prefix_share=0.5,
            steps=Steps(
                calls=Lengths(3, 10),
                new_tokens=_spread(350, 1800, 3500, 6000, 16),
                think_ms=_spread(600, 4000, 8000, 15000, 50),
            ),
        ),
    )
}
