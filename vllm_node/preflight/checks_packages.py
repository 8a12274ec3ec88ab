"""Packages that the site wants to be installed, and what they will mend."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from vllm_node.packages import LOCK_PLUGIN, package_name, repository_url
from vllm_node.preflight.findings import Finding, fail, softened
from vllm_node.preflight.reading import Snapshot, at, listed
from vllm_node.preflight.wanted import Packages, Wanted

_REMARK = "the role packages comes next, and the node is judged again after it"
# Finding → names of packages, as patterns, of which one mends it.
_MENDED = {
    "podman.missing": r"podman",
    "podman.version": r"podman (>=|=|>) .*",
    "podman.quadlet": r"podman",
    "podman.init": r"catatonit",
    "podman.network_backend": r"netavark",
    "trust.policy": r"podman|containers-common",
    "selinux.boolean": r"podman|container-selinux",
    "cdi.missing": r"nvidia-container-toolkit",
    "cdi.toolkit": r"nvidia-container-toolkit",
    "gpu.driver_missing": r"(nvidia-driver|nvidia-open|cuda-drivers|kmod-nvidia)[\w.-]*",
    "gpu.fabric_manager": r"nvidia-fabric-?manager[\w.-]*",
}


def dnf(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """A node that can install them."""
    supply = at(snapshot, "supply")
    if not wanted.packages.repository or supply is None:
        return
    if at(supply, "dnf") is None:
        yield fail(
            "packages.dnf",
            "packages_repository is set, and the node has no dnf",
            "Packages are installed by dnf only.",
            "Empty packages_repository for this node, and install podman on it by hand.",
        )
    elif at(supply, "dnf", "python") is False:
        yield fail(
            "packages.python",
            "/usr/bin/python3 does not find the library of dnf",
            "Ansible installs packages through it.",
            "Install python3-dnf, and leave /usr/bin/python3 the platform's own.",
        )


def wishes(_: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """What is asked for can be asked for."""
    packages = wanted.packages
    if not packages.repository:
        return
    if repository_url(packages.repository) is None:
        yield fail(
            "packages.repository",
            f"packages_repository is {packages.repository}",
            "It is neither a path on the node nor an address of a repository without an account in it.",
            "Write https://HOST/PATH, http://HOST/PATH or file:///PATH.",
        )
    if "BEGIN PGP PUBLIC KEY BLOCK" not in packages.gpg_key:
        yield fail(
            "packages.key",
            "packages_gpg_key is " + ("no public key in text form" if packages.gpg_key else "empty"),
            "A package is installed only when its signature can be checked.",
            "Set it to the text of the key that the packages are signed with (gpg --armor --export KEY).",
        )
    odd = [spec for spec in packages.install if package_name(spec) is None]
    if odd:
        yield fail(
            "packages.name",
            f"packages_install has {listed(odd)}",
            "Groups, files, wildcards and options are not taken: what is installed has to be known beforehand.",
            "Write names, each alone or with a version: podman >= 5.4.",
        )


def locks(snapshot: Snapshot, wanted: Wanted) -> Iterator[Finding]:
    """Version locks that dnf will heed."""
    packages = wanted.packages
    brought = LOCK_PLUGIN in map(package_name, packages.install)
    heeded = at(snapshot, "supply", "dnf", "version_locks")
    if packages.repository and packages.versionlock and not brought and heeded is False:
        yield fail(
            "packages.versionlock",
            "packages_versionlock is set, and dnf has no plugin for it, or it is switched off",
            "The next dnf update would take one of them to a version that the others do not fit.",
            f"Add {LOCK_PLUGIN} to packages_install, or empty packages_versionlock.",
        )


def left_to_packages(findings: Sequence[Finding], packages: Packages) -> list[Finding]:
    """Findings that stop, softened where the role packages is going to mend them."""
    if not packages.repository:
        return list(findings)
    mended = [
        each
        for each, pattern in _MENDED.items()
        if any(re.fullmatch(pattern, name) for spec in packages.install for name in (spec, package_name(spec) or ""))
    ]
    return softened(findings, mended, _REMARK)


CHECKS = (dnf, wishes, locks)
