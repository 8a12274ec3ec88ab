"""A node's models from what they are now to what their manifests say: looked at, brought, read to the end.

The node does its part in a module, whose steps are asked for here; in between files are copied. Nothing is served from
a tree before every byte of it was read on the node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm_node import transfer
from vllm_node.byte_progress import Lines, sized
from vllm_node.models.manifest import Manifest
from vllm_node.models.store import Model, source_differences
from vllm_node.transfer import Reach, TransferError

Step = Callable[[dict[str, Any]], dict[str, Any]]
"""Runs the module `model_tree` with these arguments, and gives its answer."""

_MOST_SHOWN = 10
_AGAIN = "run this again: it goes on where it stopped"


class DeliveryError(Exception):
    """Models are not on the node as they should be. The text names each file, and what to do."""


@dataclass
class Outcome:
    """What was done. changed: on the node; delivered: name → bytes that were sent; read: names of trees that were."""

    changed: bool = False
    verified: list[str] = field(default_factory=list)
    delivered: dict[str, int] = field(default_factory=dict)
    read: list[str] = field(default_factory=list)
    unlisted: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Settings:
    """Values of the role's variables that are the same for all models."""

    store: str
    state_dir: str
    workers: int = 0
    bandwidth: str = ""
    dry: bool = False


class Delivery:
    """One node's models. `tell` prints a line for whoever waits."""

    def __init__(
        self,
        models: Sequence[Model],
        settings: Settings,
        reach: Callable[[], Reach],
        step: Step,
        tell: Callable[[str], None],
    ) -> None:
        """Nothing is done yet. `reach` is asked once something is to be copied: by then the connection stands."""
        self._models = [model for model in models if model.manifest is not None]
        self._settings, self._reach, self._step, self._tell = settings, reach, step, tell
        self.outcome = Outcome()

    def run(self) -> Outcome:
        """All of it. Raises DeliveryError."""
        if not self._models:
            return self.outcome
        looked = self._ask("look", self._models)
        self.outcome.changed = looked["changed"]
        self.outcome.unlisted = looked["unlisted"]
        states = {name: entry["state"] for name, entry in looked["trees"].items()}
        differences = {name: entry["differences"] for name, entry in looked["trees"].items()}
        for model in self._models:
            if states[model.name] == "unread" and not self._settings.dry:
                differences[model.name] = self._read(model)
                self.outcome.read.append(model.name)
        foreign = {model: differences[model.name] for model in self._models if not model.delivered}
        self._refuse({model: found for model, found in foreign.items() if found})
        ours = [model for model in self._models if model.delivered and differences[model.name]]
        for model in ours:
            self._tell_differences(model, differences[model.name])
        if ours:
            self._deliver(ours)
        self.outcome.verified = [model.name for model in self._models]
        return self.outcome

    def _tell_differences(self, model: Model, found: dict[str, str]) -> None:
        """A tree that was right before is mended, and nobody shall be left to wonder why."""
        if len(found) < len(_manifest(model).files):
            shown = [f"{path} {words}" for path, words in sorted(found.items())]
            more = [f"and {len(shown) - _MOST_SHOWN} more"] if len(shown) > _MOST_SHOWN else []
            self._tell(f"model {model.name}: {model.tree} is brought again: {'; '.join([*shown[:_MOST_SHOWN], *more])}")

    def _deliver(self, models: Sequence[Model]) -> None:
        lacking = [
            f"model {model.name}: {model.folder} on the control host: {words}"
            for model in models
            if model.source != "path"
            for words in source_differences(model)
        ]
        if lacking:
            lacking.append("nothing was sent: bring the source in order, or make a new manifest")
            raise DeliveryError("\n".join(lacking))
        self.outcome.changed = True
        if self._settings.dry:
            return
        copies = self._ask("prepare", models)["copies"]
        for model in models:
            if copies[model.name]:
                self.outcome.delivered[model.name] = self._copy(model, copies[model.name])
            found = self._read(model, incoming=True)
            self._refuse({model: found} if found else {})
            self.outcome.read.append(model.name)

    def _copy(self, model: Model, paths: Sequence[str]) -> int:
        sizes = {path: entry["size"] for path, entry in _manifest(model).by_path.items()}
        total = sum(sizes[path] for path in paths)
        self._tell(f"model {model.name}: {len(paths)} files, {sized(total)}, are copied from {model.folder}")
        argv = transfer.command(
            self._reach(),
            model.folder,
            f"{model.tree}.incoming",
            source_on_node=model.source == "path",
            bandwidth=self._settings.bandwidth,
        )
        try:
            return transfer.run(argv, paths, Lines(f"model {model.name}, copied", total, self._tell).add)
        except TransferError as error:
            raise DeliveryError(f"model {model.name} is not complete on the node: {error}\n{_AGAIN}") from error

    def _read(self, model: Model, *, incoming: bool = False) -> dict[str, str]:
        lines, done, begin = Lines(f"model {model.name}, read", 0, self._tell), 0, True
        while True:
            answer = self._ask("verify", [model], begin=begin, incoming=incoming)
            begin = False
            if answer["done"]:
                self.outcome.changed = self.outcome.changed or answer["changed"]
                found: dict[str, str] = answer["differences"]
                return found
            while not answer["done"]:
                lines.total_bytes = answer["total_bytes"]
                lines.add(answer["read_bytes"] - done)
                done = answer["read_bytes"]
                answer = self._ask("wait", [model], incoming=incoming)

    def _refuse(self, found: dict[Model, dict[str, str]]) -> None:
        if found:
            lines = [
                f"model {model.name}: {model.tree}: {path} {words}"
                for model, differences in found.items()
                for path, words in sorted(differences.items())
            ]
            raise DeliveryError("\n".join([*lines, *dict.fromkeys(_mend(model) for model in found)]))

    def _ask(self, state: str, models: Sequence[Model], **more: Any) -> dict[str, Any]:
        answer = self._step(
            {
                "state": state,
                "models": [
                    {
                        "name": model.name,
                        "tree": model.tree,
                        "mark": model.mark(self._settings.state_dir),
                        "ours": model.delivered,
                        "files": {} if state == "wait" else _manifest(model).by_path,
                        "fingerprint": _manifest(model).fingerprint,
                    }
                    for model in models
                ],
                "store": self._settings.store,
                "state_dir": self._settings.state_dir,
                "workers": self._settings.workers,
                **more,
            }
        )
        if answer.get("failed"):
            raise DeliveryError(str(answer.get("msg")))
        return answer


def _manifest(model: Model) -> Manifest:
    assert model.manifest is not None
    return model.manifest


def _mend(model: Model) -> str:
    if model.delivered:
        return (
            f"nothing is served from it, and the tree before is as it was: compare {model.folder} with its manifest"
            " (vllm-node models manifest DIR --check FILE), mend it, and run this again"
        )
    return f"{model.tree} is the site's own and was not touched: bring it in order, or make a new manifest of it"
