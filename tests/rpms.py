"""RPM packages made on a lab node with dnf, and the signed repository that they lie in.

podman's is real: the files of the Debian packages that a node with podman has, in one RPM. The version lock plugin is
dnf's own. The others are stand-ins of one file.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.labs import Nodes
from vllm_node.lab import roots
from vllm_node.lab.cache import entry, recipe_hash
from vllm_node.lab.command import run

PLACE = "/srv/rpms"
URL = f"file://{PLACE}"
PODMAN = "podman-5.4.2-1.x86_64"
_SPEC = """Name: {name}
Version: {version}
Release: 1
Summary: For a lab
License: none
{arch}
AutoReqProv: no
{tags}
%description
For a lab.
%install
mkdir -p %{{buildroot}}
cp -a {content}/. %{{buildroot}}/
{scripts}
%files -f {content}.files
"""
# What an installation leaves that no package owns, such as a unit that a preset switches on.
ENABLED = "/etc/systemd/system/timers.target.wants/podman-auto-update.timer"
_PRESET = f'%post -p <lua>\nposix.symlink("/usr/lib/systemd/system/podman-auto-update.timer", "{ENABLED}")\n'
_PLUGIN = ("etc/dnf/plugins/versionlock.conf", "etc/dnf/plugins/versionlock.list")
_PLUGIN_CODE = "usr/lib/python3/dist-packages"


class Workshop:
    """Makes keys and packages on a node, below /srv."""

    def __init__(self, nodes: Nodes, node: str) -> None:
        self.nodes, self.node = nodes, node
        member = nodes.lab.member(node)
        assert member is not None
        self.root = nodes.lab.place(member).root
        self.shell(f"mkdir -p {PLACE} /srv/keys /srv/build")

    def shell(self, command: str) -> str:
        return self.nodes.shell(self.node, command)

    def key(self, name: str) -> str:
        """A new key pair; its public half as text."""
        home = f"/srv/keys/{name}"
        gpg = f"gpg --homedir {home} --batch --quiet"
        self.shell(f"mkdir -m 700 {home} && {gpg} --passphrase '' --quick-generate-key {name}@site.example rsa2048 sign never")
        return self.shell(f"{gpg} --armor --export {name}@site.example; gpgconf --homedir {home} --kill gpg-agent")

    def package(
        self, name: str, version: str, content: Path | None = None, *, signer: str | None, tags: str = "", scripts: str = ""
    ) -> None:
        """Build NAME-VERSION-1 in the repository: the files below `content`, or a single one that stands in for them."""
        inside = self.root / "srv/build" / f"{name}-{version}"
        if content is None:
            file = inside / "usr/share/standin" / name
            file.parent.mkdir(parents=True)
            file.write_text(f"{name} {version}\n")
        else:
            shutil.copytree(content, inside, symlinks=True)
        files = [path for path in sorted(inside.rglob("*")) if not path.is_dir() or path.is_symlink()]
        lines = [f"/{path.relative_to(inside)}" for path in files]
        # As a distribution has it: what a person may have changed is not overwritten.
        lines = [f'%config(noreplace) "{line}"' if line.startswith("/etc/") else f'"{line}"' for line in lines]
        inside.with_name(f"{inside.name}.files").write_text("\n".join(lines) + "\n")
        arch = "BuildArch: noarch" if content is None else ""
        there = f"/srv/build/{name}-{version}"
        spec = _SPEC.format(name=name, version=version, arch=arch, content=there, tags=tags, scripts=scripts)
        inside.with_name(f"{inside.name}.spec").write_text(spec)
        macros = ["__os_install_post %{nil}", "_binary_payload w1.gzdio", f"_rpmdir {PLACE}", "debug_package %{nil}"]
        words = " ".join(f"--define '{macro}'" for macro in [*macros, "_build_name_fmt %%{NAME}-%%{VERSION}-%%{RELEASE}.rpm"])
        self.shell(f"rpmbuild -bb --quiet --define '_build_id_links none' {words} {there}.spec 2>&1")
        if signer:
            path = f"{PLACE}/{name}-{version}-1.rpm"
            gpg = f"--define '_gpg_path /srv/keys/{signer}' --define '_gpg_name {signer}@site.example'"
            self.shell(f"rpmsign {gpg} --addsign {path} && gpgconf --homedir /srv/keys/{signer} --kill gpg-agent")
        shutil.rmtree(inside)

    def podman(self, signer: str) -> None:
        """The real one, as an RPM."""
        scratch = self.root / "srv/build/podman-files"
        whole, bare = roots.node_root("5.4"), roots.node_root("none")
        for path in _packaged(whole) - _packaged(bare):
            source, target = whole / path, scratch / path
            if source.is_symlink() or source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target, follow_symlinks=False)
        self.package("podman", "5.4.2", scratch, signer=signer, scripts=_PRESET)
        shutil.rmtree(scratch)

    def lock_plugin(self, signer: str) -> None:
        """dnf's plugin for version locks, as the distribution packages it."""
        self.package("python3-dnf-plugin-versionlock", "4.3.1", _plugin(), signer=signer)

    def index(self) -> None:
        """Write the repository's metadata."""
        self.shell(f"createrepo_c --quiet {PLACE}")


def _packaged(root: Path) -> set[str]:
    """Paths of the files that Debian packages have brought into a root."""
    lists = (root / "var/lib/dpkg/info").glob("*.list")
    return {line.lstrip("/") for each in lists for line in each.read_text().splitlines()}


def _plugin() -> Path:
    """Files of the plugin, which Debian had last in bookworm."""

    def build(folder: Path) -> None:
        root = folder / "whole"
        run(["mmdebstrap", "--quiet", "--variant=extract", "--include=dnf-plugins-core", "bookworm", root])
        wanted: Sequence[str] = (*_PLUGIN, f"{_PLUGIN_CODE}/dnf-plugins/versionlock.py")
        for path in [root / each for each in wanted] + sorted((root / _PLUGIN_CODE / "dnfpluginscore").glob("*.py")):
            target = folder / "files" / path.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)
        shutil.rmtree(root)

    return entry("dnf-versionlock", recipe_hash("bookworm", 1), build) / "files"
