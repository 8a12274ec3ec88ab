"""Mirrors: which repository a node asks, what podman's file says of it, and the scopes of a trust policy."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.factories import REGISTRY, changed, ids, snapshot, variables
from tests.unit.role_code import ROOT
from vllm_node.registries import Mirror, fetched_from, governing, is_place, mirrors, scopes, through_mirrors

MIRRORS = (Mirror("upstream.example", f"{REGISTRY}/all"), Mirror("upstream.example/vllm", f"{REGISTRY}/v"))
PLACES = st.from_regex(r"[a-z][a-z0-9]{0,5}\.example(:[1-9][0-9]{1,3})?(/[a-z][a-z0-9]{0,5}){0,2}", fullmatch=True)


@pytest.mark.parametrize(
    ("repository", "asked"),
    [
        ("upstream.example/prom/prometheus", f"{REGISTRY}/all/prom/prometheus"),
        ("upstream.example/vllm/vllm-openai", f"{REGISTRY}/v/vllm-openai"),
        ("upstream.example/vllm-fork/x", f"{REGISTRY}/all/vllm-fork/x"),
        ("upstream.example.com/x", "upstream.example.com/x"),
        (f"{REGISTRY}/prom/prometheus", f"{REGISTRY}/prom/prometheus"),
    ],
)
def test_the_longest_name_that_fits_decides_which_repository_is_asked(repository: str, asked: str) -> None:
    assert fetched_from(repository, MIRRORS) == asked
    assert fetched_from(repository, MIRRORS[::-1]) == asked


def test_a_name_is_held_by_whole_parts_only() -> None:
    assert governing("a.example/b", ["a.example/b", "a.example"]) == "a.example/b"
    assert governing("a.example/bc", ["a.example/b"]) is None


def test_a_lock_of_any_form_goes_through() -> None:
    lock = {"a": {"repository": "upstream.example/a", "tag": "v1"}, "b": {"tag": "v1"}, "c": None}
    entries = [{"upstream": "upstream.example", "mirror": REGISTRY}, {"upstream": "x"}, "y"]
    assert through_mirrors(lock, entries) == {**lock, "a": {"repository": f"{REGISTRY}/a", "tag": "v1"}}
    assert through_mirrors([1], entries) == [1]
    assert through_mirrors(lock, None) == lock


@pytest.mark.parametrize("place", ["a.example", "a.example:5000", "localhost/x", "host:5000/a/b-c/d_e.f"])
def test_a_host_with_a_path_is_a_place(place: str) -> None:
    assert is_place(place)


@pytest.mark.parametrize(
    "place", ["", "vllm", "vllm/vllm-openai", "https://a.example", "a.example/", "a.example/x:v1", "a.example/X", "*.example", 'a.example"']
)
def test_what_podman_would_not_take_is_no_place(place: str) -> None:
    assert not is_place(place)


def test_scopes_come_as_podman_looks_them_up() -> None:
    digest = "sha256:00"
    assert list(scopes("host.site.example:5000/prom/x", digest)) == [
        "host.site.example:5000/prom/x@sha256:00",
        "host.site.example:5000/prom/x",
        "host.site.example:5000/prom",
        "host.site.example:5000",
        "*.site.example",
        "*.example",
        "",
    ]


def written(entries: list[dict[str, str]], short_names: str = "as_found") -> str:
    """The drop-in, as Ansible's settings of Jinja write it."""
    environment = jinja2.Environment(trim_blocks=True, undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    environment.filters["to_json"] = json.dumps
    template = environment.from_string((ROOT / "roles/container_host/templates/registries.conf.j2").read_text())
    return template.render(container_host_mirrors=entries, container_host_short_names=short_names)


def meant(entries: list[dict[str, str]], short_names: str) -> dict[str, Any]:
    """What a reader of the drop-in has to find, and nothing beside it."""
    tables = [
        {
            "prefix": each["upstream"],
            "location": each["upstream"],
            "mirror": [{"location": each["mirror"], "pull-from-mirror": "digest-only"}],
        }
        for each in entries
    ]
    found: dict[str, Any] = {"registry": tables} if tables else {}
    if short_names == "refused":
        found.update({"unqualified-search-registries": [], "short-name-mode": "enforcing"})
    return found


@given(
    st.lists(st.fixed_dictionaries({"upstream": PLACES, "mirror": PLACES}), max_size=4, unique_by=lambda each: each["upstream"]),
    st.sampled_from(["as_found", "refused"]),
)
def test_podman_reads_what_was_meant(entries: list[dict[str, str]], short_names: str) -> None:
    assert tomllib.loads(written(entries, short_names)) == meant(entries, short_names)
    assert mirrors(entries) == tuple(Mirror(**each) for each in entries)


def test_a_key_in_the_wrong_table_would_be_noticed() -> None:
    entries = [{"upstream": "a.example", "mirror": REGISTRY}]
    moved = written(entries) + 'unqualified-search-registries = []\nshort-name-mode = "enforcing"\n'
    assert tomllib.loads(moved) != meant(entries, "refused")
    assert "insecure" not in written(entries)


def test_an_image_that_is_there_needs_no_trust() -> None:
    node = changed(snapshot(), "supply/policy/rules/default", ["reject"])
    lock = variables()["images_lock"]
    images = [{"id": name, "digests": [f"{each['repository']}@{each['digest']}"]} for name, each in lock.items()]
    assert "trust.reject" in ids(node)
    assert "trust.reject" not in ids(changed(node, "images", images))


def test_what_was_not_seen_is_no_finding() -> None:
    unseen = changed(snapshot(), "supply", None)
    wishes = {"packages_repository": "/srv/rpms", "packages_gpg_key": "-----BEGIN PGP PUBLIC KEY BLOCK-----", "packages_versionlock": ["x"]}
    assert ids(unseen, {**variables(), **wishes}) == {}


def test_the_toolkits_own_table_is_not_in_its_way() -> None:
    own = {"path": "/etc/containers/registries.conf.d/50-vllm-node.conf", "text": '[[registry]]\nprefix = "a.example"\n'}
    site = {**variables(), "container_host_mirrors": [{"upstream": "a.example", "mirror": REGISTRY}]}
    assert ids(changed(snapshot(), "supply/registries", [own]), site) == {}
    theirs = {**own, "path": "/etc/containers/registries.conf"}
    assert ids(changed(snapshot(), "supply/registries", [theirs]), site) == {"registries.taken": "fail"}
