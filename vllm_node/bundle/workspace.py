"""A bundle while it is made: one maker at a time, nothing half-written under its final name, and a memory of what is
whole, so that an interrupted run goes on where it was.

All that is unfinished lies in `.partial/`. A file gets its final name when it is whole and on the disk, and a line in
the journal then says what it holds. `SHA256SUMS` goes first when a finished bundle is changed, and comes back last.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType

from vllm_node.bundle import leftovers, sums
from vllm_node.bundle.contents import part_files
from vllm_node.bundle.copying import copy_file, sync
from vllm_node.bundle.hashing import FileHash, Progress, hash_files
from vllm_node.bundle.journal import Journal, Known
from vllm_node.bundle.layout import (
    FOLDERS,
    MANIFEST,
    PARTIAL,
    SBOM,
    SIGNATURE,
    SUMS,
    BundleError,
    Folder,
    Manifest,
    Part,
    safe_path,
)
from vllm_node.bundle.oci import ImageError

_BEFORE = "SHA256SUMS.before"
_JOURNAL = "journal.jsonl"
_LOCK = "lock"


class Workspace:
    """A bundle that this process may change. Use it as a context."""

    def __init__(self, bundle: Path) -> None:
        """Nothing is touched before the context begins."""
        self.bundle = bundle.absolute()
        self._partial = self.bundle / PARTIAL
        self._journal = Journal(self._partial / _JOURNAL)
        self._before: dict[str, str] = {}
        # Names of another run may come back: what it had started does not notice that it was killed.
        self._run = secrets.token_hex(4)
        self._numbers = itertools.count()
        self._lock: int | None = None

    def __enter__(self) -> Workspace:
        """Take the folder. Raises BundleError: it holds something else, or somebody else is at work in it."""
        try:
            self._refuse_foreign()
            self._take_lock()
            self._reopen()
        except BaseException as error:
            self._let_go()
            if isinstance(error, OSError):
                raise BundleError(f"{self.bundle} cannot be used: {error}") from error
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go of the folder; what is not finished stays so."""
        self._let_go()

    # Files

    def known(self, path: str) -> FileHash | None:
        """What a file of the bundle holds, when that is known and the file is still as it was then."""
        entry = self._journal.files.get(path)
        if entry is None:
            return None
        try:
            there = (self.bundle / path).lstat()
        except OSError:
            return None
        same = (there.st_size, there.st_mtime_ns) == (entry.bytes, entry.mtime_ns)
        return FileHash(entry.sha256, entry.bytes) if same else None

    def whole(self, path: str) -> FileHash:
        """What a file that was made holds. Raises BundleError when it has been changed since."""
        found = self.known(path)
        if found is None:
            raise BundleError(f"{self.bundle / path} was changed while the bundle was made; run `bundle create` again")
        return found

    def unsure(self) -> dict[str, int]:
        """Files of a bundle that was finished before, of which it is not known whether they are still whole: sizes."""
        found = {}
        for path in self._before:
            if self.known(path) is None:
                with contextlib.suppress(OSError):
                    found[path] = (self.bundle / path).lstat().st_size
        return found

    def look_again(self, progress: Progress | None = None) -> None:
        """Hash those files: what is still as the sums said need not be made again."""
        paths = {self.bundle / path: path for path in self.unsure()}
        found = hash_files(paths, progress=progress, on_error=lambda _path, _error: None, follow=False)
        for path, one in found.items():
            if one.sha256 == self._before[paths[path]]:
                self._note(paths[path], one)

    def staging(self, name: str) -> Path:
        """Path for something unfinished; nothing is there yet."""
        return self._partial / f"{self._run}-{next(self._numbers)}-{name}"

    def put(self, path: str, content: bytes) -> None:
        """Make a file of these bytes. Raises OSError."""
        found = FileHash(hashlib.sha256(content).hexdigest(), len(content))
        if self.known(path) != found:
            staged = self.staging("put")
            staged.write_bytes(content)
            self.adopt(staged, path, found)

    def copy(self, source: Path, path: str, block: bytearray, progress: Progress | None = None) -> None:
        """Copy a file; what is there already is not copied again. `progress` is told its bytes either way.

        It is a copy on purpose. A hard link would be the same file: whoever changes the source afterwards would change
        the bundle under its sums. Raises OSError, and ChangedWhileReadError.
        """
        before = source.stat()
        stamp = (before.st_size, before.st_mtime_ns)
        if self._has_copy_of(source, path, stamp):
            if progress is not None:
                progress(before.st_size)
            return
        staged = self.staging("copy")
        self._place(staged, path, copy_file(source, staged, block, progress), stamp)

    def adopt(self, staged: Path, path: str, found: FileHash) -> None:
        """Give a file that is whole its place in the bundle. Raises OSError."""
        self._place(staged, path, found, None)

    def adopt_in_place(self, path: str, found: FileHash) -> None:
        """Take a file that another program has put in its place, and that was hashed since."""
        self._note(path, found)

    # Parts

    @property
    def parts(self) -> list[Part]:
        """Parts that are whole."""
        return [part for part, _files in self._journal.parts.values()]

    def begin_folder(self, folder: Folder) -> None:
        """What is asked for now takes the place of the folder's parts. Files stay, to be used again."""
        self._journal.begin(folder)

    def finish_part(self, part: Part, paths: Iterable[str]) -> None:
        """A part is whole; these are its files. It stays when a later run does not ask for its folder."""
        self._journal.note_part(part, tuple(paths))

    def part_files(self, part: Part) -> dict[str, FileHash]:
        """Files of a part that is whole. Raises BundleError when one has been changed since."""
        return {path: self.whole(path) for path in self._journal.parts[part.path, part.name][1]}

    def files_of(self, folder: Folder) -> list[str]:
        """Files of all parts in a folder."""
        return [path for part, files in self._journal.parts.values() if part.folder == folder for path in files]

    def orphans(self, folder: Folder) -> list[str]:
        """Files in a folder that belong to no part: an interrupted run left them, or they are not wanted any more."""
        owned = {path for _part, files in self._journal.parts.values() for path in files}
        return [path for path in self._walk(folder) if path not in owned]

    # The end

    def finish(self, own: Mapping[str, bytes], sign: Callable[[bytes], bytes] | None = None) -> dict[str, str]:
        """Remove what belongs to no part, write the bundle's own files and, last of all, its sums; returns these.

        Raises OSError, BundleError when a file has been changed since it was made, and what `sign` raises.
        """
        for path, content in own.items():
            self.put(path, content)
        parts = self._journal.parts.values()
        found = {path: self.whole(path).sha256 for path in [*(path for _, files in parts for path in files), *own]}
        text = sums.text(found).encode()
        signature = sign(text) if sign is not None else None
        self.close(found, text, signature)
        return found

    def close(self, wanted: Iterable[str], text: bytes, signature: bytes | None) -> None:
        """Keep the `wanted` files and no others, and put the sums, which say what they hold, in their place."""
        self._drop(wanted)
        for folder, _folders, _files in os.walk(self.bundle):
            sync(Path(folder))
        if signature is not None:
            self._write_last(SIGNATURE, signature)
        self._write_last(SUMS, text)
        sync(self.bundle)
        shutil.rmtree(self._partial)

    def _drop(self, wanted: Iterable[str]) -> None:
        kept = set(wanted)
        for folder in FOLDERS:
            for path in self._walk(folder):
                if path not in kept:
                    (self.bundle / path).unlink()
            for root, _folders, _files in os.walk(self.bundle / folder, topdown=False):
                with contextlib.suppress(OSError):
                    Path(root).rmdir()  # only where it is empty

    def _refuse_foreign(self) -> None:
        names = {entry.name for entry in self.bundle.iterdir()} if self.bundle.is_dir() else set()
        foreign = sorted(names - {MANIFEST, SUMS, SIGNATURE, SBOM, PARTIAL, *FOLDERS})
        if foreign or (names and not names & {MANIFEST, PARTIAL}):
            told = ", ".join(foreign[:5]) or "no manifest of a bundle"
            raise BundleError(f"{self.bundle} holds something else than a bundle ({told}); name a new or empty folder")

    def _take_lock(self) -> None:
        while True:
            self._partial.mkdir(parents=True, exist_ok=True)
            path = self._partial / _LOCK
            self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                holder = os.pread(self._lock, 20, 0).decode(errors="replace").strip()
                raise BundleError(
                    f"another `bundle create` (process {holder or 'unknown'}) is at work in {self.bundle}; wait for it"
                ) from error
            # The one before us may have finished, and removed the file that we have opened.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(self._lock), path.stat()):
                    break
            self._let_go()
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def _let_go(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _reopen(self) -> None:
        leftovers.end(self._partial)
        for entry in self._partial.iterdir():
            if entry.name in (_LOCK, _JOURNAL, _BEFORE):
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        before = self._partial / _BEFORE
        if (self.bundle / SUMS).exists():
            # From here on nobody takes it for finished. The signature goes after that: without sums it says nothing.
            (self.bundle / SUMS).replace(before)
        (self.bundle / SIGNATURE).unlink(missing_ok=True)
        if before.exists():
            self._before, _problems = sums.read(before)
            self._carry_over()
        self._journal.read()

    def _carry_over(self) -> None:
        """The parts of the finished bundle; whether their files are whole is another question."""
        with contextlib.suppress(BundleError):
            for part in Manifest.read(self.bundle).parts:
                with contextlib.suppress(ImageError):
                    files = tuple(part_files(self.bundle, part, self._before))
                    self._journal.parts[part.path, part.name] = part, files

    def _place(self, staged: Path, path: str, found: FileHash, source: tuple[int, int] | None) -> None:
        target = self.bundle / safe_path(path)
        staged.chmod(0o644)
        sync(staged)
        target.parent.mkdir(parents=True, exist_ok=True)
        staged.replace(target)
        self._note(path, found, source)

    def _note(self, path: str, found: FileHash, source: tuple[int, int] | None = None) -> None:
        there = (self.bundle / path).lstat()
        self._journal.note_file(path, Known(found.sha256, found.bytes, there.st_mtime_ns, source))

    def _write_last(self, name: str, content: bytes) -> None:
        staged = self.staging(name)
        staged.write_bytes(content)
        sync(staged)
        staged.replace(self.bundle / name)

    def _has_copy_of(self, source: Path, path: str, stamp: tuple[int, int]) -> bool:
        known = self.known(path)
        if known is None or known.bytes != stamp[0]:
            return False
        if self._journal.files[path].source == stamp:
            return True
        # From a bundle that was finished before: only the content can tell.
        same = hash_files([source], workers=1)[source] == known
        if same:
            self._note(path, known, stamp)
        return same

    def _walk(self, folder: str) -> Iterator[str]:
        for root, folders, files in os.walk(self.bundle / folder):
            # A link to a folder is listed among the folders, and is no folder of ours.
            links = [name for name in folders if (Path(root) / name).is_symlink()]
            for name in [*files, *links]:
                yield (Path(root) / name).relative_to(self.bundle).as_posix()
