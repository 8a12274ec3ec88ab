"""Hypotheses about the machine: clocks, links, faults of GPUs, the host, and the monitoring itself."""

from __future__ import annotations

from vllm_node.diagnosis.hypothesis import Hypothesis, Next, above, below

MACHINE: tuple[Hypothesis, ...] = (
    Hypothesis(
        "heat",
        "GPUs are slowed down because they are too hot",
        "node",
        Next(
            "temperatures and reasons while the load runs; compare with the neighbours in the rack: one hot GPU is its "
            "cooler, all of them the air",
            command="nvidia-smi -q -d TEMPERATURE,PERFORMANCE",
        ),
        helps=(
            above("bit_heat", "bit_often"),
            above("bit_hw_heat", "bit_often"),
            below("margin", "margin_low"),
            below("clock", "clock_low"),
        ),
        against=(above("margin", "margin_fine"),),
        explains=("decode_bound", "tp_imbalance"),
    ),
    Hypothesis(
        "power",
        "GPUs are held below their clocks by power: the limit is low, or the supply asks for less",
        "node",
        Next(
            "limits in force against the board's own: a limit below the default was set by somebody, a power brake "
            "comes "
            "from the supply. Being capped at full load with the usual clocks is normal",
            command="nvidia-smi -q -d POWER,PERFORMANCE",
        ),
        needs=(below("clock", "clock_low"),),
        helps=(
            above("bit_power", "bit_mostly"),
            above("bit_brake", "bit_often"),
            above("power", "power_at_limit"),
        ),
        against=(above("bit_heat", "bit_often"), above("bit_hw_heat", "bit_often"), below("power", "power_room")),
        explains=("decode_bound",),
    ),
    Hypothesis(
        "link_fault",
        "A PCIe or NVLink connection of a GPU has errors",
        "node",
        Next(
            "width, speed and counters of each link while the load runs: a link below its full width, or one "
            "counter that "
            "grows alone, names the slot or cable",
            command="nvidia-smi -q -d PCIE; nvidia-smi nvlink -e; journalctl -k --grep 'AER|NVRM|Xid'",
        ),
        helps=(
            above("pcie_replays", "pcie_replays"),
            above("nvlink_recoveries", "some"),
            above("nvlink_retries", "nvlink_retries"),
            above("xid_hardware", "some"),
            above("health", "health_warns"),
        ),
    ),
    Hypothesis(
        "gpu_fault",
        "A GPU has a hardware fault",
        "node",
        Next(
            "the kernel's own words with the code and the GPU's address; then a diagnostic run on the empty node",
            command="journalctl -k --since -24h --grep 'NVRM|Xid'; nvidia-smi -q -d ECC,ROW_REMAPPER",
        ),
        helps=(
            above("xid_hardware", "some"),
            above("ecc", "some"),
            above("remap_failure", "some"),
            above("remap_pending", "some"),
            above("smi_faults", "some"),
            above("recovery", "some"),
            above("health", "health_warns"),
            above("bit_slowdown", "bit_often"),
        ),
    ),
    Hypothesis(
        "gpu_lost",
        "A GPU is gone: it fell off the bus, or the driver gave it up",
        "node",
        Next(
            "what the bus, the driver and the exporter each count; a GPU that the bus does not list needs a power "
            "cycle",
            command="lspci -d 10de: ; nvidia-smi -L; journalctl -k --grep 'fallen off the bus|Xid'",
        ),
        helps=(
            above("gpus_lost", "some"),
            above("smi_missing", "some"),
            above("xid_hardware", "some"),
            below("gpu_metrics", "half"),
        ),
    ),
    Hypothesis(
        "tp_imbalance",
        "One of the GPUs that share a model is slower, and the others wait for it",
        "instance",
        Next(
            "clocks, power and links of the GPUs side by side under load. One that waits in a collective looks "
            "busy: power "
            "tells more than utilisation",
            command="nvidia-smi dmon -s puct -c 10",
        ),
        given=(above("gpu_util", "gpu_low"),),
        helps=(
            above("gpu_util_spread", "spread_util"),
            above("tensor_spread", "spread_share"),
            above("power_spread", "spread_share"),
            above("clock_spread", "spread_share"),
        ),
        against=(below("itl_p95", "itl_healthy_s"),),
    ),
    Hypothesis(
        "other_program",
        "Another program uses the same GPUs",
        "node",
        Next(
            "what the processes are and how much they use",
            command="nvidia-smi pmon -c 5 -s um",
        ),
        needs=(above("strangers", "half"),),
        helps=(above("itl_p95", "itl_high_s"), above("gpu_util", "gpu_busy"), above("gpu_memory_growth", "some")),
    ),
    Hypothesis(
        "host_cpu",
        "The host's processors are the limit",
        "node",
        Next(
            "which processes use the cores, and whether a limit of their units holds them back (nr_throttled)",
            command="systemd-cgtop -b -n 2 --order=cpu; cat /sys/fs/cgroup/system.slice/vllm-*.service/cpu.stat",
        ),
        needs=(above("cpu", "cpu_busy"),),
        helps=(
            above("cpu_pressure", "pressure"),
            above("frontend_share", "frontend_share"),
            below("gpu_util", "gpu_low"),
        ),
        explains=("frontend_bound",),
    ),
    Hypothesis(
        "host_memory",
        "The host has too little memory: it swaps, stalls or kills processes",
        "node",
        Next(
            "who holds the memory, and whom the kernel killed; shared memory counts to the unit that wrote it",
            command="journalctl -k --since -1h --grep 'Out of memory|oom-kill'; systemd-cgtop -b -n 1 --order=memory",
        ),
        helps=(
            below("memory_free", "memory_low"),
            below("memory_seen", "memory_low"),
            above("swapping", "swap_rate"),
            above("memory_pressure", "pressure"),
            above("oom_kills", "some"),
        ),
        against=(above("memory_free", "memory_fine"),),
        explains=("restart_loop",),
    ),
    Hypothesis(
        "disk_full",
        "A file system is full, or nearly",
        "node",
        Next(
            "which file system, and what grew in it: images, Prometheus's data, logs or caches",
            command="df -h -x tmpfs -x overlay; podman system df; journalctl --disk-usage",
        ),
        helps=(below("disk_free", "disk_low"), below("disk_seen", "disk_low"), above("units_failed", "some")),
        against=(above("disk_free", "disk_fine"),),
    ),
    Hypothesis(
        "blind",
        "The monitoring itself is blind: exporters are silent, or samples are missing",
        "node",
        Next(
            "the state of each target and its last error; until that is mended, silence here proves nothing",
            command="curl -s {prometheus}/api/v1/targets",
        ),
        helps=(
            below("exporters_up", "up_often"),
            above("exporters_stopped", "some"),
            above("scrape_time", "scrape_slow_s"),
            above("scrapes_missing", "scrape_missing"),
            below("history", "one_window"),
            below("engine_metrics", "half"),
            below("gpu_metrics", "half"),
        ),
    ),
)
