"""GPUs: what they do, how hot, why not faster, and whether they are broken."""

from __future__ import annotations

from vllm_node.dashboards.vocabulary import (
    GREEN,
    NODE,
    ORANGE,
    RED,
    Board,
    Column,
    Limits,
    Row,
    above,
    ask,
    below,
    lines,
    number,
    row,
    rows,
)

GPU = "{{node}} GPU {{gpu}}"

# Bits of DCGM_FI_DEV_CLOCKS_EVENT_REASONS. 0x1 (idle) and 0x2 (clocks set by an application) are no limits.
REASONS = (
    (0x4, "power cap"),
    (0x8, "hardware slowdown"),
    (0x10, "sync boost"),
    (0x20, "software thermal"),
    (0x40, "hardware thermal"),
    (0x80, "power brake"),
    (0x100, "display"),
)


def build() -> Board:
    """The dashboard."""
    return Board(
        uid="vllm-node-gpu",
        title="vLLM node: GPUs",
        description="What the GPUs do, how hot they are, why they are not faster, and whether one is broken.",
        rows=(_work(), _memory(), _heat(), _clocks(), _links(), _faults(), _health()),
        variables=("node",),
    )


def each(field: str, scale: str = "") -> str:
    """A field of DCGM, one series a GPU; the largest, where MIG makes several."""
    return f"max by (node, gpu) ({field}{{{NODE}}}){scale}"


def growth(field: str) -> str:
    """Increase of a counter of DCGM, per second, a series a GPU."""
    return f"sum by (node, gpu) (rate({field}{{{NODE}}}[$__rate_interval]))"


def counted(field: str) -> str:
    """Increase of a counter of DCGM in each interval, a series a GPU."""
    return f"sum by (node, gpu) (increase({field}{{{NODE}}}[$__rate_interval]))"


def _work() -> Row:
    return row(
        7,
        number(
            1,
            "GPUs visible",
            "GPUs that the exporter reports, counted by their UUID, so that parts of one (MIG) count once. Empty when "
            "it sees none at all.",
            "none",
            ask(f"count by (node) (count by (node, UUID) (DCGM_FI_DEV_GPU_TEMP{{{NODE}}}))", "{{node}}", instant=True),
        ),
        lines(
            2,
            "GPU utilisation",
            "Share of time in which at least one kernel ran. It says busy, not how busy: see the engine activity.",
            "percent",
            [ask(each("DCGM_FI_DEV_GPU_UTIL"), GPU)],
            top=100,
        ),
        lines(
            3,
            "Engine activity",
            "Mean of the GPUs of a node: share of time with the engine active, share of multiprocessors with work, of "
            "cycles with the tensor cores busy, of cycles with the memory interface busy. Decoding is bound by the "
            "last. Empty with profiling off, and while a profiler holds the GPU.",
            "percentunit",
            [
                ask(f"avg by (node) (DCGM_FI_PROF_{field}_ACTIVE{{{NODE}}})", f"{{{{node}}}} {word}")
                for field, word in (
                    ("GR_ENGINE", "engine"),
                    ("SM", "multiprocessors"),
                    ("PIPE_TENSOR", "tensor cores"),
                    ("DRAM", "memory interface"),
                )
            ],
            top=1,
        ),
        widths=(4, 10, 10),
    )


def _memory() -> Row:
    used = f"DCGM_FI_DEV_FB_USED{{{NODE}}}"
    free = f"DCGM_FI_DEV_FB_FREE{{{NODE}}}"
    energy = f"sum by (node) (rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{NODE}}}[$__rate_interval])) / 1000"
    tokens = f"sum by (node) (rate(vllm:generation_tokens_total{{{NODE}}}[$__rate_interval]))"
    return row(
        7,
        lines(
            4,
            "GPU memory in use",
            "Used over used and free. vLLM reserves its share at the start, so this stands still near the top: that is "
            "meant, and no alert watches it.",
            "percentunit",
            [ask(f"max by (node, gpu) ({used} / ({used} + {free}))", GPU)],
            top=1,
        ),
        lines(
            5,
            "Power draw and limit",
            "Draw of each GPU, and the lowest limit in force on the node.",
            "watt",
            [
                ask(each("DCGM_FI_DEV_POWER_USAGE"), GPU),
                ask(f"min by (node) (DCGM_FI_DEV_ENFORCED_POWER_LIMIT{{{NODE}}})", "{{node}} limit"),
            ],
        ),
        lines(
            6,
            "Energy per generated token",
            "Energy of all GPUs of a node over the tokens that its instances generated in the same time. Idle GPUs "
            "count too. Empty while nothing is generated.",
            "joule",
            [ask(f"{energy} / ({tokens} > 0)", "{{node}}")],
        ),
    )


def _heat() -> Row:
    return row(
        7,
        lines(
            7,
            "GPU core temperature",
            "Temperature of the core. The limit differs between products: the margin beside it is what counts.",
            "celsius",
            [ask(each("DCGM_FI_DEV_GPU_TEMP"), GPU)],
        ),
        lines(
            8,
            "GPU memory temperature",
            "Temperature of the memory. Some parts have no sensor and say 0: these are left out.",
            "celsius",
            [ask(f"{each('DCGM_FI_DEV_MEMORY_TEMP')} > 0", GPU)],
            limits=above("GpuMemoryTempHigh", ORANGE),
        ),
        lines(
            9,
            "Thermal margin",
            "Degrees that are left until the GPU slows itself down: it falls to 0 as the GPU gets hot.",
            "celsius",
            [ask(f"min by (node, gpu) (DCGM_FI_DEV_GPU_TEMP_LIMIT{{{NODE}}})", GPU)],
            limits=below("GpuThermalMarginLow", ORANGE),
        ),
    )


def _clocks() -> Row:
    mask = f"DCGM_FI_DEV_CLOCKS_EVENT_REASONS{{{NODE}}}"
    return row(
        7,
        lines(
            10,
            "Clocks",
            "Mean clock of the multiprocessors and of the memory over the GPUs of a node. Idle GPUs clock down.",
            "hertz",
            [
                ask(f"avg by (node) (DCGM_FI_DEV_SM_CLOCK{{{NODE}}}) * 1000000", "{{node}} multiprocessors"),
                ask(f"avg by (node) (DCGM_FI_DEV_MEM_CLOCK{{{NODE}}}) * 1000000", "{{node}} memory"),
            ],
        ),
        lines(
            11,
            "Reasons for lowered clocks",
            "Number of GPUs whose clocks are held back, a line a reason: one bit each of the mask of the event "
            "reasons. "
            "A power cap is normal under full load; hardware slowdown, hardware thermal and power brake are not. The "
            "bit of an idle GPU is left out.",
            "none",
            [ask(f"sum by (node) (floor({mask} / {bit}) % 2)", f"{{{{node}}}} {reason}") for bit, reason in REASONS],
        ),
    )


def _links() -> Row:
    return row(
        7,
        lines(
            12,
            "PCIe traffic",
            "Bytes per second over PCIe, all GPUs of a node. The exporter gives a rate already. Empty with profiling "
            "off.",
            "Bps",
            [
                ask(f"sum by (node) (DCGM_FI_PROF_PCIE_RX_BYTES{{{NODE}}})", "{{node}} received"),
                ask(f"sum by (node) (DCGM_FI_PROF_PCIE_TX_BYTES{{{NODE}}})", "{{node}} sent"),
            ],
        ),
        lines(
            13,
            "NVLink traffic",
            "Increase of the traffic counter of all links of a GPU, per second, in the unit of the part. Empty on "
            "parts "
            "without NVLink.",
            "short",
            [ask(growth("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"), GPU)],
        ),
        lines(
            14,
            "PCIe replays",
            "Packets sent again, in each interval. A few are normal; many are a bad slot, riser or cable.",
            "none",
            [ask(counted("DCGM_FI_DEV_PCIE_REPLAY_COUNTER"), GPU)],
        ),
        lines(
            15,
            "NVLink errors",
            "Errors of the links of a node in each interval, by kind. Checksum errors that are sent again are normal "
            "in "
            "small numbers, recoveries are not. Empty on parts without NVLink, and on those that count by the newer "
            "fields.",
            "none",
            [
                ask(
                    "sum by (node) "
                    f"(increase(DCGM_FI_DEV_NVLINK_{field}_ERROR_COUNT_TOTAL{{{NODE}}}[$__rate_interval]))",
                    f"{{{{node}}}} {word}",
                )
                for field, word in (
                    ("CRC_FLIT", "checksum of flow control"),
                    ("CRC_DATA", "checksum of data"),
                    ("REPLAY", "replays"),
                    ("RECOVERY", "recoveries"),
                )
            ],
        ),
    )


def _faults() -> Row:
    return row(
        7,
        rows(
            16,
            "XID errors",
            "Codes of the last XID of each GPU since the exporter started: it stays there for good, so an entry is no "
            "proof of a fault now. 13, 31, 43, 45, 68 and 109 come from applications. Empty until the first one.",
            [Column("code", f"max by (node, gpu, err_code, err_msg) (DCGM_FI_DEV_XID_ERRORS{{{NODE}}}) > 0", "none")],
            [("node", "node"), ("gpu", "GPU"), ("err_msg", "meaning")],
        ),
        lines(
            17,
            "XID errors in the last minutes",
            "XIDs within the exporter's sliding window of five minutes, by code. A count that falls again by itself, "
            "so no rate is taken. A GPU without any has a line at 0 that names no code.",
            "none",
            [ask(f"sum by (node, gpu, xid) (DCGM_EXP_XID_ERRORS_COUNT{{{NODE}}})", GPU + " {{xid}}")],
        ),
        lines(
            18,
            "Uncorrected ECC errors",
            "Uncorrected errors since the driver was loaded, as a level: a counter that is born at 1 has no increase.",
            "none",
            [ask(each("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"), GPU)],
            limits=Limits(GREEN, ((1, RED),)),
        ),
    )


def _health() -> Row:
    return row(
        7,
        lines(
            19,
            "Row remapping",
            "GPUs of a node with a row that waits for a reset to be remapped, and with a remapping that failed: the "
            "second is a case for a replacement.",
            "none",
            [
                ask(f"sum by (node) (DCGM_FI_DEV_ROW_REMAP_PENDING{{{NODE}}} > bool 0)", "{{node}} pending"),
                ask(f"sum by (node) (DCGM_FI_DEV_ROW_REMAP_FAILURE{{{NODE}}} > bool 0)", "{{node}} failed"),
            ],
            limits=Limits(GREEN, ((1, RED),)),
        ),
        lines(
            20,
            "Recovery action",
            "What the driver asks for: 0 nothing, 1 reset the GPU, 2 reboot the node, 3 drain peer to peer, 4 drain "
            "and "
            "reset. DCGM before 4.5 does not tell.",
            "none",
            [ask(each("DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION"), GPU)],
            limits=Limits(GREEN, ((1, RED),)),
        ),
        lines(
            21,
            "GPU health",
            "Worst result of DCGM's health watches of a GPU: 0 passed, 10 warned, 20 failed.",
            "none",
            [ask(each("DCGM_EXP_GPU_HEALTH_STATUS"), GPU)],
            limits=Limits(GREEN, (("alert:GpuHealthWarning", ORANGE), ("alert:GpuHealthFailed", RED))),
        ),
    )
