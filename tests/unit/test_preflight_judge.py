"""The judge as a whole: nothing it is given makes it break, and its findings read well."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.factories import changed, ids, judged, snapshot, variables
from vllm_node.preflight import judge, render, wanted_from
from vllm_node.preflight.findings import fail, ordered, softened, warn
from vllm_node.preflight.reading import version
from vllm_node.preflight.tables import cdi_folders, cdi_max
from vllm_node.preflight.wanted import size_bytes

GARBAGE = (
    st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.integers() | st.text() | st.none())
)


def _places(data: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [place for key, value in items for place in [(*way, key), *_places(value, (*way, key))]]


def _spoil(data: dict[str, Any], place: tuple[Any, ...], value: Any) -> None:
    at: Any = data
    for key in place[:-1]:
        try:
            at = at[key]
        except (KeyError, IndexError, TypeError):
            return  # an earlier change has already taken this part away
    if isinstance(at, dict) or (isinstance(at, list) and isinstance(place[-1], int) and place[-1] < len(at)):
        at[place[-1]] = value


NODE_PLACES = _places(snapshot())
SITE_PLACES = _places(variables())


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(NODE_PLACES), GARBAGE), max_size=4),
    st.lists(st.tuples(st.sampled_from(SITE_PLACES), GARBAGE), max_size=3),
)
def test_garbage_in_a_snapshot_or_in_variables_never_breaks_the_judge(
    node_changes: list[tuple[tuple[Any, ...], Any]], site_changes: list[tuple[tuple[Any, ...], Any]]
) -> None:
    node, site = snapshot(), variables()
    for place, value in node_changes:
        _spoil(node, place, copy.deepcopy(value))
    for place, value in site_changes:
        _spoil(site, place, copy.deepcopy(value))
    render("gpu1", judge(node, wanted_from("gpu1", site)))


def test_an_empty_snapshot_gives_no_findings_about_the_node() -> None:
    assert judge({}, wanted_from("gpu1", {})) == []


def test_what_stops_comes_first() -> None:
    node = changed(changed(snapshot(), "time/synchronized", False), "models/0/exists", False)
    assert [each.level for each in judged(node)] == ["fail", "warn"]


def test_ignored_fails_warn_and_say_so() -> None:
    node = changed(snapshot(), "models/0/exists", False)
    site = {**variables(), "preflight_ignore": ["model.missing"]}
    (found,) = judged(node, site)
    assert found.level == "warn"
    assert "preflight_ignore" in found.seen
    assert ids(node) == {"model.missing": "fail"}


def test_ignoring_leaves_other_findings_alone() -> None:
    kept = [fail("a.b", "s", "w", "m"), warn("a.c", "s", "w", "m")]
    assert softened(kept, ["a.c", "a.d"]) == kept
    assert ordered(kept[::-1]) == kept


def test_text_names_the_host_and_holds_every_finding() -> None:
    node = changed(changed(snapshot(), "time/synchronized", False), "models/0/exists", False)
    text = render("gpu1", judged(node))
    assert text.splitlines()[0] == "gpu1: 1 failure, 1 warning; nothing has been changed."
    assert "FAIL model.missing" in text
    assert "WARN time.synchronized" in text
    assert text.count("seen:") == text.count("why:") == text.count("mend:") == 2


def test_text_of_a_healthy_node() -> None:
    assert render("gpu1", []) == "gpu1: preflight found nothing to complain about."


def test_text_with_warnings_only_does_not_claim_a_stop() -> None:
    text = render("gpu1", [warn("a.b", "seen", "why", "mend")])
    assert text.splitlines()[0] == "gpu1: no failures, 1 warning; none of them stops the bring-up."


def test_long_names_are_never_broken_in_the_text() -> None:
    name = "registry.site.example:5000/" + "x" * 200
    assert name in render("gpu1", [fail("a.b", f"image {name} is missing", "w", "m")])


@pytest.mark.parametrize(
    ("podman", "highest"),
    [
        ("4.3.1", None),
        ("4.6.2", (0, 5, 0)),
        ("4.9.4-rhel", (0, 6, 0)),
        ("5.1.0", (0, 7, 0)),
        ("5.4.2", (0, 8, 0)),
        ("5.5.0", (1, 0, 0)),
        ("5.8.1", (1, 0, 0)),
        ("6.0.0", (1, 0, 0)),
    ],
)
def test_cdi_versions_by_podman(podman: str, highest: tuple[int, ...] | None) -> None:
    release = version(podman)
    assert release is not None
    assert cdi_max(release) == highest


def test_podman_5_5_forgets_the_folder_under_run() -> None:
    assert cdi_folders((5, 5, 2)) == ("/etc/cdi",)
    assert cdi_folders((5, 4, 0)) == cdi_folders((5, 6, 0)) == ("/etc/cdi", "/run/cdi")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("5.4.2-rhel", (5, 4, 2)), ("v1.18", (1, 18)), ("", None), ("beta", None), (5, None)],
)
def test_versions(text: Any, expected: tuple[int, ...] | None) -> None:
    assert version(text) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("16g", 16 << 30),
        ("512M", 512 << 20),
        ("1GiB", 1 << 30),
        ("64kb", 64 << 10),
        (4096, 4096),
        ("100b", 100),
        ("lots", None),
        (None, None),
    ],
)
def test_sizes_as_podman_writes_them(value: Any, expected: int | None) -> None:
    assert size_bytes(value) == expected


def test_thresholds_come_from_the_variables() -> None:
    wanted = wanted_from(
        "gpu1", {"preflight_time_skew_s": "5", "preflight_ignore": ["a.b"], "preflight_free_inodes": True}
    )
    assert wanted.limits.time_skew_s == 5
    assert wanted.limits.ignore == ("a.b",)
    assert wanted.limits.free_inodes == 100_000
