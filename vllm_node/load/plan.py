"""The plan of one stage: what is sent where, when, within which limits, and what is promised.

`docs/benchmark.md` describes the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_node.load import arrivals
from vllm_node.load.fields import Fields
from vllm_node.load.framing import NAMES
from vllm_node.load.lengths import Lengths, lengths
from vllm_node.load.slo import Slo, slo
from vllm_node.load.target import PATHS, Target
from vllm_node.load.wire import Timeouts

# Fields of a body that are no one else's: they say what is asked, or how the answer comes, which is what is measured.
_OWN_FIELDS = {
    **dict.fromkeys(("model", "stream", "stream_options"), "the engine sets it"),
    **dict.fromkeys(("prompt", "messages", "prompt_embeds", "suffix"), "it is the requests'"),
    **dict.fromkeys(("max_tokens", "max_completion_tokens", "ignore_eos"), "lengths are the requests'"),
    **dict.fromkeys(("n", "best_of", "use_beam_search"), "a request is to have one answer"),
    "echo": "the prompt would come back as the first token",
    **dict.fromkeys(("cancel_after_s", "follows_after_s", "cut_by_generator"), "it is no field of the API"),
}


class PlanError(Exception):
    """What is wrong with a plan, all of it."""

    def __init__(self, problems: list[str]) -> None:
        """`problems` are for a person, one a line."""
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True)
class Arrivals:
    """poisson and constant have a rate; trace has offsets; closed has clients."""

    kind: str
    rate: float = 0.0
    duration_s: float | None = None
    offsets_s: tuple[float, ...] = ()
    clients: int = 0
    think_s: float = 0.0
    ramp_s: float = 0.0

    def load(self, seed: str) -> arrivals.Schedule | arrivals.ClosedLoop:
        """The schedule, or the clients of a closed loop."""
        if self.kind == "closed":
            return arrivals.ClosedLoop(self.clients, self.think_s, self.duration_s, self.ramp_s)
        if self.kind == "trace":
            return arrivals.recorded(self.offsets_s, self.duration_s)
        assert self.duration_s is not None
        if self.kind == "poisson":
            return arrivals.poisson(self.rate, self.duration_s, seed)
        return arrivals.constant(self.rate, self.duration_s)


@dataclass(frozen=True)
class Requests:
    """A file of requests, or lengths and a range of token ids to make them from.

    `count` is needed in a closed loop. `reuse` allows a file to be gone through again. `context_tokens`: prompt and
    answer together are no longer than that. With `calls` each arrival begins a workflow of so many calls, one after
    the other: each prompt is the one before, tokens in place of its answer, and `new_tokens`; between an answer and
    the next call `think_ms` pass. `count` and a rate then mean workflows.
    """

    path: str | None = None
    reuse: bool = False
    count: int | None = None
    prompt_tokens: Lengths | None = None
    output_tokens: Lengths | None = None
    vocabulary: tuple[int, int] = (0, 0)
    shared_prefix_tokens: int = 0
    context_tokens: int | None = None
    calls: Lengths | None = None
    new_tokens: Lengths | None = None
    think_ms: Lengths | None = None


@dataclass(frozen=True)
class Warmup:
    """Before the window: `requests` (or workflows) from `clients` at a time, then `lead_in_s` of the stage itself."""

    requests: int = 0
    clients: int = 1
    lead_in_s: float = 0.0


@dataclass(frozen=True)
class Connections:
    """Whether connections are kept, how many are opened ahead, and how long an idle one is trusted."""

    keep_alive: bool = True
    open_first: int = 0
    idle_s: float = 4.0


@dataclass(frozen=True)
class Limits:
    """Above `in_flight` requests are held back; after `errors` failures the stage stops. None: no limit."""

    in_flight: int | None = None
    errors: int | None = None


@dataclass(frozen=True)
class Metrics:
    """The server's own metrics, looked at while the stage runs; no `url`: not at all."""

    url: str | None = None
    every_s: float = 1.0


@dataclass(frozen=True)
class Plan:
    """One stage. `source` is the document that it was read from."""

    name: str
    target: Target
    api: str
    arrivals: Arrivals
    requests: Requests
    parameters: Mapping[str, Any]
    seed: int
    repeat: int
    warmup: Warmup
    connections: Connections
    timeouts: Timeouts
    limits: Limits
    metrics: Metrics
    slo: Slo
    gpus: int | None
    backend: str
    keep_raw: bool
    source: Mapping[str, Any]

    def seed_for(self, purpose: str) -> str:
        """Seeds that differ for each purpose and each repeat, so that no repeat meets the prompts of another."""
        return f"{self.seed}/{self.repeat}/{purpose}"


def read(path: Path) -> Plan:
    """The plan in a file; paths in it are relative to its folder.

    Raises:
        PlanError: the file cannot be read, or some of it is wrong.
    """
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise PlanError([f"{path}: {error}"]) from None
    return parse(document, path.parent)


def parse(document: object, folder: Path = Path()) -> Plan:
    """A plan out of a JSON document.

    Raises:
        PlanError: some of it is wrong.
    """
    problems: list[str] = []
    top = Fields("", document, problems)
    plan = Plan(
        name=top.take("name", "a text", "stage"),
        target=_target(top.part("target"), folder),
        api=top.choice("api", tuple(PATHS), "completions"),
        arrivals=_arrivals(top.part("arrivals"), folder),
        requests=_requests(top.part("requests"), folder),
        parameters=top.take("parameters", "an object", {}),
        seed=top.take("seed", "a whole number", 0),
        repeat=top.take("repeat", "a whole number", 0, least=0),
        warmup=_warmup(top.part("warmup", {})),
        connections=_connections(top.part("connections", {})),
        timeouts=_timeouts(top.part("timeouts", {})),
        limits=_limits(top.part("limits", {})),
        metrics=_metrics(top.part("metrics", {})),
        slo=slo(top.part("slo", {})),
        gpus=top.take("gpus", "a whole number", None, least=1),
        backend=top.choice("backend", NAMES, "auto"),
        keep_raw=top.take("keep_raw", "true or false", False),
        source=document if isinstance(document, Mapping) else {},
    )
    top.end()
    problems += parameter_problems(plan.parameters)
    if plan.arrivals.kind == "closed" and not problems:
        if plan.requests.path is None and plan.requests.count is None:
            problems.append("requests.count is missing: a closed loop needs to know how many requests to make")
        if plan.limits.in_flight is not None and plan.limits.in_flight < plan.arrivals.clients:
            problems.append("limits.in_flight is below arrivals.clients, so some clients could never send")
        if plan.warmup.lead_in_s:
            problems.append("warmup.lead_in_s belongs to an open loop; give warmup.requests instead")
    if problems:
        raise PlanError(problems)
    return plan


def parameter_problems(parameters: Mapping[str, Any]) -> list[str]:
    """Why some of these cannot stand in each body."""
    return [f"parameters.{name} cannot be given: {_OWN_FIELDS[name]}" for name in parameters if name in _OWN_FIELDS]


def _path(folder: Path, text: str | None) -> str | None:
    return None if text is None else str(folder / text)


def _target(fields: Fields, folder: Path) -> Target:
    target = Target(
        url=fields.take("url", "a text") or "",
        model=fields.take("model", "a text") or "",
        api_key_file=_path(folder, fields.take("api_key_file", "a text", None)),
        api_key_env=fields.take("api_key_env", "a text", None),
        ca_file=_path(folder, fields.take("ca_file", "a text", None)),
        server_name=fields.take("server_name", "a text", None),
    )
    fields.end()
    if not fields.problems:
        fields.problems.extend(target.problems())
    return target


def _arrivals(fields: Fields, folder: Path) -> Arrivals:
    kind = fields.choice("kind", ("poisson", "constant", "trace", "closed"))
    if kind == "closed":
        found = Arrivals(
            kind,
            clients=fields.take("clients", "a whole number", least=1),
            think_s=fields.take("think_s", "a number", 0.0, least=0),
            duration_s=fields.take("duration_s", "a number", None, least=0.001),
            ramp_s=fields.take("ramp_s", "a number", 0.0, least=0),
        )
    elif kind == "trace":
        found = Arrivals(
            kind, duration_s=fields.take("duration_s", "a number", None, least=0.001), offsets_s=_trace(fields, folder)
        )
    else:
        rate = fields.take("rate", "a number", least=0)
        if rate == 0:
            fields.problem("rate", "should be above 0")
        found = Arrivals(kind, rate=rate, duration_s=fields.take("duration_s", "a number", least=0.001))
    fields.end()
    return found


def _trace(fields: Fields, folder: Path) -> tuple[float, ...]:
    """Offsets of a trace: in the plan itself, or one a line in a file."""
    path = fields.take("path", "a text", None)
    given = fields.take("offsets_s", "a list", None)
    if (path is None) == (given is None):
        fields.problem("path", "or offsets_s is needed, one of them")
        return ()
    try:
        values = given if path is None else (folder / path).read_text().split()
        offsets = tuple(float(one) for one in values or ())
    except (OSError, TypeError, ValueError) as error:
        fields.problem("path" if path else "offsets_s", f"should hold seconds: {error}")
        return ()
    if not offsets or min(offsets) < 0:
        fields.problem("path" if path else "offsets_s", "should hold at least one arrival, and none before 0")
    return offsets


def _requests(fields: Fields, folder: Path) -> Requests:
    kind = fields.choice("kind", ("file", "generated", "workflows"))
    count = fields.take("count", "a whole number", None, least=1)
    if kind == "file":
        path = fields.take("path", "a text")
        found = Requests(_path(folder, path), fields.take("reuse", "true or false", False), count)
        if path is not None and not (folder / path).is_file():
            fields.problem("path", f"names no file: {folder / path}")
    else:
        vocabulary = fields.take("vocabulary", "a list")
        if vocabulary is not None and not _is_range(vocabulary):
            fields.problem("vocabulary", f"should be [lowest id, highest id + 1], not {vocabulary!r}")
            vocabulary = None
        found = Requests(
            count=count,
            prompt_tokens=lengths(fields, "prompt_tokens"),
            output_tokens=lengths(fields, "output_tokens"),
            vocabulary=tuple(vocabulary or (0, 1)),
            shared_prefix_tokens=fields.take("shared_prefix_tokens", "a whole number", 0, least=0),
            context_tokens=fields.take("context_tokens", "a whole number", None, least=2),
            calls=lengths(fields, "calls") if kind == "workflows" else None,
            new_tokens=lengths(fields, "new_tokens") if kind == "workflows" else None,
            think_ms=lengths(fields, "think_ms") if kind == "workflows" and "think_ms" in fields.values else None,
        )
        if found.context_tokens and found.output_tokens and found.output_tokens.high >= found.context_tokens:
            fields.problem("context_tokens", "leaves no room for a prompt beside the longest of output_tokens")
    fields.end()
    return found


def _is_range(values: list[Any]) -> bool:
    return len(values) == 2 and all(isinstance(one, int) for one in values) and 0 <= values[0] < values[1]


def _warmup(fields: Fields) -> Warmup:
    found = Warmup(
        fields.take("requests", "a whole number", 0, least=0),
        fields.take("clients", "a whole number", 1, least=1),
        fields.take("lead_in_s", "a number", 0.0, least=0),
    )
    fields.end()
    return found


def _connections(fields: Fields) -> Connections:
    found = Connections(
        fields.take("keep_alive", "true or false", True),
        fields.take("open_first", "a whole number", 0, least=0),
        fields.take("idle_s", "a number", 4.0, least=0),
    )
    fields.end()
    return found


def _timeouts(fields: Fields) -> Timeouts:
    usual = Timeouts()
    found = Timeouts(
        *(
            fields.take(name, "a number", getattr(usual, name), least=0.05)
            for name in ("connect_s", "first_byte_s", "stall_s", "total_s")
        )
    )
    fields.end()
    return found


def _limits(fields: Fields) -> Limits:
    found = Limits(
        fields.take("in_flight", "a whole number", None, least=1),
        fields.take("errors", "a whole number", None, least=1),
    )
    fields.end()
    return found


def _metrics(fields: Fields) -> Metrics:
    found = Metrics(fields.take("url", "a text", None), fields.take("every_s", "a number", 1.0, least=0.1))
    fields.end()
    return found
