"""Which generation a node goes back to."""

from __future__ import annotations

from ansible.module_utils.node_generations import PROVEN, UNFINISHED, UNPROVEN


def by_itself(generations, run):
    """(what a failed upgrade goes back to, or None; why there is nothing to go back to).

    generations: all of the node, the newest last; run: id of the upgrade.
    """
    if not generations:
        return None, "no generation is on record, so this upgrade installed nothing"
    current = generations[-1]
    if current["outcome"] == "damaged":
        return None, current["reason"]
    if current["run"] != run and current["outcome"] not in UNPROVEN:
        return None, "this upgrade installed nothing: generation %d stays" % current["number"]
    proven = [one for one in generations[:-1] if one["outcome"] in PROVEN]
    if not proven:
        return None, "no earlier generation was ever ready"
    if proven[-1]["content"] == current["content"]:
        return None, "its files are those of generation %d, which was ready" % proven[-1]["number"]
    return proven[-1], None


def on_request(generations, number):
    """What an operator goes back to: generation `number`, or for 0 the one before. ValueError when there is none."""
    if not generations:
        raise ValueError("no generation is on record: the first change by `up` or `upgrade` makes one")
    known = {one["number"]: one for one in generations}
    if number:
        if number not in known:
            raise ValueError("there is no generation %d; there are %s" % (number, ", ".join(map(str, known))))
        if known[number]["outcome"] == "damaged":
            raise ValueError(known[number]["reason"])
        return known[number]
    current = generations[-1]
    # Half of a rollback is finished, not turned round.
    if current.get("back_to") and current["outcome"] in UNFINISHED:
        return current
    # After a rollback this is what it went back from, so that the next one turns it round.
    for one in reversed(generations[:-1]):
        if one["outcome"] in PROVEN and one["content"] != current.get("content"):
            return one
    raise ValueError(
        "no earlier generation with other files was ever ready; `vllm-node history` names all, and --to N takes any"
    )
