"""Packages: what is asked for, what dnf would do, what its refusals mean, and what preflight leaves to the role."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.factories import changed, ids, snapshot, variables
from vllm_node.certificate import issue
from vllm_node.package_changes import brought
from vllm_node.packages import Plan, explain, missing_of, package_name, plan, repository_url

KEY = "-----BEGIN PGP PUBLIC KEY BLOCK-----"
URL = "http://site.example/rpms"


@pytest.mark.parametrize(
    ("place", "url"),
    [
        ("/srv/rpms", "file:///srv/rpms"),
        ("file:///srv/rpms", "file:///srv/rpms"),
        (URL, URL),
        ("https://site.example:8443", "https://site.example:8443"),
        ("https://user:word@site.example/rpms", None),
        ("ftp://site.example/rpms", None),
        ("rpms", None),
        ("/srv/my rpms", None),
        ("https://site.example/x\nenabled=1", None),
    ],
)
def test_a_repository_is_a_url_or_a_path(place: str, url: str | None) -> None:
    assert repository_url(place) == url


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("podman", "podman"),
        ("podman >= 5.4", "podman"),
        ("python3-dnf-plugin-versionlock", "python3-dnf-plugin-versionlock"),
        ("libstdc++", "libstdc++"),
        ("podman>=5.4", None),
        ("@base", None),
        ("nvidia-*", None),
        ("/usr/bin/podman", None),
        ("--nogpgcheck", None),
        ("http://x.example/x.rpm", None),
    ],
)
def test_a_wish_is_a_name_with_or_without_a_version(spec: str, name: str | None) -> None:
    assert package_name(spec) == name
    assert missing_of([spec]) == ([name] if name else [])


def test_a_plan_tells_new_from_updated_from_removed() -> None:
    lines = [
        "Installed: podman-6:5.4.0-1.el9.x86_64",
        "Installed: crun-1.20-1.el9.x86_64",
        "Removed: crun-1.19-2.el9.x86_64",
        "Removed: runc-4:1.2.0-1.el9.x86_64",
        "Nothing of this kind",
    ]
    assert plan({"results": lines}) == Plan(
        {"crun-1.20-1.el9.x86_64": "crun-1.19-2.el9.x86_64", "podman-5.4.0-1.el9.x86_64": None},
        ("runc-1.2.0-1.el9.x86_64",),
    )
    assert plan({"results": [], "msg": "Nothing to do"}) == Plan()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"msg": "Failed to install some", "failures": ["No package a available.", "No package b available."]}, "has no package a, b that"),
        ({"msg": "Failed to validate GPG signature for a-1-1.noarch: Package a-1-1.noarch.rpm is not signed"}, "a-1-1.noarch in http://site.example/rpms is not signed, and"),
        ({"msg": "Failed to validate GPG signature for a-1-1.noarch: Public key for a-1-1.noarch.rpm is not installed"}, "is not signed with the key in packages_gpg_key"),
        ({"msg": "Failed to download metadata for repo 'vllm-node'"}, "cannot be read from the node"),
        ({"msg": "Depsolve Error occurred: nothing provides x needed by y"}, "do not fit this node"),
        ({"msg": "This command has to be run under the root user."}, "dnf: This command has to be run under the root user."),
        ({}, "it gave no reason"),
    ],
)
def test_a_refusal_says_what_it_means(answer: dict[str, Any], said: str) -> None:
    assert said in explain(answer, URL)


def site(*install: str, **more: Any) -> dict[str, Any]:
    return {**variables(), "packages_repository": "/srv/rpms", "packages_gpg_key": KEY, "packages_install": list(install), **more}


@pytest.mark.parametrize(
    ("finding", "broken", "mends", "does_not"),
    [
        ("podman.missing", {"podman": None}, "podman", "podman-docker"),
        ("podman.version", {"podman/version": "5.2.0"}, "podman >= 5.4", "podman"),
        ("podman.init", {"podman/init": None}, "catatonit", "podman"),
        ("trust.policy", {"supply/policy/path": None}, "containers-common", "crun"),
        ("cdi.toolkit", {"cdi/toolkit": "1.17.7"}, "nvidia-container-toolkit >= 1.19", "podman"),
    ],
)
def test_what_a_package_mends_is_left_to_the_role(finding: str, broken: dict[str, Any], mends: str, does_not: str) -> None:
    node = snapshot()
    for path, value in broken.items():
        node = changed(node, path, value)
    assert ids(node)[finding] == "fail"
    assert ids(node, site(mends))[finding] == "warn"
    assert ids(node, site(does_not))[finding] == "fail"
    # As the role itself judges, when it has done what it can.
    assert ids(node, site())[finding] == "fail"


def test_a_plugin_that_comes_along_will_heed_the_locks() -> None:
    locks = {"packages_versionlock": ["nvidia-driver*"]}
    assert ids(snapshot(), site("podman", **locks)) == {"packages.versionlock": "fail"}
    assert ids(snapshot(), site("python3-dnf-plugin-versionlock", **locks)) == {}
    assert ids(changed(snapshot(), "supply/dnf/version_locks", True), site("podman", **locks)) == {}


BROUGHT = {"/etc/containers/policy.json": "sha256:1 0644 0 0", "/etc/x[1]": "dir 0755 0 0"}


def test_what_packages_brought_is_told_from_what_moves_by_itself() -> None:
    before = snapshot()
    after = changed(before, "files", {**before["files"], **BROUGHT})
    after = changed(after, "swap", [{"name": "/dev/zram0", "type": "partition", "size_bytes": 1}])
    assert brought(before, after) == {f"files:{path}": state for path, state in BROUGHT.items()}


def test_a_certificate_is_clean_with_packages_as_they_came_and_with_nothing_else(tmp_path: Any) -> None:
    before = snapshot()
    after = changed(before, "files", {**before["files"], **BROUGHT})
    told = {"left": [], "kept": [{"kind": "package", "name": "podman-5.4"}], "as_found": before}
    packages = {"by_packages": brought(before, after)}
    assert issue("a", {**told, **packages}, after, tmp_path).clean
    assert issue("a", {**told, **packages}, after, tmp_path).kept == ("package podman-5.4",)
    assert not issue("a", told, after, tmp_path).clean
    altered = changed(after, "files", {**after["files"], "/etc/containers/policy.json": "sha256:2 0644 0 0"})
    (line,) = issue("a", {**told, **packages}, altered, tmp_path).summary()["difference"]
    assert "/etc/containers/policy.json" in line
    stray = changed(after, "files", {**after["files"], "/etc/x1": "dir 0755 0 0"})
    assert not issue("a", {**told, **packages}, stray, tmp_path).clean
