"""Serve a model and ask it with the OpenAI client: a chat as it grows, then the log-probs of a text."""

import json
import subprocess
import sys

import openai

command = [sys.executable, "-m", "ramify.cli.main", "serve", "builtin", "--port=0", "--json"]
with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
    client = openai.OpenAI(base_url=json.loads(server.stdout.readline())["url"], api_key="none")
    chat = [{"role": "user", "content": "go to the hall"}]
    for event in client.chat.completions.create(model="builtin", messages=chat, seed=1, stream=True):
        print(event.choices[0].delta.content or "", end="", flush=True)
    scored = client.completions.create(model="builtin", prompt="go to the hall", max_tokens=0, echo=True, logprobs=0)
    print("\n", scored.choices[0].logprobs.token_logprobs)
    server.terminate()
