"""Parts: cut, carried, joined; whatever is wrong with one is told by its name, and nothing half-made is left."""

from __future__ import annotations

import filecmp
import io
import itertools
import json
import random
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from tests.unit import bundles, model_folders
from tests.unit.bundles import call, verify
from vllm_node.bundle.hashing import BLOCK_BYTES
from vllm_node.bundle.join import join as put_together
from vllm_node.bundle.parts import Archive
from vllm_node.bundle.reporter import Reporter
from vllm_node.bundle.split import split

MIB = 1 << 20
QUIET = Console(file=io.StringIO())
LONG = "a-very-long-name-" * 9  # longer than a tar header holds


def make(folder: Path, seed: int = 1) -> Path:
    """A bundle of a model of 5 MiB, and its parts of 1 MiB in `bundle.parts`; returns the folder of the parts."""
    model = model_folders.model(folder / "model", size=2 * MIB + 17)
    (model / f"{LONG}.txt").write_bytes(random.Random(seed).randbytes(MIB))
    inventory = bundles.inventory(folder / "inventory")
    words = ("create", "-i", inventory, "--output", folder / "bundle", "--only", "models", "--model", f"it={model}")
    call(*words, "--part-size", "1MiB")
    return folder / "bundle.parts"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("parts"))


@pytest.fixture
def parts(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "parts"))


def join(parts: Path, output: Path, code: int = 0) -> str:
    return call("join", parts, "--output", output, code=code).output


def same(one: Path, other: Path) -> bool:
    """Whether two folders hold the same names and bytes."""
    names = [sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*")) for folder in (one, other)]
    files = [name for name in names[0] if (one / name).is_file()]
    return names[0] == names[1] and filecmp.cmpfiles(one, other, files, shallow=False)[0] == files


def part(number: int) -> str:
    return f"bundle.part-{number:04}"


def test_what_was_cut_is_joined_to_the_same(made: Path, tmp_path: Path) -> None:
    listing = json.loads((made / "parts.json").read_text())
    assert [(made / part(number)).stat().st_size for number in range(1, listing["count"] + 1)] == [one["bytes"] for one in listing["parts"]]
    assert {one["bytes"] for one in listing["parts"][:-1]} == {MIB}
    assert "Now: vllm-node bundle verify" in join(made, tmp_path / "joined")
    assert same(made.parent / "bundle", tmp_path / "joined")
    assert verify(tmp_path / "joined") == []
    assert [path.name for path in tmp_path.iterdir()] == ["joined"]


def test_parts_may_end_anywhere(made: Path, tmp_path: Path) -> None:
    """Also in the middle of a header."""
    bundle = Path(shutil.copytree(made.parent / "bundle", tmp_path / "bundle"))
    for size in (MIB + 1, 2 * MIB + 700, 1 << 40):
        with Reporter() as reporter:
            split(bundle, tmp_path / "parts", size, reporter)
        shutil.rmtree(tmp_path / "joined", ignore_errors=True)
        join(tmp_path / "parts", tmp_path / "joined")
        assert same(bundle, tmp_path / "joined")


def test_plain_tools_join_them_as_well(made: Path, tmp_path: Path) -> None:
    subprocess.run(["sha256sum", "--check", "--quiet", "--strict", "PARTS.SHA256SUMS"], cwd=made, check=True)
    (tmp_path / "joined").mkdir()
    subprocess.run(f"cat {made}/bundle.part-* | tar -x -C {tmp_path}/joined", shell=True, check=True)
    assert same(made.parent / "bundle", tmp_path / "joined")


def _swap(parts: Path) -> None:
    (parts / part(2)).rename(parts / "aside")
    (parts / part(3)).rename(parts / part(2))
    (parts / "aside").rename(parts / part(3))


def _cut(parts: Path) -> None:
    (parts / part(2)).write_bytes((parts / part(2)).read_bytes()[:-1])


def _foreign(parts: Path) -> None:
    (parts / part(2)).write_bytes(bytes(MIB))


def _two_missing(parts: Path) -> None:
    for number in (2, 4):
        (parts / part(number)).unlink()


def _link(parts: Path) -> None:
    (parts / part(2)).rename(parts / "x")
    (parts / part(2)).symlink_to("x")


def _several(parts: Path) -> None:
    bundles.flip(parts / part(2))
    bundles.flip(parts / part(4))


WRONG: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "missing": (lambda parts: (parts / part(2)).unlink(), [f"{part(2)} is missing"]),
    "two missing": (_two_missing, [f"{part(2)} is missing", f"{part(4)} is missing"]),
    "last missing": (lambda parts: max(parts.glob("bundle.part-*")).unlink(), [f"{part(6)} is missing"]),
    "cut": (_cut, [f"{part(2)} was cut: it has {MIB - 1} bytes of {MIB}"]),
    "too long": (lambda parts: (parts / part(2)).write_bytes(bytes(MIB + 1)), [f"{part(2)} is too long"]),
    "flipped": (lambda parts: bundles.flip(parts / part(2)), [f"{part(2)} is damaged, or is a part of another bundle"]),
    "several flipped": (_several, [f"{part(2)} is damaged", f"{part(4)} is damaged"]),
    "swapped": (_swap, [f"{part(2)} is what {part(3)} should be", f"{part(3)} is what {part(2)} should be"]),
    "foreign": (_foreign, [f"{part(2)} is damaged, or is a part of another bundle"]),
    "one too many": (lambda parts: (parts / part(99)).write_text("x"), [f"{part(99)} is none of these parts"]),
    "a link": (_link, [f"{part(2)} is missing"]),
    "listing changed": (lambda parts: bundles.edit(parts / "parts.json", lambda said: said), ["parts.json is not what PARTS.SHA256SUMS says"]),
    "no sums": (lambda parts: (parts / "PARTS.SHA256SUMS").unlink(), ["It is written last"]),
    "no listing": (lambda parts: (parts / "parts.json").unlink(), ["parts.json cannot be read"]),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_part_that_is_not_right_is_named_and_mended_parts_are_enough(parts: Path, made: Path, tmp_path: Path, name: str) -> None:
    change, words = WRONG[name]
    change(parts)
    said = join(parts, tmp_path / "joined", code=3)
    assert all(word in said for word in words), said
    assert not (tmp_path / "joined").exists()
    for path in parts.iterdir():
        path.unlink()
    shutil.copytree(made, parts, dirs_exist_ok=True)
    join(parts, tmp_path / "joined")
    assert verify(tmp_path / "joined") == []


def test_what_was_joined_before_a_wrong_part_is_not_written_again(parts: Path, made: Path, tmp_path: Path) -> None:
    bundles.flip(parts / part(5))
    join(parts, tmp_path / "joined", code=3)
    aside = tmp_path / ".joined.joining"
    before = bundles.stamps(aside)
    assert before
    shutil.copy(made / part(5), parts)
    join(parts, tmp_path / "joined")
    after = bundles.stamps(tmp_path / "joined")
    assert {path: after[path] for path in before} == before


def test_parts_of_another_bundle_are_refused(parts: Path, tmp_path: Path) -> None:
    other = make(tmp_path / "other", seed=2)
    shutil.copy(other / part(6), parts)
    assert f"{part(6)} is damaged, or is a part of another bundle" in join(parts, tmp_path / "joined", code=3)
    shutil.copy(other / "parts.json", parts)
    assert "parts.json is not what" in join(parts, tmp_path / "joined", code=3)


def test_a_place_that_is_taken(made: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/thesis.doc").write_text("years of work")
    assert "is there, and is not this bundle" in join(made, tmp_path / "taken", code=3)
    assert (tmp_path / "taken/thesis.doc").read_text() == "years of work"
    (tmp_path / "empty").mkdir()
    join(made, tmp_path / "empty")
    assert "is this bundle already" in join(made, tmp_path / "empty")


def test_a_join_that_is_killed_goes_on(made: Path, tmp_path: Path) -> None:
    """At each of its steps, in the process that a person starts once, and then wherever it changes anything."""
    bundles.kill(
        lambda: bundles.process("join", made, "--output", tmp_path / "joined"),
        lambda: any(tmp_path.glob(".joined.joining/models/it/*")),
        lambda: shutil.rmtree(tmp_path / "joined"),
    )
    assert not (tmp_path / "joined").exists()
    join(made, tmp_path / "joined")
    for number in itertools.count(1, 5):  # every step was tried once; they are many
        output = tmp_path / f"joined-{number}"
        if not bundles.killed_at(number, partial(put_together, made, output, Reporter(QUIET))):
            break
        aside = tmp_path / f".{output.name}.joining"
        if output.exists():
            assert verify(output) == []
        before = bundles.stamps(aside / "models") if (aside / "models").exists() else {}
        put_together(made, output, Reporter(QUIET))
        assert verify(output) == []
        assert not aside.exists()
        after = bundles.stamps(output / "models")
        # The newest one may have been killed before it was noted, and all when the journal went at the very end.
        assert sum(after[path] != before[path] for path in before) <= 1
    assert number > 20


def test_a_split_that_is_killed_goes_on(made: Path, tmp_path: Path) -> None:
    bundle = made.parent / "bundle"
    for number in itertools.count(1, 3):
        parts = tmp_path / f"parts-{number}"
        if not bundles.killed_at(number, partial(split, bundle, parts, MIB, Reporter(QUIET))):
            break
        if (parts / "PARTS.SHA256SUMS").exists():
            join(parts, tmp_path / f"joined-{number}")
        else:
            join(parts, tmp_path / f"joined-{number}", code=3 if parts.exists() else 2)
        before = bundles.stamps(parts)
        split(bundle, parts, MIB, Reporter(QUIET))
        assert same(parts, made)
        after = bundles.stamps(parts)
        assert {path: after[path] for path in before if "part-" in path} == {
            path: stamp for path, stamp in before.items() if "part-" in path
        }
    assert number > 10


def test_parts_of_a_bundle_that_has_changed_are_made_anew(made: Path, tmp_path: Path) -> None:
    parts = make(tmp_path)
    (tmp_path / "model/vocabulary/more").write_text("more")
    words = ("--output", tmp_path / "bundle", "--only", "models", "--model", f"it={tmp_path / 'model'}", "--part-size", "1MiB")
    call("create", "-i", tmp_path / "inventory", *words)
    join(parts, tmp_path / "joined")
    assert (tmp_path / "joined/models/it/vocabulary/more").read_text() == "more"
    (parts / "thesis.doc").write_text("years of work")
    assert "holds something else than parts (thesis.doc)" in call("create", "-i", tmp_path / "inventory", *words, code=4).output


def test_a_bundle_that_was_changed_before_it_was_cut_is_not_joined(made: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(made.parent / "bundle", tmp_path / "bundle"))
    bundles.flip(bundle / "models/it/config.json")
    code = "from pathlib import Path\nfrom vllm_node.bundle.split import split\nfrom vllm_node.bundle.reporter import Reporter\n"
    code += f"split(Path({str(bundle)!r}), Path({str(tmp_path / 'parts')!r}), 1 << 20, Reporter())"
    subprocess.run([*bundles.PYTHON, "-c", code], check=True, capture_output=True)
    assert "models/it/config.json is not what SHA256SUMS says" in join(tmp_path / "parts", tmp_path / "joined", code=3)
    assert not (tmp_path / "joined").exists()


@pytest.mark.parametrize(("text", "code"), [("1000", 2), ("0", 2), ("x", 2), ("4 XB", 2), ("-1GB", 2)])
def test_sizes_that_are_none(tmp_path: Path, text: str, code: int) -> None:
    call("create", "-i", tmp_path, "--output", tmp_path / "b", "--only", "toolkit", "--part-size", text, code=code)
    assert not (tmp_path / "b").exists()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """Files of odd sizes and names, and GNU tar's own archive of them to compare with."""
    folder = tmp_path_factory.mktemp("archive")
    for number, size in enumerate((0, 1, 511, 512, 513, 5000)):
        (folder / f"file-{number}").write_bytes(random.Random(size).randbytes(size))
    (folder / LONG).write_text("long")
    archive = Archive(folder, [path.name for path in folder.iterdir()])
    return folder, b"".join(bytes(piece) for piece in archive.read(0, archive.bytes, bytearray(BLOCK_BYTES)))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.data())
def test_any_range_of_the_archive_is_the_same(small: tuple[Path, bytes], data: st.DataObject) -> None:
    folder, whole = small
    archive = Archive(folder, [path.name for path in folder.iterdir()])
    start = data.draw(st.integers(0, archive.bytes))
    end = data.draw(st.integers(start, archive.bytes))
    assert len(whole) == archive.bytes
    for block in (bytearray(7), bytearray(BLOCK_BYTES)):
        assert b"".join(bytes(piece) for piece in archive.read(start, end, block)) == whole[start:end]


@pytest.mark.parametrize("size", [(8 << 30) - 1, 8 << 30, 900 << 30])
def test_a_file_larger_than_old_archives_hold(tmp_path: Path, size: int) -> None:
    with (tmp_path / "weights").open("wb") as file:
        file.truncate(size)
    archive = Archive(tmp_path, ["weights"])
    header = b"".join(bytes(piece) for piece in archive.read(0, 512, bytearray(512)))
    assert tarfile.TarInfo.frombuf(header, "utf-8", "strict").size == size
    listed = subprocess.run(["tar", "-tvf", "-"], input=header, capture_output=True, text=False)
    assert f" {size} ".encode() in listed.stdout
    assert archive.bytes % tarfile.RECORDSIZE == 0


def test_gnu_tar_reads_the_archive(small: tuple[Path, bytes], tmp_path: Path) -> None:
    folder, whole = small
    subprocess.run(["tar", "-x", "-C", str(tmp_path)], input=whole, check=True)
    assert same(folder, tmp_path)
