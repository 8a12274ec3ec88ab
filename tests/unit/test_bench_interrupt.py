"""The first Ctrl-C leaves a note that forked workers can read; the next one goes where it went before."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import os, signal, sys
from vllm_node.bench.interrupt import Listener, asked

def theirs(*_):
    print("theirs")

signal.signal(signal.SIGINT, theirs)
listener = Listener()
go, gone = os.pipe()
worker = os.fork()
if worker == 0:
    os.read(go, 1)
    print("worker", asked(), flush=True)
    os._exit(0)
signal.raise_signal(signal.SIGINT)      # not yet listened to
listener.listen(True)
listener.listen(False)
signal.raise_signal(signal.SIGINT)      # no more
listener.listen(True)
listener.listen(True)
print("before", asked())
signal.raise_signal(signal.SIGINT)
print("after", asked())
signal.raise_signal(signal.SIGINT)
listener.listen(True)                   # one is enough for a run
signal.raise_signal(signal.SIGINT)
sys.stdout.flush()
os.write(gone, b"x")
os.waitpid(worker, 0)
"""


def test_one_interrupt_is_a_wish_and_the_next_is_ansibles() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=20)
    said = done.stdout.splitlines()
    assert said == ["theirs", "theirs", "before False", "after True", "theirs", "theirs", "worker True"]
