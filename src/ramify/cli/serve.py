"""``ramify serve``: a server of any model for OpenAI's and Anthropic's clients, on the local engine or as a proxy of another
endpoint."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ramify.base.errors import InfrastructureError, UserError
from ramify.kit import Device, Dtype, Json, Seed, Verbs, argument, option
from ramify.render.terminal import emit, say

if TYPE_CHECKING:
    from ramify.env.protocol import Environment, Task
    from ramify.methods.world_model.environment import SimulationSettings
    from ramify.model.chat import ChatTemplate
    from ramify.model.protocol import Model
    from ramify.web.metrics import Gauges
    from ramify.web.recording import Recorder

app = Verbs("serve")
orchestrator_app = Verbs("orchestrator")
world_model_app = Verbs("world-model")
"""The verbs of ``ramify orchestrator`` and ``ramify world-model`` that need the server."""

TOKEN = "RAMIFY_TOKEN"
ROWS = 64
"""Samples that run at once by default; also how many are forwarded to an endpoint at once."""


@dataclass(frozen=True)
class Bound:
    """Where a server is, and to whom it answers."""

    host: Annotated[str, option(help="Address to bind; beyond this machine a token is needed.")] = "127.0.0.1"
    port: Annotated[int, option(help="Port; 0 takes a free one.", min=0, max=65535)] = 8000
    allow_host: Annotated[
        list[str] | None, option(metavar="NAME", help="A further host name of this server (a proxy's, a service's); repeatable.")
    ] = None
    token: Annotated[
        bool, option("--token", help="Require a token: RAMIFY_TOKEN, or one that is generated and printed once.")
    ] = False
    pass_key: Annotated[
        bool, option("--pass-key", help="Send each client's own key on to the endpoint, instead of one of the environment's.")
    ] = False
    timeout: Annotated[float, option(help="Seconds within which a request must be answered.", min=1)] = 600.0
    drain: Annotated[float, option(help="Seconds for open requests to finish after Ctrl-C or SIGTERM.", min=0)] = 30.0


@dataclass(frozen=True)
class EngineOptions:
    """How a model in this process samples."""

    chat_template: Annotated[Path | None, option(metavar="FILE", help="Chat template (jinja) to use.")] = None
    drafter: Annotated[Path | None, option(metavar="DIR", help="Speculate with this drafter (ramify dspark train).")] = None
    schedule: Annotated[
        str, option(help="With --drafter: off, fixed:K, threshold:T, greedy, stale2 (default with a profile).")
    ] = ""
    verify: Annotated[
        str,
        option(
            help="With --drafter: rejection sampling, or coupled (common random numbers: the same tokens as without a drafter). "
            "Seeded requests are always coupled."
        ),
    ] = "rejection"
    kv_memory: Annotated[
        int, option(metavar="MIB", help="Most memory for keys and values of running samples; 0 sets no bound.", min=0)
    ] = 0
    device: Device = ""
    dtype: Dtype = ""


@dataclass(frozen=True)
class Load:
    """How much runs and waits at once."""

    max_sequences: Annotated[int, option(help="Samples that run at once.", min=1)] = ROWS
    max_waiting: Annotated[int, option(help="Samples that may wait; further requests are answered with 429.", min=0)] = 256
    max_per_client: Annotated[
        int,
        option(
            metavar="N",
            help="Running and waiting samples of one client ('user', else address); 0: half of all, at least --max-sequences.",
            min=0,
        ),
    ] = 0


@dataclass(frozen=True)
class Around:
    """What is put around the model."""

    record: Annotated[str, option(metavar="RUN", help="Keep every conversation as a tree in this run.")] = ""
    redact: Annotated[bool, option("--redact", help="With --record: redact e-mail addresses, keys and phone numbers.")] = False
    middleware: Annotated[list[str] | None, option(metavar="NAME[:ARG]", help="Wrap the model; the first is outermost.")] = None
    score: Annotated[list[str] | None, option(metavar="NAME[:ARG]", help="Score replies with this judge or monitor.")] = None


_MODEL = (
    "builtin, smollm2, hf:PATH, gguf:FILE, chat:MODEL@URL, completions:, anthropic: or responses:MODEL@URL, or a registered NAME."
)


@app.itself()
def serve(
    model: Annotated[str, argument(help=_MODEL)],
    bound: Bound,
    engine: EngineOptions,
    load: Load,
    around: Around,
    name: Annotated[str, option(help="What clients call the model; default: its own name.")] = "",
    as_json: Json = False,
) -> None:
    """Serve a model to OpenAI's and Anthropic's clients: chats, Responses, Messages, streaming, tools; health and metrics.

    Ctrl-C or SIGTERM shuts down gracefully: no new requests, open ones finish. A second signal ends it at once.
    """
    if around.redact and not around.record:
        raise UserError("--redact is about what --record keeps; give --record RUN with it")
    from ramify.model.middleware import wrap
    from ramify.web.api import Api
    from ramify.web.limits import Guard, Slots
    from ramify.web.server import MAX_CONNECTIONS, address, open_server

    made, secret = _secret(bound.token, bound.host)
    inner, gauges = find_served(model, load.max_sequences, engine)
    if bound.pass_key:
        _check_passed(inner)
    wrapped = wrap(inner, [*(around.middleware or []), *(f"score:{judge}" for judge in around.score or [])])
    public = name or (model if model in ("builtin", "smollm2") else inner.identity.name)
    recorder = _recorder(around, model, getattr(inner, "template", None)) if around.record else None
    try:
        slots = Slots(load.max_sequences, load.max_waiting, load.max_per_client)
        api = Api(wrapped, public, slots, recorder, gauges, pass_key=bound.pass_key)
        allowed = bound.allow_host or ()
        guard = Guard(api.app(), bound.host, secret, seconds=bound.timeout, allowed=allowed, probe="/health", count=api.count)
        connections = MAX_CONNECTIONS + 2 * (load.max_sequences + load.max_waiting)
        server, listener = open_server(guard, bound.port, connections, bound.drain)
        with listener:
            url = address(bound.host, listener) + "v1"
            welcome = _welcome(url, public, made, bound.token, getattr(inner, "defaults", {}))
            emit({"url": url, "model": public, "token": made or None}, as_json, welcome)
            server.run(sockets=[listener])
    finally:
        if recorder is not None:
            recorder.close()
    say(_farewell(guard.cut + server.unread))


def _check_passed(model: Model) -> None:
    """Raises UserError where clients' keys would go nowhere, or over a network in the clear."""
    from ramify.model.address import PLAIN_HTTP, sent_in_clear
    from ramify.model.endpoint import HttpModel

    if not isinstance(model, HttpModel) or not model.chats:
        raise UserError("--pass-key sends clients' keys to an endpoint: serve chat:, anthropic:, responses:MODEL@URL")
    if sent_in_clear(model.endpoint):
        raise UserError(
            f"--pass-key would send clients' keys to {model.endpoint.host} unencrypted: use https, or {PLAIN_HTTP}=1 to send "
            "them all the same"
        )


@orchestrator_app.verb("serve")
def serve_pool(
    pool: Annotated[Path, argument("POOL", help="TOML file: [[workers]] with name, model, and optional price, context, tags.")],
    router: Annotated[Path | None, option("--router", metavar="DIR", help="Serve this router as the model 'router'.")] = None,
    composer: Annotated[
        str | None, option("--composer", metavar="MODEL", help="Serve this model's workflows as 'composer'.")
    ] = None,
    rounds: Annotated[int, option(help="Further workflows a composer may write when it has seen its answer.", min=0)] = 0,
    max_steps: Annotated[int, option(help="Most steps of a workflow.", min=1, max=20)] = 5,
    shots: Annotated[bool, option(help="Show a composer worked examples.")] = True,
    best: Annotated[
        str, option(metavar="WORKER", help="Answers where all else fails; default: the first that is not excluded.")
    ] = "",
    exclude: Annotated[
        list[str] | None, option(metavar="WORD", help="A worker's name, or a tag: never asked; repeatable.")
    ] = None,
    out: Annotated[Path | None, option(metavar="RUN", help="Keep every conversation in this run, for `show trace`.")] = None,
    host: Annotated[str, option(help="Address to bind; beyond this machine a token is needed.")] = "127.0.0.1",
    port: Annotated[int, option(help="Port; 0 takes a free one.", min=0, max=65535)] = 8000,
    token: Annotated[
        bool, option("--token", help="Require a token: RAMIFY_TOKEN, or one that is generated and printed once.")
    ] = False,
    max_sequences: Annotated[int, option(help="Requests that run at once.", min=1)] = ROWS,
    timeout: Annotated[float, option(help="Seconds within which a request must be answered.", min=1)] = 600.0,
    as_json: Json = False,
) -> None:
    """Serve a pool to OpenAI clients as the models 'router' and 'composer'; the header x-request-id of an answer names its trace.

    The first worker that is not excluded, or --best, answers where every other fails, and is served under its own name, too.
    """
    from ramify.methods.orchestrator.composer import open_composer
    from ramify.methods.orchestrator.middleware import Composed, Routed
    from ramify.methods.orchestrator.pool import read_pool
    from ramify.methods.orchestrator.router import TurnRouter
    from ramify.model.protocol import known_capabilities
    from ramify.trace.db import Run
    from ramify.web.api import Api
    from ramify.web.limits import Guard, Slots
    from ramify.web.server import MAX_CONNECTIONS, address, open_server

    if router is None and composer is None:
        raise UserError("give --router DIR, --composer MODEL, or both")
    made, secret = _secret(token, host)
    held = read_pool(pool)
    allowed = held.available(exclude or ())
    first = held.best(best, exclude or ()) if best else allowed.index(True)
    models: dict[str, Model] = {}
    if router is not None:
        models["router"] = Routed(held.models[first]).over(held, TurnRouter.load(router))
    if composer is not None:
        models["composer"] = Composed(held.models[first]).over(
            open_composer(composer, held, rounds, max_steps, fallback=first, shots=shots, exclude=exclude or ())
        )
    run = None if out is None else Run.begin(out, "orchestrator serve", {}, {}, {"pool": held.identity})
    try:
        for one in models.values():
            one.run, one.exclude = run, tuple(exclude or ())  # type: ignore[attr-defined]  # both kinds have them
        public, *more = models
        others = {name: models[name] for name in more}
        try:
            known_capabilities(held.models[first])
            others[held.names[first]] = held.models[first]
        except InfrastructureError as error:  # the others do not need it
            say(f"warning: '{held.names[first]}' is not served under its own name: {error.message}")
        api = Api(
            models[public], public, Slots(max_sequences, 256, 0), None, dict, {k: v for k, v in others.items() if k != public}
        )
        guard = Guard(api.app(), host, secret, seconds=timeout, probe="/health", count=api.count)
        server, listener = open_server(guard, port, MAX_CONNECTIONS + 2 * (max_sequences + 256))
        with listener:
            url = address(host, listener) + "v1"
            named = [public, *others]
            text = _welcome(url, public, made, token) + f"\n  models: {', '.join(named)}"
            emit({"url": url, "model": public, "models": named, "token": made or None}, as_json, text)
            server.run(sockets=[listener])
    finally:
        if run is not None:
            run.close()
    say(_farewell(guard.cut + server.unread))


def _simulation() -> type[SimulationSettings]:
    from ramify.methods.world_model.environment import SimulationSettings

    return SimulationSettings


@world_model_app.verb("serve", settings=_simulation)
def serve_world(
    settings: SimulationSettings,
    world: Annotated[str | None, option("--world", metavar="WORLD", help="Folder or TOML file instead of the settings.")] = None,
    task: Annotated[
        str | None, option("--task", metavar="ID", help="The one task that is served; over MCP by default the first.")
    ] = None,
    prompt: Annotated[str, option(help="What the environment shows first, where there is no task.")] = "",
    seed: Seed = 0,
    http: Annotated[
        bool, option("--http", help="Over HTTP and WebSocket, as OpenEnv's clients speak, instead of MCP over stdio.")
    ] = False,
    host: Annotated[str, option(help="With --http: address to bind; beyond this machine a token is needed.")] = "127.0.0.1",
    port: Annotated[int, option(help="With --http: port; 0 takes a free one.", min=0, max=65535)] = 8000,
    token: Annotated[
        bool, option("--token", help="With --http: require a token: RAMIFY_TOKEN, or one that is generated and printed once.")
    ] = False,
    timeout: Annotated[float, option(help="With --http: seconds within which a request must be answered.", min=1)] = 600.0,
    mcp: Annotated[bool, option("--mcp", help="Over MCP (stdio), which is the default.")] = False,
    as_json: Json = False,
) -> None:
    """Serve a simulated environment: state and faults in code, the rest by the model.

    Over MCP it is one episode a process, its actions the tools. Over HTTP it is many: reset, step and state as OpenEnv has them.
    """
    from ramify.methods.world_model.environment import from_settings, simulated
    from ramify.methods.world_model.mcp_server import serve as serve_mcp

    if http and mcp:
        raise UserError("--mcp and --http are two ways to serve: give one of them")
    if world is not None and settings != type(settings)():
        raise UserError("--world names a file with all settings: change them there, or leave --world out")
    environment = simulated(world) if world is not None else from_settings(settings)
    first = environment.task(task, prompt)
    if http:
        chosen = [first] if task is not None else sorted(environment.tasks, key=lambda one: one.id) or [first]
        _serve_environment(environment, chosen, seed, host, port, token, timeout, as_json)
    else:
        serve_mcp(environment, first, seed)


def _serve_environment(
    environment: Environment, tasks: list[Task], seed: int, host: str, port: int, token: bool, timeout: float, as_json: bool
) -> None:
    from ramify.web.environments import EnvironmentApi
    from ramify.web.limits import Guard
    from ramify.web.server import MAX_CONNECTIONS, address, open_server

    made, secret = _secret(token, host)
    api = EnvironmentApi(environment, tasks, seed)
    guard = Guard(api.app(), host, secret, seconds=timeout, probe="/health")
    server, listener = open_server(guard, port, MAX_CONNECTIONS + api.most, sockets=True)
    try:
        with listener:
            url = address(host, listener).rstrip("/")
            header = f' -H "authorization: Bearer ${TOKEN}"' if token else ""
            lines = [
                f"Serving {environment.name} on {url} (Ctrl-C stops)",
                *([f"  export {TOKEN}={made}"] if made else []),
                f"  curl -X POST {url}/reset{header}",
                f"  curl -X POST {url}/step{header} -d {shlex.quote(json.dumps({'action': {'text': 'look'}}))}",
                f'  openenv: GenericEnvClient(base_url="{url}").sync()',
            ]
            emit({"url": url, "tasks": [one.id for one in tasks], "token": made or None}, as_json, "\n".join(lines))
            server.run(sockets=[listener])
    finally:
        api.end()
    say(_farewell(guard.cut + server.unread))


def _secret(token: bool, host: str) -> tuple[str, str | None]:
    """A token made here ("" where none was), and the one that is required, None without.
    Raises UserError where the address needs one."""
    from ramify.web.limits import check_bind, make_token

    made = make_token() if token and not os.environ.get(TOKEN) else ""
    secret = (made or os.environ[TOKEN]) if token else None
    check_bind(host, secret)
    return made, secret


def _farewell(cut: int) -> str:
    """The closing message; ``cut`` requests were not answered completely."""
    answered = "1 request was cut off before its answer was complete" if cut == 1 else "every request was answered"
    answered = f"{cut} requests were cut off before their answers were complete" if cut > 1 else answered
    return f"ramify: {answered}; the server has ended"


def _recorder(around: Around, model: str, template: ChatTemplate | None) -> Recorder:
    """The recorder into the run that ``record`` names: a folder, or a name below the runs."""
    from ramify.trace.sources import RUNS
    from ramify.web.recording import Recorder

    record = around.record
    folder = Path(record) if os.sep in record or Path(record).is_dir() else RUNS / record
    return Recorder(folder, {"model": model, "middleware": around.middleware or []}, template, around.redact)


def find_served(spec: str, max_sequences: int, engine: EngineOptions | None = None) -> tuple[Model, Callable[[], Gauges]]:
    """The model that ``spec`` names as the server holds it, with chats rendered by a template where it takes tokens, and its
    numbers for /metrics.

    Raises UserError where there is no such model or a drafter is given for a remote one.
    """
    from ramify.engine.named import is_local
    from ramify.model.chat import read_template
    from ramify.model.laid import Layout

    engine = engine or EngineOptions()
    given = read_template(engine.chat_template) if engine.chat_template else None
    if engine.verify not in ("coupled", "rejection"):
        raise UserError(f"--verify is coupled or rejection, not '{engine.verify}'")
    if is_local(spec):
        from ramify.engine import checkpoints
        from ramify.engine.local import LocalModel

        folder, drafter = checkpoints.model_folder(spec), engine.drafter
        options: dict[str, Any] = {}
        if drafter is not None:
            options = {"drafter": drafter, "schedule": engine.schedule, "verify": engine.verify}
        options |= {"device": engine.device, "dtype": engine.dtype, "kv_bytes": engine.kv_memory << 20 or None}
        local = LocalModel.load(folder, max_sequences=max_sequences, **options)
        return Layout(local, checkpoints.chat_template(folder, given)), (
            lambda: {f"engine_{name}": value for name, value in local.gauges.items()}
        )
    if engine.drafter is not None:
        raise UserError(f"--drafter speculates for a model in this process, and '{spec.partition(':')[0]}' names one elsewhere")
    from ramify.engine.named import find_model

    found, template = find_model(spec, engine.device, engine.dtype, given)
    return (found if template is None else Layout(found, template)), dict


def _welcome(url: str, name: str, made: str, token: bool, defaults: Mapping[str, float] | None = None) -> str:
    """The address, an example request, and the default sampling settings (``defaults``)."""
    own = ", ".join(f"{name} {value:g}" for name, value in (defaults or {}).items())
    body = f'{{"model": "{name}", "messages": [{{"role": "user", "content": "hello"}}]}}'
    header = f' -H "authorization: Bearer ${TOKEN}"' if token else ""
    key = f'os.environ["{TOKEN}"]' if token else '"none"'
    lines = [
        f"Serving {name} on {url} (Ctrl-C stops)",
        *([f"  sampling by default, from its generation_config.json: {own}"] if own else []),
        *([f"  export {TOKEN}={made}"] if made else []),
        f"  curl {url}/chat/completions \\",  # in lines that fit a terminal, so that it can be copied
        f"    -H 'content-type: application/json'{header} \\",
        f"    -d {shlex.quote(body)}",
        f'  openai.OpenAI(base_url="{url}", api_key={key})',
        f'  anthropic.Anthropic(base_url="{url.removesuffix("/v1")}", api_key={key})',
    ]
    return "\n".join(lines)
