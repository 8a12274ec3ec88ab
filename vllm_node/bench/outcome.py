"""What the stages of a benchmark come to: figures of each step over its repeats, and one verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vllm_node.bench import agreement
from vllm_node.bench.report import spread
from vllm_node.bench.report.drawings import name_of
from vllm_node.bench.stages import Turn

PASS, FAIL, INSUFFICIENT = "pass", "fail", "insufficient"


def steps(done: Sequence[tuple[Turn, Mapping[str, Any], Mapping[str, Any] | None]]) -> list[dict[str, Any]]:
    """The steps of a run document from (turn, the client's result, the server's figures or None) of each stage."""
    found: dict[tuple[float | None, int | None], dict[str, Any]] = {}
    for turn, client, server in sorted(done, key=lambda each: (each[0].repeat, each[0].order)):
        step = found.setdefault(
            (turn.rate_per_s, turn.clients), {"rate_per_s": turn.rate_per_s, "clients": turn.clients, "repeats": []}
        )
        told = agreement.story(client, server)
        step["repeats"].append(
            {"repeat": turn.repeat, "order": turn.order, "client": client, "server": server, "agreement": told}
        )
    open_first = sorted(found, key=lambda key: (key[0] is None, key[0] or key[1] or 0))
    return [{**found[key], "summary": spread.summary(found[key])} for key in open_first]


def verdict(
    found: Sequence[Mapping[str, Any]], correctness: Sequence[Mapping[str, Any]], partial: str | None
) -> dict[str, Any]:
    """Of the whole run: fail when a check or a step failed, pass when all of them held, insufficient otherwise.

    The sustainable rate is the highest one that held in all repeats, and so did every rate below it.
    """
    wrong = [f"{one['check']}: {one['seen']}" for one in correctness if one["outcome"] == "fail"]
    verdicts = {name_of(step): [one["client"]["verdict"] for one in step["repeats"]] for step in found}
    fails = [f"{name}: {reason}" for name, own in verdicts.items() for reason in _reasons(own, FAIL)]
    lacks = [f"{name}: {reason}" for name, own in verdicts.items() for reason in _reasons(own, INSUFFICIENT)]
    if partial:
        lacks.append(f"the benchmark ended early: {partial}")
    if not found:
        lacks.append("no stage was run")
    sustainable = None
    for step in found:
        if step["rate_per_s"] is None or any(one["client"]["verdict"]["verdict"] != PASS for one in step["repeats"]):
            break
        sustainable = step["rate_per_s"]
    word = FAIL if wrong or fails else INSUFFICIENT if lacks else PASS
    return {
        "verdict": word,
        "reasons": [*wrong, *fails, *lacks],
        "sustainable_rate_per_s": sustainable,
        "how": "measured: the highest rate that held in all repeats, and all below it",
    }


def _reasons(verdicts: Sequence[Mapping[str, Any]], word: str) -> list[str]:
    return [reason for one in verdicts if one["verdict"] == word for reason in one["reasons"] or [word]]
