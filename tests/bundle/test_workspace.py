"""A bundle in the making: one maker, whole files only, and a memory that survives a kill."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.unit import bundles
from vllm_node.bundle.hashing import BLOCK_BYTES, hash_files
from vllm_node.bundle.layout import BundleError, Manifest, Part
from vllm_node.bundle.workspace import Workspace

PART = Part("model", "it", "models/it", 1, 3, "test")
PATH = "models/it/a"


def finished(folder: Path, content: bytes = b"abc") -> Path:
    """A bundle of one model of one file."""
    with Workspace(folder) as work:
        work.put(PATH, content)
        work.finish_part(PART, [PATH])
        own = {"bundle.json": Manifest("2026-11-30T00:00:00Z", "0", (PART,)).text().encode(), "sbom.cdx.json": b"{}"}
        work.finish(own)
    return folder


def test_a_finished_bundle_has_sums_and_nothing_else(tmp_path: Path) -> None:
    bundle = finished(tmp_path / "b")
    assert sorted(path.name for path in bundle.iterdir()) == ["SHA256SUMS", "bundle.json", "models", "sbom.cdx.json"]
    assert bundles.sha256sum_agrees(bundle)
    assert (bundle / PATH).stat().st_mode & 0o777 == 0o644


def test_a_bundle_is_unfinished_from_the_first_moment_of_a_change(tmp_path: Path) -> None:
    bundle = finished(tmp_path / "b")
    (bundle / "SHA256SUMS.sig").write_text("x")
    with Workspace(bundle):
        assert not (bundle / "SHA256SUMS").exists()
        assert not (bundle / "SHA256SUMS.sig").exists()


def test_what_was_finished_is_known_again_only_when_it_is_unchanged(tmp_path: Path) -> None:
    bundle = finished(tmp_path / "b")
    with Workspace(bundle) as work:
        assert work.known(PATH) is None
        assert set(work.unsure()) == {PATH, "bundle.json", "sbom.cdx.json"}
        work.look_again()
        assert work.known(PATH) is not None
        assert work.parts == [PART]
    bundles.flip(bundle / PATH)
    (bundle / ".partial/journal.jsonl").unlink()
    with Workspace(bundle) as work:
        work.look_again()
        assert work.known(PATH) is None


@pytest.mark.parametrize("keep", range(0, 200, 7))
def test_a_journal_may_be_cut_anywhere(tmp_path: Path, keep: int) -> None:
    with Workspace(tmp_path / "b") as work:
        work.put(PATH, b"abc")
        work.put("models/it/b", b"def")
    journal = tmp_path / "b/.partial/journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:keep])
    with Workspace(tmp_path / "b") as work:
        work.put("models/it/c", b"ghi")
    with Workspace(tmp_path / "b") as work:
        assert work.known("models/it/c") is not None, "a line after the cut is lost"
        for path in (PATH, "models/it/b"):
            known = work.known(path)
            assert known is None or known == hash_files([tmp_path / "b" / path])[tmp_path / "b" / path]


def test_a_copy_shares_nothing_with_its_source(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"abc")
    block = bytearray(BLOCK_BYTES)
    with Workspace(tmp_path / "b") as work:
        work.copy(source, PATH, block)
        copied = (tmp_path / "b" / PATH).stat()
        assert copied.st_ino != source.stat().st_ino
        work.copy(source, PATH, block)
        assert (tmp_path / "b" / PATH).stat().st_ino == copied.st_ino, "it was copied again"
        source.write_bytes(b"xyz")
        os.utime(source, ns=(1, 1))
        work.copy(source, PATH, block)
        assert (tmp_path / "b" / PATH).read_bytes() == b"xyz"


def test_a_file_that_somebody_changes_meanwhile_is_not_sealed(tmp_path: Path) -> None:
    with Workspace(tmp_path / "b") as work:
        work.put(PATH, b"abc")
        work.finish_part(PART, [PATH])
        (tmp_path / "b" / PATH).write_bytes(b"xyzzy")
        with pytest.raises(BundleError, match="was changed while"):
            work.finish({})
    assert not (tmp_path / "b/SHA256SUMS").exists()


def test_a_signature_that_fails_leaves_the_bundle_unfinished_and_whole(tmp_path: Path) -> None:
    def fail(_text: bytes) -> bytes:
        raise BundleError("no passphrase")

    with Workspace(tmp_path / "b") as work:
        work.put(PATH, b"abc")
        work.finish_part(PART, [PATH])
        with pytest.raises(BundleError, match="passphrase"):
            work.finish({}, fail)
    assert not (tmp_path / "b/SHA256SUMS").exists()
    with Workspace(tmp_path / "b") as work:
        assert work.known(PATH) is not None


@pytest.mark.parametrize("name", ["thesis.doc", "bundle.json"])
def test_a_folder_of_something_else_is_left_alone(tmp_path: Path, name: str) -> None:
    folder = finished(tmp_path / "b") if name == "bundle.json" else tmp_path / "b"
    folder.mkdir(exist_ok=True)
    (folder / "thesis.doc").write_text("years of work")
    with pytest.raises(BundleError, match=r"something else than a bundle \(thesis\.doc"), Workspace(folder):
        pass
    assert (folder / "thesis.doc").read_text() == "years of work"


def test_one_maker_at_a_time(tmp_path: Path) -> None:
    with Workspace(tmp_path / "b"):
        with pytest.raises(BundleError, match=rf"process {os.getpid()}\) is at work"), Workspace(tmp_path / "b"):
            pass
        assert (tmp_path / "b/.partial/lock").exists()
    with Workspace(tmp_path / "b"):
        pass


def test_what_a_killed_run_had_started_is_ended_and_nobody_elses(tmp_path: Path) -> None:
    with Workspace(tmp_path / "b") as work:
        stage = work.staging("oci")
        stage.mkdir()
    read, write = os.pipe()
    cat = shutil.which("cat")
    ours = subprocess.Popen(["skopeo", "-", f"oci:{stage}/x"], executable=cat, stdin=read, stderr=subprocess.DEVNULL)
    others = [
        subprocess.Popen(["skopeo", "-", f"oci:{tmp_path}/b2/.partial/x"], executable=cat, stdin=read, stderr=subprocess.DEVNULL),
        subprocess.Popen(["tail", "-f", "/dev/null", f"{stage}/x"], stderr=subprocess.DEVNULL),
    ]
    try:
        with Workspace(tmp_path / "b"):
            assert ours.wait(timeout=10) == -signal.SIGKILL
            assert [one.poll() for one in others] == [None, None]
            assert not stage.exists()
    finally:
        for one in (ours, *others):
            with contextlib.suppress(ProcessLookupError):
                one.kill()
            one.wait()
        os.close(read)
        os.close(write)


def test_nobody_ever_sees_half_a_file_under_its_final_name(tmp_path: Path) -> None:
    """A process makes files and is killed; all the while somebody looks at their sizes."""
    size = 8 << 20
    code = (
        "import sys\nfrom pathlib import Path\nfrom vllm_node.bundle.workspace import Workspace\n"
        "with Workspace(Path(sys.argv[1])) as work:\n"
        "    for number in range(1000):\n"
        f"        work.put(f'models/it/{{number % 8}}', bytes([number % 256]) * {size})\n"
    )
    folder = tmp_path / "b/models/it"
    for _round in range(3):
        running = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "b")])
        end = time.monotonic() + 1.5
        while time.monotonic() < end or not folder.exists():
            assert running.poll() is None
            for path in folder.glob("*"):
                assert path.stat().st_size == size
        running.kill()
        running.wait()
        with Workspace(tmp_path / "b") as work:
            for path in folder.glob("*"):
                assert path.stat().st_size == size
                known = work.known(f"models/it/{path.name}")
                assert known is None or known == hash_files([path])[path]
