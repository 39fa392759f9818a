"""My own agent, a plain tool loop: record it, go back to a step, ask which step lost it. No mail is sent on a branch."""

import json
import random
import sys

from openai import OpenAI

import ramify

ROOMS = {4: 400, 7: 700}


@ramify.tool("pure")
def price(room: int) -> int:
    return ROOMS[room]


@ramify.tool("replay")
def book(room: int) -> str:
    print(f"booking room {room} for real", file=sys.stderr)
    return f"booked {room}"


TOOLS = {"price": price, "book": book}


def booker(prompt, url):
    client = OpenAI(base_url=url, api_key="none")
    messages = [{"role": "user", "content": prompt}]
    tools = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in TOOLS]
    while True:
        reply = client.chat.completions.create(model="m", messages=messages, tools=tools).choices[0].message
        messages.append(reply)
        if not reply.tool_calls:
            return reply.content
        for call in reply.tool_calls:
            result = TOOLS[call.function.name](**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})


def model(messages, key):  # put "chat:MODEL@URL" in its place
    calls = {1: [("price", 4), ("price", 7)], 3: []}.get(len(messages), [("book", random.Random(key).choice([4, 4, 7]))])
    if any("booked" in str(message["content"]) for message in messages):
        return messages[-1]["content"]
    return "".join(f'<tool_call>{{"name": "{name}", "arguments": {{"room": {room}}}}}</tool_call>' for name, room in calls)


mine = ramify.agent(booker, tools=TOOLS.values(), grade=lambda task, answer: "4" in answer)
ramify.play(model, mine, [{"id": "room", "prompt": "Book the cheaper of rooms 4 and 7."}], attempts=8, out="runs/booker")
print(ramify.why("runs/booker", model=model, env=mine).headline)
