"""The tables of `docs/profiles.md`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from vllm_node.serving.defaults import Tier, batch
from vllm_node.serving.flags.known import NEWEST, Version, written
from vllm_node.serving.profiles import LEAST_WAITING, PROFILES, OfRunning, Profile, ProfileValue

_SIZES: Mapping[Tier, str] = {
    "small": "below 70 GiB, or an A100",
    "large": "70 to 160 GiB",
    "huge": "from 160 GiB",
    "cpu": "on a CPU, for each rank",
}
# Versions at which a batch's defaults changed.
_CHANGES: tuple[Version, ...] = ((0, 10), (0, 28))


def page(path: Path, between: Callable[[Path, str], str], table: Callable[..., str]) -> dict[Path, str]:
    """The page as it should be; nothing where there is none. `between` and `table` are those of `vllm_node.docs`."""
    if not path.exists():
        return {}
    what = table(("profile", "it is for"), ((f"`{each.name}`", each.aim) for each in PROFILES.values()))
    rows = [row for profile in PROFILES.values() for row in _rows(profile)]
    flags = table(("profile", "flag", "value", "from vLLM", "why"), rows)
    return {path: between(path, f"{what}\n{flags}\n{_defaults(table)}")}


def _rows(profile: Profile) -> Iterator[tuple[str, ...]]:
    for each in profile.values:
        yield f"`{profile.name}`", f"`{each.flag}`", _value(each), written(each.since), each.reason


def _value(each: ProfileValue) -> str:
    values = each.values
    if isinstance(values, OfRunning):
        return f"{values.times:g} times all that can run (`max-num-seqs`), and at least {LEAST_WAITING} more"
    if not isinstance(values, Mapping):
        return f"`{values}`"
    if set(values.values()) == {next(iter(values.values()))} and len(values) == len(_SIZES) - 1:
        return f"`{next(iter(values.values()))}` on any GPU"
    return ", ".join(f"`{values[size]}` ({_SIZES[size]})" for size in _SIZES if size in values)


def _defaults(table: Callable[..., str]) -> str:
    rows = []
    for size, told in _SIZES.items():
        found = {since: batch(since, size) for since in _CHANGES}
        for since, usual in found.items():
            before = [found[each] for each in _CHANGES if each < since]
            if not before or before[-1] != usual:
                rows.append((told, written(since), f"`{usual.tokens}`", f"`{usual.seqs}`"))
    head = ("memory of the GPU", "from vLLM", "`max-num-batched-tokens`", "`max-num-seqs`")
    return f"What vLLM does by itself, up to {written(NEWEST)}:\n\n{table(head, rows)}"
