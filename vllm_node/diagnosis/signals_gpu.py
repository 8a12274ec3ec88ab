"""Signals of GPUs, by way of the DCGM exporter. Field names are the old ones, as in the exporter's own file."""

from __future__ import annotations

from vllm_node.diagnosis.signal import Fold, Obtained, Signal, Unit, query

BY = "(node, gpu, UUID)"
# Reasons for the present clocks; an idle GPU reads 1.
_POWER_CAP, _HW_SLOWDOWN, _SW_HEAT, _HW_HEAT, _POWER_BRAKE = 0x4, 0x8, 0x20, 0x40, 0x80
# Caused by the program that runs, not by the GPU.
_APPLICATION_XIDS = "13|31|43|45|68|109"
_STALL = "3m"
_XIDS = "DCGM_EXP_XID_ERRORS_COUNT"
_TEMP = "DCGM_FI_DEV_GPU_TEMP"


def _over(function: str, field: str, window: str = "$window", fold: str = "max") -> str:
    return f"{fold} by {BY} ({function}_over_time({field}[{window}]))"


def _bit(bit: int) -> str:
    """Share of the window in which a bit was set; PromQL has no bitwise operators."""
    reasons = f"DCGM_FI_DEV_CLOCKS_EVENT_REASONS % {2 * bit} >= bool {bit}"
    return f"max by {BY} (avg_over_time(({reasons})[$window:]))"


def _busy_clock() -> str:
    """An idle GPU lowers its clocks by itself, so only busy moments count."""
    busy = f"max by {BY} (DCGM_FI_DEV_SM_CLOCK) and (max by {BY} (DCGM_FI_DEV_GPU_UTIL) > 50)"
    return f"avg_over_time(({busy})[$window:])"


def _xids(matchers: str) -> str:
    """Counts of the exporter are those of its own five minutes; without one it has a series without `xid`."""
    return (
        f"sum by {BY} (max_over_time({_XIDS}{matchers}[$window])) or "
        f"(0 * max by {BY} (max_over_time({_XIDS}[$window])))"
    )


def _visible() -> str:
    """Zero when the exporter answers and knows no GPU; nothing when it does not answer."""
    return f'(count by (node) (count by (node, UUID) ({_TEMP})) or (0 * max by (node) (up{{job="dcgm"}} == 1)))'


def _gpu(
    id_: str, words: str, unit: Unit, family: str, expr: str, fold: Fold = "max", obtained: Obtained = "measured"
) -> Signal:
    return query(id_, words, unit, family, obtained, expr, fold=fold)


_UTIL = _over("avg", "DCGM_FI_DEV_GPU_UTIL")
_POWER = f"{_over('avg', 'DCGM_FI_DEV_POWER_USAGE')} / {_over('avg', 'DCGM_FI_DEV_ENFORCED_POWER_LIMIT')}"
_TENSOR = _over("avg", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE")
_CLOCK = f"{_busy_clock()} / {_over('max', 'DCGM_FI_DEV_SM_CLOCK', '1d')}"

GPU: tuple[Signal, ...] = (
    _gpu("gpu_util", "GPU utilisation, mean of the busiest", "percent", "gpu use", _UTIL),
    _gpu("gpu_util_spread", "utilisation between GPUs", "percent", "gpu use", _UTIL, "spread", "derived"),
    query(
        "gpu_util_most",
        "GPU utilisation, most",
        "percent",
        "gpu use",
        "measured",
        _over("max", "DCGM_FI_DEV_GPU_UTIL", _STALL),
        window=_STALL,
    ),
    _gpu(
        "dram",
        "share of time that the GPU's memory is at work",
        "ratio",
        "gpu memory use",
        _over("avg", "DCGM_FI_PROF_DRAM_ACTIVE"),
    ),
    _gpu("tensor_spread", "tensor cores' work between GPUs", "ratio", "gpu pipes", _TENSOR, "spread share", "derived"),
    _gpu("power", "power draw as a share of the limit", "ratio", "gpu power", _POWER, "max", "derived"),
    _gpu("power_spread", "power draw between GPUs", "ratio", "gpu power", _POWER, "spread share", "derived"),
    _gpu(
        "clock", "SM clock while busy, as a share of the best in a day", "ratio", "gpu clock", _CLOCK, "min", "derived"
    ),
    _gpu("clock_spread", "SM clock while busy between GPUs", "ratio", "gpu clock", _CLOCK, "spread share", "derived"),
    _gpu(
        "bit_power",
        "share of time capped by power (software)",
        "ratio",
        "clock reasons",
        _bit(_POWER_CAP),
        obtained="derived",
    ),
    _gpu(
        "bit_slowdown",
        "share of time slowed down by hardware",
        "ratio",
        "clock reasons",
        _bit(_HW_SLOWDOWN),
        obtained="derived",
    ),
    _gpu(
        "bit_heat",
        "share of time slowed down by heat (software)",
        "ratio",
        "clock reasons",
        _bit(_SW_HEAT),
        obtained="derived",
    ),
    _gpu(
        "bit_hw_heat",
        "share of time slowed down by heat (hardware)",
        "ratio",
        "clock reasons",
        _bit(_HW_HEAT),
        obtained="derived",
    ),
    _gpu(
        "bit_brake",
        "share of time with the power brake on",
        "ratio",
        "clock reasons",
        _bit(_POWER_BRAKE),
        obtained="derived",
    ),
    _gpu(
        "margin",
        "degrees below the slowdown temperature, least",
        "degrees",
        "gpu heat",
        _over("min", "DCGM_FI_DEV_GPU_TEMP_LIMIT", fold="min"),
        "min",
    ),
    query(
        "gpus_lost",
        "GPUs fewer than the most in six hours",
        "count",
        "gpu count",
        "derived",
        f"max_over_time({_visible()}[6h:]) - {_visible()}",
        window="6h",
    ),
    query(
        "gpu_metrics",
        "the exporter's answer holds GPUs",
        "yes or no",
        "gpu metrics",
        "inferred",
        f"{_visible()} > bool 0",
        fold="min",
        window="now",
    ),
    _gpu(
        "xid_hardware",
        "XIDs that point to the GPU or its links",
        "count",
        "xid",
        _xids(f'{{xid!="", xid!~"{_APPLICATION_XIDS}"}}'),
    ),
    _gpu("xid_program", "XIDs that a program causes", "count", "xid", _xids(f'{{xid=~"{_APPLICATION_XIDS}"}}')),
    _gpu(
        "ecc",
        "uncorrected memory errors since the driver was loaded",
        "count",
        "gpu memory",
        f"max by {BY} (DCGM_FI_DEV_ECC_DBE_VOL_TOTAL)",
    ),
    _gpu(
        "remap_failure",
        "remapping of a memory row failed",
        "yes or no",
        "gpu memory",
        f"max by {BY} (DCGM_FI_DEV_ROW_REMAP_FAILURE)",
    ),
    _gpu(
        "remap_pending",
        "remapping of a memory row waits for a reset",
        "yes or no",
        "gpu memory",
        f"max by {BY} (DCGM_FI_DEV_ROW_REMAP_PENDING)",
    ),
    _gpu(
        "recovery",
        "step that the driver asks for (0: none)",
        "count",
        "gpu recovery",
        f"max by {BY} (DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION)",
    ),
    _gpu(
        "health",
        "DCGM's own verdict (0, 10 or 20)",
        "count",
        "gpu health",
        f"max by {BY} (max_over_time(DCGM_EXP_GPU_HEALTH_STATUS[$window]))",
    ),
    query(
        "pcie_replays",
        "PCIe replays in the worst ten minutes",
        "count",
        "pcie",
        "derived",
        f"max by {BY} (max_over_time(increase(DCGM_FI_DEV_PCIE_REPLAY_COUNTER[10m])[$window:1m]))",
    ),
    query(
        "nvlink_recoveries",
        "NVLink links that had to recover",
        "count",
        "nvlink",
        "derived",
        f"sum by {BY} (increase(DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL[1h]))",
        window="1h",
    ),
    query(
        "nvlink_retries",
        "NVLink errors that were corrected",
        "count",
        "nvlink",
        "derived",
        " + ".join(
            f"sum by {BY} (increase(DCGM_FI_DEV_NVLINK_{kind}_ERROR_COUNT_TOTAL[1h]))"
            for kind in ("CRC_FLIT", "CRC_DATA", "REPLAY")
        ),
        window="1h",
    ),
    query(
        "gpu_memory_growth",
        "growth of used GPU memory in MiB a second",
        "per second",
        "gpu memory growth",
        "derived",
        f"max by {BY} (deriv(DCGM_FI_DEV_FB_USED[5m]))",
        window="5m",
    ),
)
