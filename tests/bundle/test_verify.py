"""Verify finds whatever was done to a bundle, and says all of it. Images are in tests/registry/test_bundle_create.py."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit import bundles, model_folders
from tests.unit.bundles import call, verify

KINDS = {
    "wheels": "wheels/needed-1.0-py3-none-any.whl",
    "collections": "collections/ansible-posix-*.tar.gz",
    "models": "models/it/model-00001-of-00002.safetensors",
    "model manifest": "models/it.json",
    "dashboards": "dashboards/vllm-node/vllm-node-overview.json",
    "imported": "dashboards/imported/own.json",
    "toolkit": "toolkit/inventories/example/hosts.yml",
    "bundle.json": "bundle.json",
    "sbom": "sbom.cdx.json",
}


def key(folder: Path, name: str) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(folder / name)], check=True)
    (folder / f"{name}.allowed").write_text(f"{name}@site.example {(folder / f'{name}.pub').read_text()}")
    return folder / name


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A signed bundle of everything but images and RPMs, in `bundle`, and the keys beside it."""
    folder = tmp_path_factory.mktemp("verify")
    inventory = bundles.inventory(folder / "inventory")
    (folder / "inventory/dashboards").mkdir()
    (folder / "inventory/dashboards/own.json").write_text("{}")
    variables = 'grafana_dashboards_import: ["{{ inventory_dir }}/dashboards"]\n'
    (folder / "inventory/group_vars/all/main.yml").write_text(variables)
    model = model_folders.model(folder / "model")
    (model / ".cache").mkdir()
    (model / ".cache/x").write_text("x")
    own = bundles.toolkit(folder / "index")
    key(folder, "other")
    call(
        *("create", "-i", inventory, "--output", folder / "bundle", "--no-images", "--toolkit", own),
        *("--model", f"it={model}", "--sign-key", key(folder, "site")),
        env=bundles.environment(folder / "index"),
    )
    return folder


@pytest.fixture
def bundle(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "bundle", tmp_path / "bundle"))


def place(bundle: Path, kind: str) -> Path:
    return next(bundle.glob(KINDS[kind]))


def test_what_was_made_is_whole_and_holds_what_was_asked_for(made: Path) -> None:
    bundle = made / "bundle"
    assert verify(bundle, "--allowed-signers", made / "site.allowed", "--require-signature") == []
    assert bundles.sha256sum_agrees(bundle)
    said = json.loads((bundle / "bundle.json").read_text())
    assert {part["kind"] for part in said["parts"]} == {"wheel", "collection", "model", "dashboards", "toolkit"}
    assert all(place(bundle, kind).is_file() for kind in KINDS)
    assert not (bundle / "models/it/.cache").exists()
    assert str(made) not in (bundle / "bundle.json").read_text() + (bundle / "sbom.cdx.json").read_text()


def test_plain_tools_verify_it_as_well(made: Path) -> None:
    """On the other side the toolkit is not there before it was verified."""
    line = "sha256sum -c --quiet SHA256SUMS && ssh-keygen -Y verify -f ../site.allowed -I site@site.example -n vllm-node-bundle -s SHA256SUMS.sig < SHA256SUMS"
    subprocess.run(line, shell=True, cwd=made / "bundle", check=True, capture_output=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["flip", "drop", "cut", "longer", "empty"])
def test_one_file_of_each_kind(bundle: Path, kind: str, how: str) -> None:
    path = place(bundle, kind)
    if how == "flip":
        bundles.flip(path)
    elif how == "drop":
        path.unlink()
    else:
        path.write_bytes({"cut": path.read_bytes()[:-1], "longer": path.read_bytes() + b"\n", "empty": b""}[how])
    found = verify(bundle, code=3)
    assert ("missing" if how == "drop" else "changed", path.relative_to(bundle).as_posix()) in found
    assert not bundles.sha256sum_agrees(bundle)


@pytest.mark.parametrize("at", [0, 10, 64, 70, -1])
def test_one_byte_of_the_sums(made: Path, bundle: Path, at: int) -> None:
    content = bytearray((bundle / "SHA256SUMS").read_bytes())
    content[at] ^= 1
    (bundle / "SHA256SUMS").write_bytes(content)
    found = verify(bundle, code=3)
    assert ("signature", "SHA256SUMS.sig") in found
    assert len(found) > 1


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # a socket's path is short
    try:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(path.name)
    finally:
        os.chdir(here)


SPECIAL: dict[str, Callable[[Path], object]] = {
    "link to a file outside": lambda path: path.symlink_to("/etc/hostname"),
    "link to a file inside": lambda path: path.symlink_to("../bundle.json"),
    "link to a folder": lambda path: path.symlink_to("/etc"),
    "link to nothing": lambda path: path.symlink_to("nothing"),
    "pipe": make_pipe,
    "socket": make_socket,
    "device": lambda path: os.mknod(path, 0o600 | 0o020000, os.makedev(1, 3)),
}


@pytest.mark.parametrize("name", SPECIAL)
@pytest.mark.parametrize("where", ["more", "instead"])
def test_what_is_no_plain_file(bundle: Path, name: str, where: str) -> None:
    path = bundle / "models/it/more" if where == "more" else bundle / "bundle.json"
    if where == "instead":
        path.unlink()
    try:
        SPECIAL[name](path)
    except PermissionError:
        pytest.skip("only root makes devices")
    found = verify(bundle, code=3)
    assert ("special", path.relative_to(bundle).as_posix()) in found


@pytest.mark.parametrize("place", ["stowaway", "models/it/stowaway", "models/empty/x", ".hidden", "rpms/x.rpm", "wheels/SHA256SUMS"])
def test_a_file_too_many(bundle: Path, place: str) -> None:
    path = bundle / place
    path.parent.mkdir(exist_ok=True)
    path.write_text("x")
    assert verify(bundle, code=3) == [("extra", place)]


def test_a_file_too_many_that_the_sums_name_belongs_to_no_part(bundle: Path) -> None:
    (bundle / "models/stowaway").write_text("x")
    bundles.reseal(bundle)
    (bundle / "SHA256SUMS.sig").unlink()
    assert verify(bundle, code=3) == [("manifest", "bundle.json")]


@pytest.mark.parametrize("line", ["../outside", "/etc/hostname", "models/../../outside", "./bundle.json", "models//it/config.json"])
def test_sums_that_lead_out_are_refused(bundle: Path, tmp_path: Path, line: str) -> None:
    (tmp_path / "outside").write_text("x")
    with (bundle / "SHA256SUMS").open("a") as file:
        file.write(f"{'0' * 64}  {line}\n")
    (bundle / "SHA256SUMS.sig").unlink()
    assert verify(bundle, code=3) == [("sums", "SHA256SUMS")]


@pytest.mark.parametrize(
    "change",
    [
        lambda said: said["parts"].pop(),
        lambda said: said["parts"].append(said["parts"][0]),
        lambda said: said["parts"][0].update(bytes=1),
        lambda said: said["parts"][0].update(files=7),
        lambda said: said["parts"][0].update(path="models/nothing", kind="model"),
        lambda said: said["parts"][0].update(path="../../etc"),
        lambda said: said.update(schema=2),
        lambda said: said.update(parts=None),
    ],
)
def test_a_manifest_that_does_not_fit_what_is_there(bundle: Path, change: Callable[[Any], object]) -> None:
    """Whoever can write sums can write the manifest too; it must still agree with the files."""
    bundles.edit(bundle / "bundle.json", change)
    bundles.reseal(bundle)
    (bundle / "SHA256SUMS.sig").unlink()
    found = verify(bundle, code=3)
    assert found
    assert {kind for kind, _path in found} == {"manifest"}


@pytest.mark.parametrize("name", ["bundle.json", "sbom.cdx.json"])
def test_sums_without_the_manifest(bundle: Path, name: str) -> None:
    (bundle / name).unlink()
    bundles.reseal(bundle)
    (bundle / "SHA256SUMS.sig").unlink()
    assert ("sums", "SHA256SUMS") in verify(bundle, code=3)


def test_signatures_of_others_and_of_nobody(made: Path, bundle: Path) -> None:
    allowed = ("--allowed-signers", made / "other.allowed")
    assert verify(bundle, *allowed, code=3) == [("signature", "SHA256SUMS.sig")]
    said = call("verify", bundle, *allowed, code=3).output
    own = subprocess.run(["ssh-keygen", "-lf", str(made / "site")], capture_output=True, text=True, check=True).stdout.split()[1]
    other = subprocess.run(["ssh-keygen", "-lf", str(made / "other")], capture_output=True, text=True, check=True).stdout.split()[1]
    assert f"is by the ED25519 {own}; expected is other@site.example (ssh-ed25519 {other})" in said
    assert f"Signed with the ED25519 {own}; whether to trust it" in call("verify", bundle).output
    (bundle / "SHA256SUMS.sig").unlink()
    assert verify(bundle) == []
    assert "It is not signed." in call("verify", bundle).output
    # Whoever takes the signature away must not win by that.
    assert verify(bundle, *allowed, code=3) == [("signature", "SHA256SUMS.sig")]


def test_sums_that_were_written_anew_do_not_fit_the_signature(made: Path, bundle: Path) -> None:
    bundles.flip(bundle / KINDS["models"])
    bundles.reseal(bundle)
    assert verify(bundle, "--allowed-signers", made / "site.allowed", code=3) == [("signature", "SHA256SUMS.sig")]
    assert verify(bundle, code=3) == [("signature", "SHA256SUMS.sig")]


def test_a_signature_by_anybody_is_not_enough_when_one_is_required(bundle: Path) -> None:
    assert "needs --allowed-signers" in call("verify", bundle, "--require-signature", code=2).output


def test_all_problems_at_once_for_people_and_for_machines(made: Path, bundle: Path) -> None:
    bundles.flip(bundle / KINDS["models"])
    (bundle / KINDS["toolkit"]).unlink()
    (bundle / "stowaway").write_text("x")
    (bundle / "models/link").symlink_to("/etc/hostname")
    wanted = {("changed", KINDS["models"]), ("missing", KINDS["toolkit"]), ("extra", "stowaway"), ("special", "models/link")}
    assert set(verify(bundle, code=3)) == wanted
    said = call("verify", bundle, code=3).stdout
    assert all(f"{kind}: {path}: " in said for kind, path in wanted)
    assert "4 problems: do not use it" in said


@pytest.mark.parametrize("case", ["no sums", "being made", "empty", "left over"])
def test_what_is_not_finished_is_refused(bundle: Path, tmp_path: Path, case: str) -> None:
    if case == "empty":
        bundle = tmp_path / "empty"
        bundle.mkdir()
    elif case == "left over":
        (bundle / ".partial").mkdir()
    else:
        (bundle / "SHA256SUMS").unlink()
    if case == "being made":
        (bundle / ".partial").mkdir()
    place = ".partial" if case == "left over" else "SHA256SUMS"
    assert verify(bundle, code=3) == [("unfinished", place)]
    said = call("verify", bundle, code=3).output
    assert ("run it again with the same options" in said) == (case in ("being made", "left over"))


def test_a_file_that_cannot_be_read_is_one_problem_among_others(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fails in one place must not hide what is wrong in others."""
    real = os.preadv
    sick = (bundle / KINDS["wheels"]).stat().st_ino

    def fail(descriptor: int, buffers: Any, offset: int) -> int:
        if os.fstat(descriptor).st_ino == sick:
            raise OSError(5, "Input/output error")
        return real(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", fail)
    bundles.flip(bundle / KINDS["models"])
    assert set(verify(bundle, code=3)) == {("unreadable", KINDS["wheels"]), ("changed", KINDS["models"])}


def test_memory_does_not_grow_with_the_bundle(tmp_path: Path) -> None:
    """A bundle of a gigabyte is verified in what the interpreter needs anyhow."""
    model = model_folders.model(tmp_path / "model")
    with (model / "big.bin").open("wb") as file:
        file.truncate(300 << 20)
    inventory = bundles.inventory(tmp_path / "inventory")
    peaks = []
    for name in ("small", "large"):
        if name == "small":
            small = model_folders.model(tmp_path / "small-model")
        call("create", "-i", inventory, "--output", tmp_path / name, "--only", "models", "--model", f"it={small if name == 'small' else model}")
        code = (
            "import sys\nfrom pathlib import Path\nfrom vllm_node.bundle.verify import verify\nfrom vllm_node.bundle.reporter import Reporter\n"
            "verdict = verify(Path(sys.argv[1]), Reporter())\nassert verdict.ok, verdict.problems\n"
            "print([line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')][0])"
        )
        done = subprocess.run([*bundles.PYTHON, "-c", code, str(tmp_path / name)], capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout))
    assert peaks[1] < peaks[0] + (16 << 10), "KiB"
