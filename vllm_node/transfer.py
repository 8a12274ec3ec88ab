"""Bringing files to a node with rsync, over the connection that Ansible uses: models, and images of a bundle.

Only the files that are named are sent. An interrupted copy goes on where it stopped: rsync writes into the file under
its name, in a folder that nobody serves from, and compares what is there with the source the next time.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO

# rsync gives up when nothing has moved for so long; a large file that is compared first moves little.
_SILENCE_S = 600
_PROGRESS = re.compile(r"^\s*([\d,.]+)\s+\d+%\s")
_LITERAL = re.compile(r"^Literal data: ([\d,.]+) bytes", re.MULTILINE)
_KEPT_CHARS = 4000


class TransferError(Exception):
    """A copy has ended early. The text has rsync's own words."""


@dataclass(frozen=True)
class Reach:
    """How the node is reached: the words of ssh and the address, both None where the node is this machine itself.

    elevate: words before a program that needs the rights which Ansible's `become` gives.
    """

    ssh: tuple[str, ...] | None = None
    address: str | None = None
    elevate: tuple[str, ...] = ()

    def on_node(self, words: Sequence[str]) -> list[str]:
        """A command line that runs `words` on the node."""
        command = [*self.elevate, *words]
        if self.ssh is None or self.address is None:
            return command
        return [*self.ssh, self.address, shlex.join(command)]


def command(
    reach: Reach, source: str, target: str, *, source_on_node: bool, bandwidth: str = "", append: bool = False
) -> list[str]:
    """rsync's command line for the files whose paths it gets on its input, with a zero byte after each.

    bandwidth: the most bytes a second, as rsync writes it (`100m`). append: what is there of a file is taken for the
    begin of it and not compared, which costs half the time; for files whose content somebody checks afterwards.
    """
    words = [
        *("rsync", "--files-from=-", "--from0", "--copy-links", "--times", "--chmod=D0755,F0644"),
        # A begun file is compared and completed, also where rsync would rather copy it anew: from a disk of the node.
        *(("--append",) if append else ("--inplace", "--no-whole-file")),
        *("--info=progress2,stats2", "--outbuf=N", f"--timeout={_SILENCE_S}", "--protect-args"),
        *([f"--bwlimit={bandwidth}"] if bandwidth else []),
    ]
    ends = [source.rstrip("/") + "/", target.rstrip("/") + "/"]
    if source_on_node or reach.ssh is None or reach.address is None:
        return reach.on_node(["env", "LC_ALL=C", *words, *ends])
    address = f"[{reach.address}]" if ":" in reach.address else reach.address
    program = shlex.join([*reach.elevate, "rsync"])
    words += [f"--rsync-path={program}", "-e", shlex.join(reach.ssh)]
    return ["env", "LC_ALL=C", *words, ends[0], f"{address}:{ends[1]}"]


def run(argv: Sequence[str], paths: Sequence[str], told: Callable[[int], None]) -> int:
    """Copy; `told` is called with how many bytes were dealt with since it was called last. Returns how many were sent.

    Raises TransferError.
    """
    with tempfile.TemporaryFile() as listed, tempfile.TemporaryFile() as complaints:
        listed.write(b"".join(os.fsencode(path) + b"\0" for path in paths))
        listed.seek(0)
        try:
            process = subprocess.Popen(argv, stdin=listed, stdout=subprocess.PIPE, stderr=complaints, bufsize=0)
        except OSError as error:
            raise TransferError(f"{argv[0]} cannot be started: {error.strerror}") from error
        assert process.stdout is not None
        with _ended(process):
            text = _follow(process.stdout, told)
            code = process.wait()
        complaints.seek(0)
        said = complaints.read().decode(errors="replace").strip()[-_KEPT_CHARS:]
    if code != 0:
        raise TransferError(_explained(code, said))
    sent = _LITERAL.search(text)
    return _number(sent[1]) if sent else 0


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """No copy goes on without somebody who watches it: it would write into a tree that is served by then."""
    try:
        yield
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _follow(stream: IO[bytes], told: Callable[[int], None]) -> str:
    """Read to the end, telling how far it is; returns the end of what was said."""
    rest, kept, done = "", "", 0
    while data := stream.read(1 << 16):
        # Each state of the progress ends with a carriage return, and the last one with a line feed.
        *lines, rest = re.split(r"[\r\n]", rest + data.decode(errors="replace"))
        for line in lines:
            if match := _PROGRESS.match(line):
                now = _number(match[1])
                told(max(0, now - done))
                done = max(done, now)
            else:
                kept = f"{kept}\n{line}"[-_KEPT_CHARS:]
    return kept


def _number(text: str) -> int:
    return int(re.sub(r"\D", "", text) or 0)


def _explained(code: int, said: str) -> str:
    if code == 127 or "command not found" in said:
        return f"rsync is missing there: {said}"
    if code < 0:
        return f"rsync was ended by signal {-code}; {said}"
    return f"rsync ended with code {code}: {said or 'it said nothing'}"
