"""The report of a comparison."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vllm_node.bench.report.compare import NO_DIFFERENCE, TOO_FEW
from vllm_node.bench.report.measures import BY_KEY, Measure
from vllm_node.bench.report.numbers import digits
from vllm_node.bench.report.page import (
    Block,
    Bullets,
    Figure,
    Inline,
    Mark,
    Page,
    Paragraph,
    Section,
    Table,
    Terms,
    Text,
    figure,
)

# Not whether B is better: a reader may hold the higher goodput against the higher latency.
_DIFFERS, _SAME, _UNKNOWN = "differences", NO_DIFFERENCE, "insufficient"
_HEAD = ("Figure", "A, median", "A, spread", "B, median", "B, spread", "B / A", "Interval of B / A", "Finding", "How")


def page(found: Mapping[str, Any]) -> Page:
    """The report of what `compare.compare` gave."""
    a, b = found["a"], found["b"]
    word = verdict(found)
    sections = [
        _verdict(found, word),
        *(_step(found, number) for number in range(len(found["steps"]))),
        _runs(found),
        Section("definitions", "Definitions", [Terms(list(found["definitions"].items()))]),
    ]
    return Page(
        f"Comparison: {found['workload']['name']}, {a['host']} {a['instance']} and {b['host']} {b['instance']}",
        Mark(word),
        f"A is {a['id']}, B is {b['id']}.",
        sections,
    )


def verdict(found: Mapping[str, Any]) -> str:
    """`differences`, `no difference can be seen`, or `insufficient` when no figure allows either."""
    findings = [one["finding"] for step in found["steps"] for one in step["figures"].values()]
    if any(one.startswith("B is ") for one in findings):
        return _DIFFERS
    return _SAME if NO_DIFFERENCE in findings else _UNKNOWN


def _verdict(found: Mapping[str, Any], word: str) -> Section:
    blocks: list[Block] = []
    told = [
        f"{step['name']}: {BY_KEY[key].title}: {one['finding']}, by a factor of {_factor(one['ratio'])}"
        for step in found["steps"]
        for key, one in step["figures"].items()
        if one["finding"].startswith("B is ")
    ]
    if told:
        blocks.append(Bullets(told))
    elif word == _UNKNOWN:
        blocks.append(Paragraph("Nothing can be said: repeat both runs, at least three times each."))
    else:
        blocks.append(Paragraph("In every figure the repeats of both runs overlap: no difference can be seen."))
    for side in ("a", "b"):
        if found[side]["partial"]:
            blocks.append(Paragraph(f"Run {side.upper()} is partial: {found[side]['partial']}."))
        if found[f"only_{side}"]:
            blocks.append(Paragraph(f"Only in {side.upper()}: {', '.join(found[f'only_{side}'])}."))
    return Section("verdict", "What differs", blocks)


def _factor(ratio: Mapping[str, Any]) -> str:
    if ratio["value"] is None:
        return "no number"
    return f"{digits(ratio['value'])} ({_ends(ratio['low'])} to {_ends(ratio['high'])})"


def _ends(value: float | None) -> str:
    return "?" if value is None else digits(value)


def _step(found: Mapping[str, Any], number: int) -> Section:
    step = found["steps"][number]
    keys = ("steps", number)
    text: list[Inline] = [
        figure(found, (*keys, "repeats", "a")),
        " repeats of A and ",
        figure(found, (*keys, "repeats", "b")),
        " of B count. ",
    ]
    if step["by_chance"]["value"] is None:
        text.append(f"One repeat has no spread, so the finding is '{TOO_FEW}'.")
    else:
        text += [
            "Where the repeats of one run all lie beyond those of the other, that counts as a difference; of figures "
            "that do not differ, ",
            figure(found, (*keys, "by_chance", "value"), "share"),
            " lie so by chance (inferred).",
        ]
    blocks: list[Block] = [Paragraph(text), Table(f"{step['name']}: A and B", _HEAD, list(_rows(found, number)))]
    unseen = [BY_KEY[key].title for key, one in step["figures"].items() if _unseen(one)]
    if unseen:
        blocks.append(Paragraph(f"Unobservable in both runs: {'; '.join(unseen)}."))
    return Section(f"step-{number + 1}", step["name"], blocks)


def _rows(found: Mapping[str, Any], number: int) -> Iterator[Sequence[Text]]:
    for key, one in found["steps"][number]["figures"].items():
        measure, keys = BY_KEY[key], ("steps", number, "figures", key)
        if _unseen(one):
            continue
        sides = [cell for side in ("a", "b") for cell in _side(found, (*keys, side), measure)]
        ratio = figure(found, (*keys, "ratio", "value"))
        low, high = (figure(found, (*keys, "ratio", end)) for end in ("low", "high"))
        interval = "no number" if low.value is None or high.value is None else (low, " to ", high)
        how = " and ".join(dict.fromkeys((one["a"]["how"], one["b"]["how"])))
        yield (measure.title, *sides, _no_ratio(ratio), interval, one["finding"], how)


def _unseen(one: Mapping[str, Any]) -> bool:
    """Whether neither run saw a figure; it is said in a sentence, not in a row of empty cells."""
    return one["a"]["median"] is None and one["b"]["median"] is None


def _no_ratio(ratio: Figure) -> Text:
    return "no number" if ratio.value is None else ratio


def _side(found: Mapping[str, Any], keys: tuple[str | int, ...], measure: Measure) -> Sequence[Text]:
    count = figure(found, (*keys, "n"))
    spread = (
        figure(found, (*keys, "low"), measure.unit),
        " to ",
        figure(found, (*keys, "high"), measure.unit),
        " (n ",
        count,
        ")",
    )
    return (figure(found, (*keys, "median"), measure.unit), spread)


def _runs(found: Mapping[str, Any]) -> Section:
    names = list(found["a"])
    rows = [(name, *(figure(found, (side, name)) for side in "ab")) for name in names]
    blocks: list[Block] = [Table("The two runs", ("What", "A", "B"), rows)]
    if found["differences"]:
        other = [(one["what"], one["a"], one["b"]) for one in found["differences"]]
        blocks.append(Table("What else differs in their provenance", ("What", "A", "B"), other))
    else:
        blocks.append(Paragraph("Their provenance does not differ in anything that was recorded."))
    return Section("runs", "The runs", blocks)
