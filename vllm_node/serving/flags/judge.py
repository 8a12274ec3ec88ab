"""Judges the flags of an instance: against the flags of its image, or against what is known of its version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from vllm_node.serving.flags import cache, conflicts, environment, known, names, values
from vllm_node.serving.flags.page import FlagTable
from vllm_node.serving.flags.problems import Problem


def judge(
    args: Mapping[str, Any],
    by: FlagTable | known.Version | None,
    *,
    gpus: int | None = None,
    port: int | None = None,
    served: str | None = None,
    env: Mapping[str, str] | None = None,
) -> list[Problem]:
    """All problems, in the order of the flags.

    `args` are `vllm_instances[].args`; None as a value leaves a flag out. `by` is the table that the image gave, else
    the version that its tag tells, else None. `gpus` is the number of GPUs of the instance (0 or None: not judged),
    `port` and `served` what its own keys say.
    """
    source = source_of(by)
    found: list[Problem] = []
    settings: dict[str, Any] = {}
    written: dict[str, str] = {}
    for key, value in args.items():
        if value is None:
            continue
        setting = names.resolve(str(key), value, source)
        if isinstance(setting, Problem):
            found.append(setting)
            continue
        name = setting.name + setting.part
        if name in settings:
            found.append(_twice(setting, written[name]))
        wrong = values.complaint(setting, sure=source.sure)
        if wrong:
            found.append(Problem("type", "fail", setting.key, *wrong, name=setting.name))
            # What it was meant to be is not known, so nothing is said of how it goes with others.
            gpus = None if name in conflicts.SIZES else gpus
        else:
            settings[name], written[name] = setting.value, setting.key
    found += _together(settings, written, gpus, port, served)
    return found + list(environment.problems(env or {}))


def source_of(by: FlagTable | known.Version | None) -> names.Source:
    """The flags to judge by."""
    if isinstance(by, FlagTable):
        return names.Source(by, known.version_of(by.version), sure=True, of_image=True)
    table = cache.built_in()
    built_for = known.version_of(table.version) or ()
    return names.Source(table, by, sure=by is not None and by[:2] == built_for[:2], of_image=False)


def _together(
    settings: Mapping[str, Any], written: Mapping[str, str], gpus: int | None, port: int | None, served: str | None
) -> Iterator[Problem]:
    for problem in (
        *conflicts.between_flags(settings),
        *conflicts.with_gpus(settings, gpus),
        *conflicts.with_instance(settings, port, served),
        *conflicts.secrets(settings),
    ):
        yield replace(problem, subject=written.get(problem.subject, problem.subject))


def _twice(setting: names.Setting, before: str) -> Problem:
    seen = f"{before} and {setting.key} are the same flag"
    return Problem("conflict", "fail", setting.key, seen, "Keep one of them.", setting.name)
