"""How far the start of a vLLM instance has come, by what it writes; the words are those of vLLM 0.32."""

from __future__ import annotations

import re

# In the order of a start. Where a line matches several, the first counts.
PHASES = (
    ("starting", r"\[api_utils\.py:\d+\].* version (\S+)\s*$", "starting vLLM {0}"),
    ("starting", r"Resolved architecture: (\S+)", "starting ({0})"),
    ("engine", r"Initializing a V\d LLM engine", "starting the engine"),
    ("workers", r"world_size=(\d+) rank=\d+", "starting workers, {0} in all"),
    ("weights", r"Starting to load model", "opening the weights"),
    ("weights", r"Prefetching checkpoint files: +\d+% \((\d+)/(\d+)\)", "prefetching, {0} of {1} files read"),
    ("loaded", r"Loading weights took ([\d.]+) s", "weights read in {0:.0f} s"),
    ("loaded", r"Model loading took ([\d.]+) GiB memory and ([\d.]+) s", "weights loaded, {0:.1f} GiB in {1:.0f} s"),
    ("compile", r"torch\.compile took ([\d.]+) s", "compiled in {0:.0f} s"),
    ("compile", r"Starting torch\.compile|Dynamo bytecode transform|Using cache directory: ", "compiling"),
    ("compile", r"Compiling a graph for compile range|the compiled graph\(s\) for compile", "compiling"),
    ("memory", r"Profiling CUDA graph memory", "measuring memory"),
    ("memory", r"Available KV cache memory: ([\d.]+) GiB", "KV cache of {0:.1f} GiB"),
    ("memory", r"KV cache size: ([\d,]+) tokens", "KV cache of {0} tokens"),
    ("graphs", r"Graph capturing finished in ([\d.]+) s", "graphs captured in {0:.0f} s"),
    ("server", r"init engine \(.*\) took ([\d.]+) s", "engine is up after {0:.0f} s"),
    ("server", r"Supported tasks: ", "starting the API server"),
    ("server", r"Starting vLLM server on", "API server is starting"),
)
_PHASES = tuple((name, re.compile(pattern), text) for name, pattern, text in PHASES)

# A bar of tqdm: `TEXT:  38%... 3/8 [00:30<00:50, ...`; what is left is `?` at first.
_BAR = re.compile(r"(Loading .*?|Capturing CUDA graphs[^:]*): +\d+%.*?(\d+)/(\d+) \[[\d:]+<([\d:?]+)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def phase(log):
    """The latest phase in the log of one start: {phase, text, done, total, left_s}; None when none is told yet.

    `phase` is one of starting, engine, workers, weights, loaded, compile, memory, graphs and server, in that order.
    `done`, `total` and `left_s` are None where vLLM does not tell them; `left_s` is its own estimate.
    """
    # A bar that is redrawn in place stands in one line.
    for line in reversed(re.split(r"[\r\n]+", _COLOUR.sub("", log))):
        found = _bar(line) or _told(line)
        if found:
            return found
    return None


def _told(line):
    for name, pattern, text in _PHASES:
        match = pattern.search(line)
        if match:
            # A figure that is to be rounded comes as a number, anything else as it is written.
            values = [float(value) for value in match.groups()] if "f}" in text else match.groups()
            return {"phase": name, "text": text.format(*values), "done": None, "total": None, "left_s": None}
    return None


def _bar(line):
    match = _BAR.search(line)
    if not match:
        return None
    done, total, left_s = int(match.group(2)), int(match.group(3)), _seconds(match.group(4))
    if match.group(1).startswith("Capturing"):
        name, text = "graphs", "capturing graphs, %d of %d" % (done, total)
    elif done < total:
        name, text = "weights", "loading shard %d of %d" % (done + 1, total)
    else:
        name, text = "loaded", "all %d shards loaded" % total
    return {"phase": name, "text": text, "done": done, "total": total, "left_s": left_s if done < total else None}


def _seconds(clock):
    """Seconds of `1:02:03` or `02:03`; None for anything else."""
    if not re.fullmatch(r"\d+(:\d+){1,2}", clock):
        return None
    seconds = 0
    for part in clock.split(":"):
        seconds = seconds * 60 + int(part)
    return seconds
