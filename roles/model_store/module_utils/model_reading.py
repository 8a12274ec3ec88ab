"""Reading a tree with all cores, in a process of its own that outlives a lost connection and says how far it is.

A lock says whether a reader is at work: it ends with the process, however that ends. What a reader has found so far is
in the tree's mark, so that a reader that was killed has not worked in vain.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import queue
import signal
import threading
import time

from ansible.module_utils.model_manifest import other_content
from ansible.module_utils.node_manifest import write_atomically

RUNTIME = "/run/vllm-node/models"
BLOCK_BYTES = 1 << 20
_TELL_EVERY_S = 1.0
_SAVE_EVERY_S = 5.0


class Reading:
    """The reader of one tree on this node. `key` says what is read: a reader with another one is ended."""

    def __init__(self, name, key):
        self.key = key
        self.lock_path = os.path.join(RUNTIME, name + ".lock")
        self.told_path = os.path.join(RUNTIME, name + ".json")

    def told(self):
        """What the reader of this key has said last (bytes, total_bytes, ended, differences, trouble), or None."""
        try:
            with open(self.told_path, encoding="utf-8") as handle:
                data = json.load(handle)
        except (OSError, ValueError):
            return None
        return data if data.get("key") == self.key else None

    def forget(self):
        """Drop what an earlier reader has said."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.told_path)

    def is_running(self):
        """Whether a reader is at work; one that reads something else is ended first."""
        if not _is_locked(self.lock_path):
            return False
        if self.told() is not None:
            return True
        _end(self.lock_path)
        return False

    def end(self):
        """End whoever reads this tree, and drop what was said."""
        _end(self.lock_path)
        self.forget()

    def start(self, root, wanted, mark, workers):
        """Start to read: `wanted` are paths below `root` with their SHA-256. Returns at once."""
        os.makedirs(RUNTIME, mode=0o755, exist_ok=True)
        handle = os.open(self.lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            os.ftruncate(handle, 0)
            self.tell(bytes=0, total_bytes=0, ended=False)
            # Before any thread starts: a child has none but its own, and must not find a lock of another one's.
            pid = os.fork()
            if pid == 0:
                self._read(handle, root, wanted, mark, workers)
        finally:
            os.close(handle)

    def tell(self, **what):
        """Say how far it is."""
        write_atomically(self.told_path, json.dumps({"key": self.key, **what}).encode(), 0o600)

    def _read(self, handle, root, wanted, mark, workers):
        """The child: everything, up to its end."""
        code = 1
        try:
            os.setsid()
            null = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(null, stream)
            os.write(handle, b"%d" % os.getpid())
            with contextlib.suppress(OSError):
                os.nice(10)  # a model that is served meanwhile comes first
            try:
                self.tell(ended=True, **read_all(root, wanted, mark, workers, self.tell))
            except Exception as error:  # nobody else can say why it ended
                self.tell(ended=True, trouble="%s: %s" % (type(error).__name__, error))
            code = 0
        finally:
            os._exit(code)


def end_all():
    """End every reader of this node."""
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(RUNTIME):
            if name.endswith(".lock"):
                _end(os.path.join(RUNTIME, name))


def _is_locked(path):
    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def _end(path):
    """Kill the reader that holds this lock, and wait until it has let go."""
    for _ in range(200):
        if not _is_locked(path):
            return
        with open(path, encoding="utf-8") as handle:
            pid = handle.read()
        if pid.isdigit():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.05)


def read_all(root, wanted, mark, workers, tell):
    """Read the files and note in `mark` which are what they should be: {bytes, total_bytes, differences, trouble}."""
    sizes = {}
    for name in wanted:
        with contextlib.suppress(OSError):
            sizes[name] = os.stat(os.path.join(root, name)).st_size
    # Large files first, so that none is left alone at the end.
    waiting = queue.SimpleQueue()
    for name in sorted(wanted, key=lambda name: -sizes.get(name, 0)):
        waiting.put(name)
    read, found, lock = [0], {}, threading.Lock()

    def add(count):
        with lock:
            read[0] += count

    def work():
        block = memoryview(bytearray(BLOCK_BYTES))
        while True:
            try:
                name = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                status, sha256 = hash_file(os.path.join(root, name), block, add)
                words = other_content(sha256, wanted[name])
            except OSError as error:
                words = "cannot be read: %s" % (error.strerror or error)
            with lock:
                if words:
                    found[name] = words
                else:
                    mark.note(name, status, sha256)

    count = max(1, min(workers or len(os.sched_getaffinity(0)), len(wanted)))
    threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    told = saved = time.monotonic()
    for thread in threads:
        while thread.is_alive():
            thread.join(0.2)
            now = time.monotonic()
            if now - told >= _TELL_EVERY_S:
                told = now
                tell(bytes=read[0], total_bytes=sum(sizes.values()), ended=False)
            if now - saved >= _SAVE_EVERY_S:
                saved = now
                with lock:
                    mark.save()
    mark.save()
    return {"bytes": read[0], "total_bytes": sum(sizes.values()), "differences": found}


def hash_file(path, block, add):
    """(status, SHA-256) of a file that nobody writes to meanwhile; links are followed. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        before = os.fstat(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        digest = hashlib.sha256()
        offset = 0
        while offset <= before.st_size:  # a file that grows as fast as it is read would have no end
            if offset % (8 << 20) == 0:
                os.posix_fadvise(handle, offset + (8 << 20), 8 << 20, os.POSIX_FADV_WILLNEED)
            count = os.readv(handle, [block])
            if not count:
                break
            digest.update(block[:count])
            offset += count
            add(count)
        after = os.fstat(handle)
    finally:
        os.close(handle)
    if (before.st_mtime_ns, before.st_size) != (after.st_mtime_ns, after.st_size):
        raise OSError("it was written to while it was read")
    return after, digest.hexdigest()
