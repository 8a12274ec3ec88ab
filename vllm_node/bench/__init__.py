"""A benchmark: workloads, the order of its stages, the figures of both sides, the verdict, and reports."""
