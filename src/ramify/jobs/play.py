"""Play any agent in any environment and keep the trees; continue from any node of a stored run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ramify.base.errors import UserError
from ramify.base.waiting import wait_for
from ramify.env.protocol import AnyEnvironment, AnyTasks, task_set_of
from ramify.jobs import components
from ramify.model.chat import ChatTemplate, JinjaTemplate
from ramify.model.function import AnyModel, FunctionModel
from ramify.rollout.agent import Agent
from ramify.rollout.attempts import Attempt
from ramify.rollout.backends import Players, Unit, setup_message
from ramify.rollout.compact import Compactor
from ramify.rollout.components import MAX_REPLY, AnySampling, any_environment, make_agent
from ramify.rollout.fork import Fork, fork, interruptible
from ramify.rollout.run import Episodes
from ramify.rollout.stored import keep_template, open_episodes
from ramify.trace.db import Run


def play(
    model: AnyModel,
    env: AnyEnvironment,
    tasks: AnyTasks | None = None,
    *,
    attempts: int = 1,
    out: Path | str = "runs/rollout",
    seed: int = 0,
    sampling: AnySampling | None = None,
    template: ChatTemplate | None = None,
    backend: str = "local",
    concurrency: int = 64,
    compactor: Compactor | str | None = None,
    window: int = 0,
) -> list[Attempt]:
    """Play ``attempts`` attempts at every task and store the trees in the run ``out``; returns the attempts, task by task.

    ``model`` is a name as in ``ramify improve``, a model object, or a function from the messages so far to the reply
    (:class:`ramify.model.function.FunctionModel`). ``env``, the environment, is a name, an object, or a class or function
    that makes one or makes one episode. ``tasks`` are objects, dicts with an ``id``, or a file of them as JSON lines; by
    default eight of the environment's own. ``sampling`` is an object or a dict of some settings; a reply has at most 64
    tokens by default, and where your own agent's program asks (:func:`ramify.agent`) as many as it says, at most 4,096.
    ``template`` renders chats as tokens; by default the model's own. ``backend`` is where they are played (``ramify list
    backend``; ``processes:4``), which changes no tree; any but ``local`` needs model and environment by name. At most
    ``concurrency`` attempts run at once. ``compactor`` (an object, or a name of ``ramify list compactor``) shortens prompts
    beyond ``window`` tokens (characters for a model that takes messages). Raises UserError where ``out`` holds a run."""
    environment = any_environment(env)
    task_set = task_set_of(tasks) if tasks is not None else environment.task_set("train", 8, seed)
    longest = getattr(environment, "max_reply", MAX_REPLY)
    agent = make_agent(model, template, sampling, compactor, window, max_reply=longest)
    agent.check(environment)
    if sampling is not None and isinstance(agent.model, FunctionModel):
        raise UserError(
            f"the model '{agent.model.identity.name}' is a function, which takes no sampling settings; leave sampling= out"
        )
    if template is not None and backend != "local":
        raise UserError(f"the back end '{backend}' renders chats with the model's own template; leave template= out")
    config: dict[str, Any] = {name: part if isinstance(part, str) else None for name, part in (("model", model), ("env", env))}
    config |= {"seed": seed}
    if compactor is not None:
        config |= {"compactor": compactor if isinstance(compactor, str) else "", "window": window}
    players = open_players(backend, config["model"], config["env"], agent, seed, concurrency, compactor)
    with players, Run.create(out, {**config, "sampling": agent.sampling.to_json()}, kind="play") as run:
        keep_template(run, agent.template)
        run.log("environment", "versions", components.surroundings(agent.model))
        player = players.player(Episodes(agent, environment, run, seed))
        units = [Unit(task.id, task, index) for task in task_set for index in range(attempts)]

        async def attempted() -> list[Attempt]:
            return [attempt async for _, attempt in player.in_order(units)]

        return players.run(attempted())


def open_players(
    backend: str, model: Any, environment: Any, agent: Agent, seed: int, concurrency: int, compactor: Any = None
) -> Players:
    """The back end of that name, with workers that make agent and environment by their names.
    Raises UserError where one has none."""
    if backend != "local" and not (isinstance(model, str) and isinstance(environment, str)):
        raise UserError(
            f"workers of the back end '{backend}' make model and environment themselves: give both by name "
            "(factory:MODULE:ATTRIBUTE for your own)"
        )
    if backend != "local" and agent.compactor is not None and not isinstance(compactor, str):
        raise UserError(f"workers of the back end '{backend}' make the compactor themselves: give it by name")
    settings = {"model": model, "env": environment, "sampling": agent.sampling.to_json(), **getattr(agent.model, "placed", {})}
    if isinstance(agent.template, JinjaTemplate):
        settings |= {"template": agent.template.to_json()}
    if isinstance(compactor, str):
        settings |= {"compactor": compactor, "window": agent.window}
    setup = setup_message("ramify.jobs.components:worker_components", settings, seed, agent.model.identity.weights)
    return Players(backend, setup, concurrency)


def fork_run(
    path: Path | str,
    node: str,
    offset: int | None = None,
    *,
    n: int = 32,
    edit: Mapping[str, Any] | None = None,
    after: str = "resample",
    model: AnyModel | None = None,
    env: AnyEnvironment | None = None,
    compactor: Compactor | None = None,
    trust: bool = False,
    effects: Mapping[str, str] | None = None,
) -> Fork:
    """Fork a stored run at ``node`` (an id, or its unique beginning); see :func:`ramify.rollout.fork.fork`.

    ``offset`` counts the node's tokens, with those that open the message in the chat template: a reply's own begin where
    ``node.sampled`` does, and an offset before that means the same position.

    ``model``, ``env`` and ``compactor``, as in :func:`play`, are needed where the run was made with objects. ``trust`` lets the
    settings of an imported run, or of one made elsewhere, load code and open connections. ``effects``: what tools do to the
    world, by name (:data:`ramify.env.tools.EFFECTS`). The same call again continues a fork that was interrupted;
    after a finished one it takes new samples. Raises UserError."""
    with Run.open(path) as reading:
        start = reading.node(node)
    with (
        open_episodes(path, start, model, env, compactor, trust, effects) as (episodes, task),
        interruptible(episodes, start.id, offset, [edit], n, after) as key,
    ):
        return wait_for(fork(episodes, start.tree, task, start.id, offset, n, edit, after, key=key))
