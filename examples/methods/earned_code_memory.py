"""Give my own agent a memory: text from the first day on, and a tested tool once different requests need the same procedure.

python examples/methods/earned_code_memory.py: my agent is `agent` below, my API is `notes`, and `write_tool` stands for a model
that writes code (`role_of(*find_model("chat:NAME@URL"))`). Put yours in their place.
"""

import json

from ramify import wait_for
from ramify.methods.earned_code_memory import Memory, ToolBox
from ramify.methods.earned_code_memory.rules import reflect

NOTES = [{"id": i, "age": i, "label": "ab"[i % 2]} for i in range(12)]
APIS = {"notes.list": {"description": "all notes", "read_only": True}, "notes.delete": {"description": "delete one"}}


def notes(name, given):
    if name == "notes.list":
        return list(NOTES)
    NOTES[:] = [one for one in NOTES if one["id"] != given["id"]]
    return None


def agent(request, memory_text):
    """My agent: it lists, deletes the two oldest, and says so. What it is given would go into its prompt."""
    said = [{"role": "system", "content": memory_text}, {"role": "user", "content": request}]
    for i, (name, given) in enumerate([("notes.list", {}), *(("notes.delete", {"id": one["id"]}) for one in NOTES[-2:])]):
        call = {"id": f"c{i}", "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
        said += [{"role": "assistant", "content": "", "tool_calls": [call]}]
        said += [{"role": "tool", "tool_call_id": f"c{i}", "content": json.dumps(notes(name, given))}]
    return [*said, {"role": "assistant", "content": "Deleted."}]


SOURCE = '''def delete_old(api, *, n):
    """Delete the n oldest notes. Pre: there are n. Post: they are gone."""
    found = sorted(api.notes.list(), key=lambda note: -note["age"])[:n]
    for one in found:
        api.notes.delete(id=one["id"])
    return [one["id"] for one in found]

def check_delete_old(api, result, *, n):
    return len(result) == n and not set(result) & {one["id"] for one in api.notes.list()}
'''
TESTS = (
    "class F: pass\nf = F(); f.notes = F(); f.notes.list = lambda: [{'id': 1, 'age': 2}]; f.notes.delete = lambda id: "
    "None\nassert delete_old(f, n=1) == [1]"
)


def write_tool(prompt):
    parameters = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    return json.dumps({"tools": [{"name": "delete_old", "parameters": parameters, "source": SOURCE, "tests": TESTS}]})


async def main():
    with Memory("memory.sqlite", review="auto") as memory:
        memory.offer(APIS)
        for request in ("delete my 2 oldest notes", "delete old notes from Monday", "delete the oldest notes that are red"):
            given = await memory.select(request)  # before a task
            memory.record(request, agent(request, given.text), True, given)  # after it
            await memory.reflect(reflect)  # at night
            print(f"{request}: given {len(given.ids)}, tools written:", list((await memory.codify(write_tool)).active))
        given = await memory.select("delete my 3 oldest notes")
        async with ToolBox(memory, notes) as box:
            print(given.tools[0]["function"]["name"], (await box.call("delete_old", {"n": 3})).shown, f"{len(NOTES)} notes left")


if __name__ == "__main__":
    wait_for(main())
