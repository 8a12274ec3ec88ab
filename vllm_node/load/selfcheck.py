"""Whether the generator itself kept up. When it did not, its figures say nothing about the server."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from vllm_node.load.distribution import Distribution

VALID = "valid"
INVALID = "INVALID (client-saturated)"


@dataclass(frozen=True)
class Bounds:
    """Beyond these a stage is void. The CPU share is of one core, as the generator has one thread for its loop."""

    achieved_share: float = 0.98
    lateness_p99_s: float = 0.010
    lag_p99_s: float = 0.010
    cpu_share: float = 0.80


BOUNDS = Bounds()


@dataclass(frozen=True)
class SelfCheck:
    """What the generator knows of itself; p99 is the nearest rank, so it holds for few samples too.

    `achieved_share`: requests sent in time for the window over those that were due; None in a closed loop.
    `offered_per_s` and `achieved_per_s` are the same as rates.
    """

    lateness: Distribution
    lag: Distribution
    cpu_share: float
    offered_per_s: float | None = None
    achieved_per_s: float | None = None

    @property
    def achieved_share(self) -> float | None:
        """Achieved over offered rate."""
        if not self.offered_per_s or self.achieved_per_s is None:
            return None
        return self.achieved_per_s / self.offered_per_s

    def reasons(self, bounds: Bounds = BOUNDS) -> list[str]:
        """Why the stage is void; empty when it is not."""
        found = []
        share = self.achieved_share
        if share is not None and share < bounds.achieved_share:
            found.append(
                f"sent {self.achieved_per_s:.4g} requests/s of {self.offered_per_s:.4g} scheduled "
                f"({share:.1%}, below {bounds.achieved_share:.0%})"
            )
        for what, seen, bound in (
            ("lateness p99", self.lateness.nearest_rank(0.99), bounds.lateness_p99_s),
            ("event-loop lag p99", self.lag.nearest_rank(0.99), bounds.lag_p99_s),
        ):
            if seen > bound:
                found.append(f"{what} {seen * 1e3:.1f} ms, above {bound * 1e3:g} ms")
        if self.cpu_share > bounds.cpu_share:
            found.append(f"the generator used {self.cpu_share:.0%} of a core, above {bounds.cpu_share:.0%}")
        return found

    def document(self) -> dict[str, Any]:
        """As it stands in a result."""
        reasons = self.reasons()
        return {
            "verdict": INVALID if reasons else VALID,
            "valid": not reasons,
            "reasons": reasons,
            "lateness_s": {**self.lateness.summary(), "p99_nearest_rank": self.lateness.nearest_rank(0.99)},
            "lag_s": {**self.lag.summary(), "p99_nearest_rank": self.lag.nearest_rank(0.99)},
            "cpu_share": self.cpu_share,
            "offered_per_s": self.offered_per_s,
            "achieved_per_s": self.achieved_per_s,
            "achieved_share": self.achieved_share,
            "bounds": asdict(BOUNDS),
        }
