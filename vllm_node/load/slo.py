"""What the service promises, and where a promise contradicts the work that it is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vllm_node.load.fields import Fields


@dataclass(frozen=True)
class Slo:
    """Seconds at the 95th percentile, shares, and requests per second; None: nothing is promised."""

    ttft_p95_s: float | None = None
    tpot_p95_s: float | None = None
    e2e_p95_s: float | None = None
    error_rate: float | None = None
    goodput_share: float | None = None
    goodput_per_s: float | None = None
    workflow_e2e_p95_s: float | None = None


def slo(fields: Fields) -> Slo:
    """An SLO out of a plan."""
    names = ("ttft_p95_s", "tpot_p95_s", "e2e_p95_s", "workflow_e2e_p95_s")
    seconds = {name: fields.take(name, "a number", None, least=0) for name in names}
    rest = {
        name: fields.take(name, "a number", None, least=0) for name in ("error_rate", "goodput_share", "goodput_per_s")
    }
    for name in ("error_rate", "goodput_share"):
        if rest[name] is not None and rest[name] > 1:
            fields.problem(name, f"is a share between 0 and 1, not {rest[name]!r}")
    fields.end()
    return Slo(**seconds, **rest)


def contradictions(wanted: Slo, output_tokens: Sequence[int]) -> list[str]:
    """Promises that no server can keep together with the work, or that make one another pointless.

    `output_tokens` are the lengths that the requests ask for.
    """
    found = []
    if wanted.ttft_p95_s is not None and wanted.e2e_p95_s is not None and wanted.ttft_p95_s >= wanted.e2e_p95_s:
        found.append(
            f"ttft_p95_s {wanted.ttft_p95_s:g} s is not below e2e_p95_s {wanted.e2e_p95_s:g} s: "
            "the first token may take as long as the whole answer"
        )
    if not output_tokens or wanted.tpot_p95_s is None:
        return found
    tokens = sorted(output_tokens)[min(len(output_tokens) - 1, int(0.95 * len(output_tokens)))]
    if tokens < 2:
        found.append("tpot_p95_s cannot be judged: the requests ask for one token each")
    elif wanted.e2e_p95_s is not None and (tokens - 1) * wanted.tpot_p95_s > wanted.e2e_p95_s:
        found.append(
            f"e2e_p95_s {wanted.e2e_p95_s:g} s contradicts tpot_p95_s {wanted.tpot_p95_s:g} s: an answer of {tokens} "
            f"tokens (p95 of this workload) takes {(tokens - 1) * wanted.tpot_p95_s:.3g} s at that pace; e2e_p95_s "
            f"asks for {wanted.e2e_p95_s / (tokens - 1):.3g} s a token"
        )
    return found
