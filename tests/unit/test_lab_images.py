"""Recipes of the lab's images and roots: what counts for their keys, and what they must be like."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from vllm_node.lab import images, registry, roots
from vllm_node.lab.images import RECIPES, Recipe

DIGEST = "sha256:" + "0a" * 32
CHANGES: dict[str, Any] = {
    "name": "other",
    "repository": "other/path",
    "tag": "v9",
    "suite": "sid",
    "packages": ("python3", "curl"),
    "entrypoint": ("/bin/other",),
    "command": ("--flag",),
    "user": "1:1",
    "env": ("A=1",),
    "directories": (("/x", 1),),
    "revision": 2,
}


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    for name in ("program", "input"):
        (tmp_path / name).write_text("one")
    return Recipe(
        *("x", "a/x", "v1", "bookworm", ("python3",), ("/bin/x",)),
        files=((tmp_path / "program", "/bin/x"),),
        inputs=(tmp_path / "input",),
    )


@pytest.mark.parametrize("field", CHANGES)
def test_each_choice_changes_the_key(recipe: Recipe, field: str) -> None:
    assert dataclasses.replace(recipe, **{field: CHANGES[field]}).key != recipe.key


@pytest.mark.parametrize("name", ["program", "input"])
def test_the_content_of_each_file_changes_the_key(recipe: Recipe, tmp_path: Path, name: str) -> None:
    before = recipe.key
    (tmp_path / name).write_text("two")
    assert recipe.key != before


def test_where_a_file_goes_changes_the_key(recipe: Recipe, tmp_path: Path) -> None:
    assert dataclasses.replace(recipe, files=((tmp_path / "program", "/bin/y"),)).key != recipe.key


def test_every_field_that_an_image_is_made_from_is_tried_above() -> None:
    fields = {field.name for field in dataclasses.fields(Recipe) if field.compare}
    assert fields == {*CHANGES, "files", "inputs"}


def test_the_images_are_those_of_the_lock_and_stand_ins_say_so() -> None:
    assert {each.name for each in RECIPES} == {"vllm", "prometheus", "prometheus_3", "alertmanager", "node_exporter", "dcgm_exporter", "grafana", "gateway"}
    standins = {each.name for each in RECIPES if any("standins" in str(path) for path, _ in each.files)}
    assert standins == {each.name for each in RECIPES if "standin-" in each.repository}


def test_a_registry_that_holds_everything_is_not_written_to(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(registry, "holds", lambda repository, digest: (repository, digest) == ("a/x", DIGEST))
    images._record(recipe).write_text(json.dumps({"digest": DIGEST}))
    monkeypatch.setattr(registry, "writable", lambda: pytest.fail("nothing is missing"))
    expected = {"repository": "a/x", "tag": "v1", "digest": DIGEST, "platform_digest": DIGEST, "architecture": "amd64"}
    assert images.ensure([recipe]) == {"x": expected}


def test_a_record_without_its_manifest_does_not_count(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert not images._known(recipe)
    images._record(recipe).write_text(json.dumps({"digest": DIGEST}))
    assert not images._known(recipe)
    link = registry.storage() / "docker/registry/v2/repositories/a/x/_manifests/revisions/sha256" / DIGEST[7:] / "link"
    link.parent.mkdir(parents=True)
    link.write_text(DIGEST)
    assert images._known(recipe)
    assert not images._known(dataclasses.replace(recipe, revision=2))


def test_the_configuration_is_the_recipes(recipe: Recipe) -> None:
    full = dataclasses.replace(recipe, command=("--a", "--b"), user="1:1", env=("A=1", "B=2"))
    assert images._config(recipe) == ["--entrypoint", '["/bin/x"]']
    assert images._config(full)[2:] == ["--cmd", "--a --b", "--user", "1:1", "--env", "A=1", "--env", "B=2"]


def test_roots_are_keyed_by_what_is_in_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(roots, "entry", lambda kind, key, _: tmp_path / f"{kind}-{key}")
    places = [roots.node_root(podman) for podman in roots.RELEASES]
    assert len(set(places)) == len(roots.RELEASES)
    release = dataclasses.replace(roots.RELEASES["5.4"], packages=("systemd",))
    monkeypatch.setitem(roots.RELEASES, "5.4", release)
    assert roots.node_root("5.4") not in places
    monkeypatch.setattr(roots, "_REVISION", 2)
    assert roots.node_root("5.8") not in places


def test_a_bootstrap_names_its_packages_options_and_target(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[tuple[list[str], dict[str, str]]] = []
    monkeypatch.setattr(roots, "run", lambda argv, env: seen.append(([str(word) for word in argv], env)))
    roots.bootstrap("trixie", ("systemd", "podman"), tmp_path / "root.tar", ("--aptopt=x",))
    (words, env), *more = seen
    assert not more
    assert words[0] == "mmdebstrap"
    assert "--include=systemd,podman" in words
    assert "--aptopt=x" in words
    assert words[-2:] == ["trixie", str(tmp_path / "root.tar")]
    assert env["SOURCE_DATE_EPOCH"] == "0"
