"""The flags and variables of instances: whether the locked image knows them, and whether they go together.

Judged by the flags that the image itself gave once (the role image_probe asks it before a unit starts), else by what
is known of the version in its tag. Each finding says which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from vllm_node.preflight.devices import aliases, used
from vllm_node.preflight.findings import Finding, fail, warn
from vllm_node.preflight.reading import Snapshot
from vllm_node.preflight.wanted import Image, Instance, Wanted
from vllm_node.serving.flags import cache, known
from vllm_node.serving.flags.judge import judge
from vllm_node.serving.flags.page import FlagTable
from vllm_node.serving.flags.problems import Problem
from vllm_node.serving.site import settings_of

Tables = Callable[[str], FlagTable | None]


def flags(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """Flags that this vLLM would not take, or that contradict each other or their instance."""
    yield from judged(snapshot, wanted, cache.load)


def judged(snapshot: Snapshot, wanted: Wanted, tables: Tables) -> Iterator[Finding]:
    """The same with `tables`, which gives the flags of an image by its digest, None where it is not known."""
    locked = {image.name: image for image in wanted.images}
    for instance in wanted.instances:
        image = locked.get(instance.image)
        table = tables(image.digest or "") if image else None
        version = known.version_of(image.tag) if image else None
        told = settings_of(instance, wanted, snapshot)
        problems = judge(
            told.args,
            table or version,
            gpus=_gpus(snapshot, instance),
            port=instance.port,
            served=instance.served,
            env=instance.env,
        )
        origins = {each.key: each.origin for each in told.settings}
        for problem in problems:
            yield _finding(problem, _where(problem, instance, origins), _source(table, version, image))


def _where(problem: Problem, instance: Instance, origins: Mapping[str, str]) -> str:
    if problem.subject in instance.env:
        return f"instance {instance.name}, env {problem.subject}: "
    origin = origins.get(problem.subject, "inventory")
    return f"instance {instance.name}, args {problem.subject}{'' if origin == 'inventory' else f' (of {origin})'}: "


def _gpus(snapshot: Snapshot, instance: Instance) -> int | None:
    """How many GPUs the instance gets; None where `all` cannot be counted."""
    if "all" not in instance.gpus:
        return len(instance.gpus)
    names = aliases(snapshot)
    return None if names is None else len(used(names, instance.gpus))


def _source(table: FlagTable | None, version: known.Version | None, image: Image | None) -> str:
    if table is not None:
        return f"judged by the flags that image {image.name if image else ''} gave itself"
    if version is not None:
        return f"judged by what is known of {known.written(version)}, the version of the image's tag"
    tag = image.tag if image else None
    return f"the version is not known, the tag {tag!r} does not tell it" if tag else "the version is not known"


def _finding(problem: Problem, where: str, source: str) -> Finding:
    make = fail if problem.level == "fail" else warn
    if problem.kind == "secret":
        return make(
            "instance.secret",
            where + problem.seen,
            "Whoever may read units or list processes on the node would have it.",
            problem.mend,
        )
    if problem.kind == "environment":
        return make(
            "instance.environment",
            where + problem.seen,
            "It does something else than its name promises.",
            problem.mend,
        )
    if problem.kind == "owned":
        return make(
            "instance.own_key",
            where + problem.seen,
            "What watches and asks the instance goes by its own keys, and would look in vain.",
            problem.mend,
        )
    if problem.kind == "conflict":
        return make(
            "instance.flag_conflict",
            where + problem.seen,
            "vLLM stops after minutes of loading, or one of the flags does nothing.",
            problem.mend,
        )
    return make(
        "instance.flags",
        f"{where}{problem.seen} ({source})",
        "vLLM ends at once on a flag or a value that it does not know, and again after each restart.",
        problem.mend,
    )


CHECKS = (flags,)
