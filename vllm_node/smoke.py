"""What the end of a bring-up says of its instances: what is wrong with their answers, and how fast they are."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from vllm_node.bench.report.measures import BY_KEY
from vllm_node.bench.report.numbers import shown
from vllm_node.bench.report.page import resolve
from vllm_node.paths import runs_dir

KIND = "smoke"
_SILENT = "the instance answers"
_FIGURES = (("TTFT p95", "ttft_p95_s"), ("TPOT p95", "tpot_p95_s"), ("completed", "completed_per_s"))
_ANOTHER = "look which program has the port of the instance (ss -lntp), and at served_model_name in vllm_instances"
_FLAGS = "look at the instance's args, image and version: a server that does this cannot be trusted"
NEXT = {
    "the model is listed": _ANOTHER,
    "an unknown model is refused": _ANOTHER,
    "the same question has the same answer": "look whether args set sampling (override-generation-config) or a seed",
    "usage counts the tokens": _FLAGS,
    "a stream comes in pieces and ends": _FLAGS,
    "a stream brings the same text": _FLAGS,
    "a wrong key is refused": "look whether the instance was started with its key",
    "the question is answered": "a model without a chat template needs smoke_api: completions, one with a short "
    "context a lower smoke_max_tokens",
}


def complaints(host: str, answered: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each check that failed, out of the results of `smoke_check` (a loop over `instance`)."""
    found = []
    for result in answered:
        name = result["instance"]["name"]
        failed = [one for one in result["checks"] if one["outcome"] == "fail"]
        # Nothing else can be told of an instance that says nothing.
        for one in [one for one in failed if one["check"] == _SILENT] or failed:
            step = NEXT.get(one["check"], f"journalctl -u vllm-{name}")
            found.append(f"{host}: instance {name} fails {one['check']!r}: seen {one['seen']}; next: {step}, on {host}")
    return found


@dataclass(frozen=True)
class Verdict:
    """One smoke benchmark: pass, fail or insufficient, when it ended (ISO 8601), and where its report lies."""

    verdict: str
    measured_at: str
    report: str | None


@dataclass(frozen=True)
class Measurement:
    """What is known of how fast an instance is.

    `verdict` is that of this bring-up; None: it was not measured in it, and `reason` says why. Figures are seconds and
    requests a second, a word where there is no honest number, None where nobody could observe one. `before` is the last
    verdict of an earlier bring-up.
    """

    instance: str
    verdict: str | None = None
    reason: str | None = None
    ttft_p95_s: float | str | None = None
    tpot_p95_s: float | str | None = None
    completed_per_s: float | str | None = None
    measured_at: str | None = None
    report: str | None = None
    before: Verdict | None = None

    @classmethod
    def of(cls, document: Mapping[str, Any], reports: Sequence[str]) -> Measurement:
        """That of a run document, and of the paths of its reports."""
        found, reasons = document["verdict"]["verdict"], document["verdict"]["reasons"]
        repeat = resolve(document, ("steps", 0, "repeats", 0))
        figures = {key: resolve(repeat, BY_KEY[key].path) for _, key in _FIGURES}
        return cls(
            instance=document["instance"],
            verdict=found,
            reason=reasons[0] if reasons else None,
            measured_at=document["ended_at"],
            report=_page(reports),
            **figures,
        )

    def as_dict(self) -> dict[str, Any]:
        """For a program."""
        return asdict(self)


def last(host: str, instance: str, output: str = "") -> Verdict | None:
    """The newest smoke benchmark of an instance that this control host knows; None when there is none.

    `output` is the role's `benchmark_output`.
    """
    for path in sorted(runs_dir(output).glob(f"{host}/*-{KIND}/run.json"), reverse=True):
        try:
            document = json.loads(path.read_bytes())
            if (document["kind"], document["instance"]) == (KIND, instance):
                page = path.with_name("report.html")
                told = str(page if page.exists() else path)
                return Verdict(document["verdict"]["verdict"], document["ended_at"], told)
        except (OSError, ValueError, KeyError, TypeError):
            continue  # somebody else's file, or half of one, is no verdict
    return None


def settled(
    host: str, instances: Sequence[str], measured: Mapping[str, Mapping[str, Any]], unmeasured: str, output: str = ""
) -> list[dict[str, Any]]:
    """A measurement (as a dictionary) for each instance: that of this run, or why there is none and the last one.

    `measured` holds those of this run by instance, `unmeasured` is why others have none.
    """
    found = []
    for name in instances:
        told = dict(measured.get(name) or Measurement(name, reason=unmeasured).as_dict())
        before = last(host, name, output) if told["verdict"] is None else None
        found.append({**told, "before": asdict(before) if before else None})
    return found


def line(told: Mapping[str, Any]) -> str:
    """A measurement (`Measurement.as_dict`) for a person, on one line."""
    return "; ".join(_parts(told))


def _parts(told: Mapping[str, Any]) -> Iterator[str]:
    if told["verdict"] is None:
        yield f"{told['instance']}: not measured: {told['reason']}"
        before = told.get("before")
        if before is None:
            yield "no earlier verdict is known here"
            return
        yield f"last measured {_moment(before['measured_at'])}: {before['verdict'].upper()}"
        yield f"report: {before['report']}"
        return
    yield f"{told['instance']}: {told['verdict'].upper()}, measured {_moment(told['measured_at'])}"
    if told["reason"]:
        yield str(told["reason"])
    if any(told[key] is not None for _, key in _FIGURES):
        yield ", ".join(f"{title} {_figure(told[key], key)}" for title, key in _FIGURES)
    yield f"report: {told['report']}"


def _figure(value: Any, key: str) -> str:
    measure = BY_KEY[key]
    seen = shown(value, "requests/s" if measure.unit == "/s" else measure.unit)
    return f"{seen} ({measure.how})" if isinstance(value, int | float) else seen


def _moment(text: str) -> str:
    """An ISO 8601 moment as people write it; the text itself when it is none."""
    try:
        return f"{datetime.fromisoformat(text):%Y-%m-%d %H:%M %Z}".strip()
    except ValueError:
        return text


def _page(reports: Sequence[str]) -> str | None:
    """The page that a person opens, of the files that a run has left."""
    return next((path for path in reports if path.endswith(".html")), reports[-1] if reports else None)
