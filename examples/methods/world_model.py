"""How does my agent behave when the API it calls pages its lists and refuses a call? Test it on a simulated API, before it meets
the real one.

python examples/methods/world_model.py: my API has three tools over one table; their effects are code, and a model (here a
function) would write what code does not know. The same agent plays the plain API, one that pages,
and one that also answers 429 at a chosen call.
"""

import re
import tempfile
from pathlib import Path

import ramify
from ramify.env.tools import tool_json
from ramify.methods.world_model import Effect, Prediction, SimulatedEnvironment, StateStore
from ramify.methods.world_model.control import Fault, Paginate
from ramify.methods.world_model.environment import WorldRules
from ramify.trace.message import write_call

TEXT = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}
PAGES = {"type": "object", "properties": {"page": {"type": "integer"}}}
TOOLS = [
    tool_json("list_orders", "Ids.", PAGES),
    tool_json("get_order", "One.", TEXT),
    tool_json("cancel_order", "End it.", TEXT),
]
ORDERS = {f"o{i}": {"customer": name} for i, name in enumerate(["Ann", "Bob", "Cem", "Dan", "Eve", "Fay"])}
DOES = {"list_orders": "list", "get_order": "get", "cancel_order": "delete"}
EFFECTS = [Effect(tool, do, "orders", "id") for tool, do in DOES.items()]


class Unknown:
    """Writes what code does not know; here nothing."""

    name = identity = "unknown"

    async def predict(self, situation, attempt=0):
        return Prediction("")


def cancelled(task, answer, state):
    """The verifier looks at the state, never at what was written."""
    left = {row["customer"] for row in state["tables"]["orders"].values()}
    return True if task.data["of"] not in left and len(left) == len(ORDERS) - 1 else None


def agent(messages):
    """Looks at the first list only."""
    name = re.search(r"order of (\w+)", messages[1]["content"])[1]
    seen = [m["content"] for m in messages[2:] if m["role"] in ("tool", "user")]
    ids = re.findall(r"o\d", seen[0]) if seen else []
    for order, shown in zip(ids, seen[1:], strict=False):
        if name in shown:
            return write_call("cancel_order", {"id": order})
    if not seen:
        return write_call("list_orders", {})
    return write_call("get_order", {"id": ids[len(seen) - 1]}) if len(seen) <= len(ids) else "I cannot find it."


tasks = [ramify.Task(name, {"prompt": f"Cancel the order of {name}.", "of": name}) for name in ("Ann", "Cem", "Fay")]
faults = {
    "plain": [],
    "pages of three": [Paginate(3)],
    "and 429 at the first cancellation": [Paginate(3), Fault("429", on=(1,), tool="cancel_order")],
}
for kind, controls in faults.items():
    rules = WorldRules(tools=TOOLS, store=StateStore({"orders": ORDERS}, EFFECTS), controls=controls, verify=cancelled)
    api = SimulatedEnvironment(Unknown(), rules)
    with tempfile.TemporaryDirectory() as folder:
        found = ramify.play(agent, api, tasks=tasks, out=Path(folder) / "run")
    print(f"{kind}: {sum(one.outcome is True for one in found)} of {len(found)} orders cancelled")
