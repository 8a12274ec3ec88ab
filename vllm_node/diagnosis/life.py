"""Hypotheses about an instance's life: loading, restarts, hangs, errors, sleep, and nothing at all."""

from __future__ import annotations

from vllm_node.diagnosis.hypothesis import Hypothesis, Next, above, below

LIFE: tuple[Hypothesis, ...] = (
    Hypothesis(
        "engine_hang",
        "The engine hangs: requests are in it and nothing moves",
        "instance",
        Next(
            "stacks of the engine's processes: one that waits in a collective (nccl) points to a GPU or link, one that "
            "waits for a lock to the software; save them before the restart",
            command="journalctl -u {unit} --since -15min; podman exec {container} nvidia-smi",
        ),
        needs=(above("running_least", "half"), below("steps", "still")),
        helps=(below("gpu_util_most", "gpu_idle"), above("xid_hardware", "some"), above("xid_program", "some")),
        against=(below("awake", "half"), below("vllm_up_now", "half")),
        explains=("queueing", "admission_limit"),
    ),
    Hypothesis(
        "asleep",
        "The engine was put to sleep, and nobody woke it",
        "instance",
        Next(
            "who put it to sleep is in the log of requests to /sleep; a wake-up ends it at once",
            command="journalctl -u {unit} --grep '/sleep|/wake_up'",
        ),
        needs=(below("awake", "half"),),
        helps=(above("waiting_least", "half"), below("steps", "still"), below("gpu_util_most", "gpu_idle")),
        against=(above("steps", "half"),),
    ),
    Hypothesis(
        "loading",
        "The model is still being loaded: the port is not open yet, and the unit is well",
        "instance",
        Next(
            "the log counts shards and graphs while it loads; if its last line is older than a few minutes, it "
            "hangs, and "
            "a slow file system or a missing GPU is more likely",
            command="journalctl -u {unit} --since -10min --lines 20",
        ),
        given=(above("unit_active", "half"),),
        needs=(below("vllm_up_now", "half"), above("port_closed", "half")),
        helps=(above("gpu_memory_growth", "some"),),
        against=(above("unit_looping", "half"), above("restarts", "restarts")),
    ),
    Hypothesis(
        "restart_loop",
        "The server starts again and again",
        "instance",
        Next(
            "the last lines before each start: out of memory, a bad flag and a lost GPU look alike from outside",
            command="journalctl -u {unit} --since -1h --grep 'Started|Failed|exit|error|Killed'",
        ),
        helps=(
            above("restarts", "restarts"),
            above("unit_looping", "half"),
            below("vllm_up", "up_often"),
            above("oom_kills", "some"),
        ),
        against=(above("vllm_up", "up_always"),),
        explains=("loading",),
    ),
    Hypothesis(
        "engine_errors",
        "The server fails: requests end in errors, or the engine dies under them",
        "instance",
        Next(
            "the traceback in the log; an XID at the same second makes it a matter of the GPU",
            command="journalctl -u {unit} --since -30min --priority warning",
        ),
        helps=(
            above("engine_errors", "some"),
            above("http_errors", "server_errors"),
            above("restarts", "some"),
            above("xid_program", "some"),
        ),
    ),
    Hypothesis(
        "turned_away",
        "Requests are turned away at the limit of the queue",
        "instance",
        Next(
            "requests turned away by reason: the limit is --max-num-queued-reqs or --max-num-queued-tokens, and a "
            "longer "
            "queue only helps where the load is a short burst",
            query='sum by (reason) (increase(vllm:admission_rejections_total{{instance="{instance}"}}[{window}]))',
        ),
        needs=(above("rejections", "some"),),
        helps=(
            above("waiting", "waiting"),
            above("queue_p95", "queue_high_s"),
            above("traffic_growth", "traffic_growth"),
        ),
    ),
    Hypothesis(
        "no_traffic",
        "Nothing is wrong that would show: no requests come",
        "instance",
        Next(
            "one request of your own from the node proves that it answers; if it does, look between the clients "
            "and the node",
            command="curl -s http://127.0.0.1:{port}/v1/models",
        ),
        needs=(below("first_tokens", "half"), below("running", "still")),
        helps=(below("waiting", "still"), below("gpu_util", "gpu_idle")),
        against=(below("vllm_up", "up_often"), above("waiting", "waiting_none"), below("awake", "half")),
    ),
    Hypothesis(
        "well",
        "The instance serves within its limits: nothing is wrong with it that would show in its own figures",
        "instance",
        Next(
            "the same window at the client: give its measurements with --client; what is slow there and not here lies "
            "between the two",
            command="vllm-node diagnose {node} -i INVENTORY --client FILE",
        ),
        given=(above("first_tokens", "half"),),
        needs=(below("ttft_p95", "ttft_high_s"), below("itl_p95", "itl_high_s")),
        helps=(below("waiting", "waiting"), below("kv_use", "kv_full"), below("abort_share", "aborts")),
        against=(
            above("waiting", "waiting"),
            above("engine_errors", "some"),
            above("http_errors", "server_errors"),
            above("preemptions", "preemptions"),
            above("abort_share", "aborts"),
            above("rejections", "some"),
            above("e2e_p95", "e2e_high_s"),
            above("restarts", "some"),
            above("xid_hardware", "some"),
            above("client_ttft", "client_gap"),
            above("stalled", "half"),
            below("awake", "half"),
            below("vllm_up_now", "half"),
        ),
    ),
)
