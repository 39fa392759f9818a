"""Section 7(a2), the roles as rules: a manager by words, a reflector that aligns calls, a codifier that anti-unifies requests.

They are asked as models are, by prompt, and answer in JSON; tokens are those of prompt and reply.
"""

from __future__ import annotations

import json
import re
from typing import Any

from ramify.methods.earned_code_memory.algorithm import HOLE, anti_unify
from ramify.methods.earned_code_memory.roles import RoleReply, payload_of
from ramify_experiments.earned_code_memory.planner import tokens

_ANSWERS = {"general": True, "new": True, "explained": True, "scoped": True}
_QUERIES = {
    "label_oldest": re.compile(r"the (?P<n>\d+) oldest \w+ from (?P<label>\w+)"),
    "label": re.compile(r"all \w+ from (?P<label>\w+)"),
    "oldest": re.compile(r"the (?P<n>\d+) oldest \w+$"),
    "above": re.compile(r"above (?P<x>\d+)"),
    "below": re.compile(r"below (?P<x>\d+)"),
}


def parsed(query: str) -> tuple[str, str, str, dict[str, Any]]:
    """Application, action, selector and values of a request."""
    _, app, action, *rest = query.split()
    text = " ".join(rest)
    for selector, pattern in _QUERIES.items():
        if found := pattern.search(text):
            return app, action, selector, {k: v if k == "label" else int(v) for k, v in found.groupdict().items()}
    raise ValueError(f"no such request: {query}")


def _reply(prompt: str, value: Any) -> RoleReply:
    text = json.dumps(value)
    return RoleReply(text, tokens(prompt), tokens(text))


def manager(prompt: str) -> RoleReply:
    """Facts of the application, pitfalls of the action, plans of this kind of request;
    tools, too, else any of the action: a near miss."""
    given = payload_of(prompt)
    app, action, selector, _ = parsed(given["query"])
    words = {one["id"]: set(re.findall(r"\w+", f"{one['title']} {one['scope']}".casefold())) for one in given["candidates"]}
    kinds = {
        kind: [one["id"] for one in given["candidates"] if one["kind"] == kind] for kind in ("plan", "fact", "pitfall", "tool")
    }
    near = {kind: [name for name in names if {app, action} <= words[name]] for kind, names in kinds.items()}
    own = {kind: [name for name in names if selector in words[name]] for kind, names in near.items()}
    facts = [name for name in kinds["fact"] if app in words[name] and (action in words[name] or "pages" in words[name])]
    return _reply(prompt, {"ids": [*own["plan"], *facts, *near["pitfall"], *(own["tool"] or near["tool"])]})


def reflector(prompt: str) -> RoleReply:
    """A plan of a success, facts of how lists continue, pitfalls of what was overlooked; of failures only the last two."""
    given = payload_of(prompt)
    app, action, selector, _ = parsed(given["query"])
    lines = given["steps"]
    calls = [line.partition("assistant: ")[2] for line in lines if " assistant: " in line[:20]]
    answers = [line for line in lines if " tool: " in line[:12]]
    lists = [call for call in calls if call.startswith(f"{app}.list")]
    style = "cursor" if any('"cursor"' in call for call in lists) else "page" if any('"page"' in call for call in lists) else ""
    confirmed = any(call.startswith(f"{app}.confirm") for call in calls)
    pending = any('"pending"' in line for line in answers)
    made: list[dict[str, Any]] = []

    def put(kind: str, title: str, body: str, scope: str, quote: str) -> None:
        made.append({"kind": kind, "title": title, "body": body, "scope": scope, "quote": quote[:60].strip(), **_ANSWERS})

    acted = next((call for call in calls if call.startswith(f"{app}.{action}")), None)
    if given["outcome"] and acted:
        pages = f"`{app}.list` by {style} to the last one" if style else f"`{app}.list`"
        then = f", and `{app}.confirm` with its code" if confirmed else ""
        body = f"`{app}.login`; {pages}; keep those {_PICK[selector]}; for each `{app}.{action}`{then}."
        put("plan", f"{action} in {app} by {selector}", body, f"{app} {action} {selector}", acted)
    if confirmed and acted:
        put(
            "fact",
            f"{action} in {app} is held back",
            f"`{app}.{action}` takes effect with `{app}.confirm` and its code.",
            f"{app} {action}",
            acted,
        )
    if style and lists:
        put("fact", f"pages of {app}", f"`{app}.list` continues by {style}; one page is not all.", app, lists[0])
    if pending and not confirmed and acted:
        put(
            "pitfall",
            f"{action} in {app} waits",
            f"`{app}.{action}` only waits until `{app}.confirm` is called with its code.",
            f"{app} {action}",
            acted,
        )
    return _reply(prompt, {"candidates": made})


_PICK = {
    "label": "whose label is asked for",
    "oldest": "with the smallest date, as many as asked for",
    "above": "whose number lies above",
    "below": "whose number lies below",
    "label_oldest": "whose label is asked for, the smallest dates first, as many as asked for",
}


def codifier(prompt: str) -> RoleReply:
    """A tool from a plan and its requests: what differs among them is a parameter, what does not is hard-coded."""
    given = payload_of(prompt)
    app, action, selector = given["plan"]["scope"].split()
    rows = [values for *kind, values in map(parsed, given["queries"]) if kind == [app, action, selector]]
    names = sorted(rows[0])
    pattern = anti_unify(*(tuple(values[name] for name in names) for values in rows))
    fixed = {name: value for name, value in zip(names, pattern, strict=True) if value is not HOLE}
    own = [name for name in names if name not in fixed]
    body = given["plan"]["body"]
    name = "_".join([app, action, selector, *(str(value).lower() for value in fixed.values())])
    source = _source(name, app, action, selector, own, fixed, "cursor" in body, ".confirm" in body, "check_NAME" in prompt)
    kinds = {key: {"type": "string" if key == "label" else "integer"} for key in own}
    tool = {
        "name": name,
        "parameters": {"type": "object", "properties": kinds, "required": own},
        "source": source,
        "tests": _tests(name, app, action, own),
    }
    return _reply(prompt, {"tools": [tool]})


def _source(
    name: str,
    app: str,
    action: str,
    selector: str,
    own: list[str],
    fixed: dict[str, Any],
    cursor: bool,
    confirm: bool,
    check: bool,
) -> str:
    setting = ", ".join(f"{key} {value}" for key, value in fixed.items()) or "any values"
    signature = f"api, *, {', '.join(own)}" if own else "api"
    given = ", ".join(f"{key}={key if key in own else repr(fixed[key])}" for key in (*own, *fixed))
    pick = {
        "label": "[one for one in items if one['label'] == label]",
        "oldest": "sorted(items, key=lambda one: one['date'])[:n]",
        "above": "[one for one in items if one['number'] > x]",
        "below": "[one for one in items if one['number'] < x]",
        "label_oldest": "sorted([one for one in items if one['label'] == label], key=lambda one: one['date'])[:n]",
    }[selector]
    keys = ", ".join(sorted({*own, *fixed}))
    if cursor:
        pages = """    said = api.APP.list(token=token)
    items = list(said["items"])
    while said.get("next"):
        said = api.APP.list(token=token, cursor=said["next"])
        items += said["items"]
    return items, said["total"]"""
    else:
        pages = """    said = api.APP.list(token=token)
    items = list(said["items"])
    for page in range(1, said.get("pages", 1)):
        items += api.APP.list(token=token, page=page)["items"]
    return items, said["total"]"""
    hold = '        api.APP.confirm(token=token, code=done["code"])\n' if confirm else ""
    guard = '    if len(items) != total:\n        raise ValueError("not all items were seen")\n' if check else ""
    read_back = f"""

def check_NAME({signature.replace("api", "api, result", 1)}):
    items, total = _NAME_all(api, api.APP.login(user="me")["token"])
    return len(items) == total and all(one["state"] == "ACTION" for one in _NAME_pick(items, {given}))
"""
    text = f'''def _NAME_all(api, token):
{pages}


def _NAME_pick(items, {keys}):
    return {pick}


def NAME({signature}):
    """{action} in {app} [{selector}] for {setting}.

    Pre: the user is known to {app}. Post: every item that was picked has the state {action}.
    """
    token = api.APP.login(user="me")["token"]
    items, total = _NAME_all(api, token)
{guard}    wanted = _NAME_pick(items, {given})
    for one in wanted:
        done = api.APP.ACTION(token=token, id=one["id"])
{hold}    return [one["id"] for one in wanted]
'''
    return (text + (read_back if check else "")).replace("NAME", name).replace("APP", app).replace("ACTION", action)


def _tests(name: str, app: str, action: str, own: list[str]) -> str:
    """The tool on a fake of one page, where nothing is held back."""
    values = {"label": "'Ann'", "n": "2", "x": "50"}
    given = ", ".join(f"{key}={values[key]}" for key in own)
    return f"""class Fake:
    pass

items = [{{"id": i, "label": "Ann", "date": i, "number": 30 * i, "state": "open"}} for i in range(4)]

def act(token, id):
    items[id]["state"] = "{action}"
    return {{"status": "done", "code": "k"}}

fake = Fake()
fake.{app} = Fake()
fake.{app}.login = lambda user: {{"token": "t"}}
fake.{app}.list = lambda token, **more: {{"items": items, "total": 4, "pages": 1, "next": None}}
fake.{app}.{action} = act
fake.{app}.confirm = lambda token, code: {{"status": "done"}}
done = {name}(fake{", " + given if given else ""})
assert {{one["id"] for one in items if one["state"] == "{action}"}} == set(done)
"""
