"""Benchmark an instance of a node, write the run and its reports on the control host, and tell the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from vllm_node.bench import interrupt
from vllm_node.bench.provenance import redact
from vllm_node.bench.report import write
from vllm_node.bench.run import Benchmark, BenchmarkError, Wanted
from vllm_node.paths import runs_dir
from vllm_node.units import image_reference

_display = Display()


class ActionModule(ActionBase):  # type: ignore[misc]
    """Takes the fields of `Wanted` but for `host` and `reference`; `image`, `output` and `redact`."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the verdict and where the reports are; `benchmark` is the run document.

        An interrupted benchmark has failed, so that the play ends with its `always`, and has all of that as well.
        """
        super().run(tmp, task_vars)
        args = dict(self._task.args)
        host = str((task_vars or {})["inventory_hostname"])
        output, hide, image = args.pop("output", ""), args.pop("redact", False), args.pop("image")

        def ask(module: str, files: Mapping[str, str] | None = None, **given: Any) -> dict[str, Any]:
            if files:
                given["sent"] = {name: self._sent(name, text) for name, text in files.items()}
            answer: dict[str, Any] = self._execute_module(module, module_args=given, task_vars=task_vars)
            return answer

        wanted = Wanted(host=host, reference=image_reference(image), **args)
        try:
            benchmark = Benchmark(wanted, ask, lambda text: _display.display(f"{host}: {text}"), interrupt.asked)
            benchmark.run()
        except BenchmarkError as error:
            raise AnsibleActionFail(str(error)) from error
        document = benchmark.document()
        place = runs_dir(output) / host / document["id"].replace(":", "")
        # Files of one's own may have names that say whose they are. A plain word may be one of the document's own.
        files = (Path(path).name for path in (wanted.requests, wanted.trace))
        known = [host, *(name for name in files if name and not name.isidentifier())]
        paths = write.run(redact(document, known=known) if hide else document, place)
        verdict = document["verdict"]
        lines = [f"{host}: {document['instance']}, {document['workload']['name']}: {verdict['verdict'].upper()}"]
        lines += [f"  {reason}" for reason in verdict["reasons"]]
        lines += [f"  report: {path}" for path in paths]
        _display.display("\n".join(lines))
        found = {"changed": False, "verdict": verdict, "reports": [str(path) for path in paths], "benchmark": document}
        if interrupt.asked():
            kept = f"what was measured until then is in {place}"
            found |= {"failed": True, "msg": f"{host}: {document['partial'] or 'interrupted at its end'}; {kept}"}
        return found

    def _sent(self, name: str, text: str) -> str:
        """Path on the node of a file with this text.

        As an argument of a module, 100 MiB take a minute and 900 MB of memory on both sides; so, a second and nothing.
        """
        folder = self._connection._shell.tmpdir or self._make_tmp_path()
        path: str = self._transfer_data(self._connection._shell.join_path(folder, name), text)
        return path
