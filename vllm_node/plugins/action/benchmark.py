"""Benchmark an instance of a node, write the run and its reports on the control host, and tell the verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from vllm_node.bench.provenance import redact
from vllm_node.bench.report import write
from vllm_node.bench.run import Benchmark, BenchmarkError, Wanted
from vllm_node.paths import state_dir
from vllm_node.units import image_reference

_display = Display()


class ActionModule(ActionBase):  # type: ignore[misc]
    """Takes the fields of `Wanted` but for `host` and `reference`; `image`, `output` and `redact`."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the verdict and where the reports are; `benchmark` is the run document."""
        super().run(tmp, task_vars)
        args = dict(self._task.args)
        host = str((task_vars or {})["inventory_hostname"])
        output, hide, image = args.pop("output", ""), args.pop("redact", False), args.pop("image")

        def ask(module: str, **given: Any) -> dict[str, Any]:
            answer: dict[str, Any] = self._execute_module(module, module_args=given, task_vars=task_vars)
            return answer

        wanted = Wanted(host=host, reference=image_reference(image), **args)
        benchmark = Benchmark(wanted, ask, lambda text: _display.display(f"{host}: {text}"))
        try:
            benchmark.run()
        except BenchmarkError as error:
            raise AnsibleActionFail(str(error)) from error
        document = benchmark.document()
        folder = Path(output) if output else state_dir() / "bench"
        place = folder / host / document["id"].replace(":", "")
        paths = write.run(redact(document, known=[host]) if hide else document, place)
        verdict = document["verdict"]
        lines = [f"{host}: {document['instance']}, workload {wanted.workload}: {verdict['verdict'].upper()}"]
        lines += [f"  {reason}" for reason in verdict["reasons"]]
        lines += [f"  report: {path}" for path in paths]
        _display.display("\n".join(lines))
        return {"changed": False, "verdict": verdict, "reports": [str(path) for path in paths], "benchmark": document}
