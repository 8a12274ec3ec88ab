"""Small bundles: wheels of a few bytes, an inventory of one image lock, and the command line as a person calls it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from vllm_node.bundle.cli import bundle_group

PYTHON = (sys.executable, "-W", "error::ResourceWarning")


def wheel(folder: Path, name: str, version: str = "1.0", requires: Sequence[str] = (), tag: str = "py3-none-any", **metadata: str) -> Path:
    """A wheel that pip installs: one module that is named after it."""
    folder.mkdir(parents=True, exist_ok=True)
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    told = [f"{key.replace('_', '-')}: {value}" for key, value in metadata.items()]
    lines = ["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}", *told, *(f"Requires-Dist: {one}" for one in requires)]
    path = folder / f"{module}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{module}.py", f"version = {version!r}\n")
        archive.writestr(f"{info}/METADATA", "\n".join(lines) + "\n")
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n")
        archive.writestr(f"{info}/RECORD", f"{module}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return path


def toolkit(folder: Path) -> Path:
    """A wheel that is called as ours, and the folder that pip finds what it needs in; returns the wheel."""
    wheel(folder, "needed", License_Expression="MIT")
    return wheel(folder, "vllm-node", "0.1.0", ["needed>=1"])


def environment(wheels: Path) -> dict[str, str]:
    """pip sees these wheels, and no index."""
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": os.devnull}


def inventory(folder: Path, images: Mapping[str, Mapping[str, object]] | None = None) -> Path:
    """An inventory with this image lock."""
    (folder / "group_vars/all").mkdir(parents=True, exist_ok=True)
    (folder / "hosts.yml").write_text("---\nall: {hosts: {node: {}}}\n")
    lock = {"images_lock": {name: dict(image) for name, image in (images or {}).items()}}
    (folder / "group_vars/all/images.lock.yml").write_text(json.dumps(lock))
    return folder


def call(*words: str | Path, code: int = 0, env: Mapping[str, str] | None = None) -> Result:
    """`vllm-node bundle ...` in this process; its exit code has to be `code`."""
    result = CliRunner().invoke(bundle_group, [str(word) for word in words], env=dict(env or {}))
    assert result.exit_code == code, result.output
    return result


def verify(bundle: Path, *words: str | Path, code: int = 0) -> list[tuple[str, str]]:
    """Kind and path of each problem that `bundle verify` finds."""
    found = json.loads(call("verify", "--json", bundle, *words, code=code).stdout)
    assert found["ok"] == (code == 0)
    return [(one["kind"], one["path"]) for one in found["problems"]]


def sha256sum_agrees(bundle: Path) -> bool:
    """Whether the tool that is everywhere says the same."""
    return subprocess.run(["sha256sum", "--check", "--quiet", "--strict", "SHA256SUMS"], cwd=bundle, capture_output=True).returncode == 0


def process(*words: str | Path, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """`vllm-node bundle ...` as a process of its own, with a session of its own."""
    command = [sys.executable, "-m", "vllm_node", "bundle", *(str(word) for word in words)]
    return subprocess.Popen(
        command, env={**os.environ, **(env or {})}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def kill_when(running: subprocess.Popen[str], ready: Callable[[], bool], limit_s: float = 30) -> None:
    """SIGKILL to the process, and to none of its children, once it is so far. It must not have ended before."""
    end = time.monotonic() + limit_s
    while not ready():
        assert running.poll() is None, f"it was done too early:\n{running.communicate()[0]}"
        assert time.monotonic() < end
    running.kill()
    assert running.wait() == -signal.SIGKILL
    assert running.stdout is not None
    running.stdout.close()


def kill(start: Callable[[], subprocess.Popen[str]], ready: Callable[[], bool], clean: Callable[[], object]) -> None:
    """SIGKILL to a process, and to none of its children, once it is so far; again from the start when it was faster."""
    said = ""
    for _attempt in range(8):
        running = start()
        while running.poll() is None:
            if ready():
                running.kill()
                break
        said, _nothing = running.communicate()
        if running.returncode == -signal.SIGKILL:
            return
        clean()
    raise AssertionError(f"it was done too early, each time:\n{said}")


_CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod", "shutil.rmtree")


def killed_at(number: int, run: Callable[[], object]) -> bool:
    """Do it in a child, which gets SIGKILL just before it changes the file system for the `number`th time.

    False: it was done before that. A failure of `run` is one of the test.
    """
    child = os.fork()
    if child:
        _pid, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0
        return os.WIFSIGNALED(status)
    seen = 0

    def look(event: str, words: tuple[Any, ...]) -> None:
        nonlocal seen
        writes = event == "open" and isinstance(words[2], int) and words[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if writes or event in _CHANGES:
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)

    try:
        sys.addaudithook(look)
        run()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def flip(path: Path) -> None:
    """One byte in the middle is another one; size and time of the file stay."""
    there = path.stat()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(there.st_atime_ns, there.st_mtime_ns))


def reseal(bundle: Path) -> None:
    """Write sums that fit what is there: what somebody does who changes a bundle, and knows how it is checked."""
    files = [path for path in bundle.rglob("*") if path.is_file() and path.name not in ("SHA256SUMS", "SHA256SUMS.sig")]
    sums = {path.relative_to(bundle).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    (bundle / "SHA256SUMS").write_text("".join(f"{sums[path]}  {path}\n" for path in sorted(sums, key=str.encode)))


def edit(path: Path, change: Callable[[Any], object]) -> None:
    """Change a JSON document in place."""
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def stamps(folder: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of each file: the same when it was not made anew."""
    files = [path for path in folder.rglob("*") if path.is_file() and ".partial" not in path.parts]
    return {path.relative_to(folder).as_posix(): (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


def programs_in(folder: Path) -> list[str]:
    """Command lines of other processes that name something in a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found += [line] if f"{folder}/" in line else []
    return found
