"""Continue a stored run: the agent and the environment it names, and the chat template it began with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ramify.base import registry
from ramify.base.errors import UserError
from ramify.engine.named import is_local
from ramify.env.protocol import AnyEnvironment, Task
from ramify.env.tools import declare
from ramify.model.chat import ChatTemplate, JinjaTemplate
from ramify.model.function import AnyModel
from ramify.rollout.agent import Agent
from ramify.rollout.compact import Compactor
from ramify.rollout.components import any_environment, check_trust, find_model, make_agent, read_sampling
from ramify.rollout.run import Episodes
from ramify.trace.db import Run
from ramify.trace.node import Node

AGENT = "agent"
"""Folder of the improved checkpoint inside a run."""
TEMPLATE = "template"
"""Kind of the journal entry that keeps the chat template a run began with."""


def keep_template(run: Run, template: ChatTemplate | None) -> None:
    """Store the chat template that renders chats in ``run``, where it is one that can change apart from the weights."""
    if isinstance(template, JinjaTemplate):
        run.log(TEMPLATE, "agent", template.to_json())


def kept_template(run: Run) -> dict[str, Any] | None:
    """The chat template that ``run`` began with: its text, its date, their hash. None where none was kept."""
    return next((dict(entry.payload) for entry in run.journal(TEMPLATE)), None)


def named_components(run: Run, model: AnyModel | None = None, environment: AnyEnvironment | None = None) -> tuple[Any, Any]:
    """Model and environment of ``run`` by name. Raises UserError where it has no name of one that is not given."""
    spec, env = run.config.get("model"), run.config.get("env")
    if has_player(run, model, environment):
        return spec, env
    if (model is None and not isinstance(spec, str)) or (environment is None and not isinstance(env, str)):
        raise UserError(
            f"{run.folder} was not made by `ramify improve` or `ramify rollout` with a model and an environment that have "
            "names, so there is "
            "nothing to continue with: name them (--model, --env; in Python model= and environment=)"
        )
    return spec, env


def other_agent(episodes: Episodes, node: Node) -> tuple[str, ...]:
    """A caveat where another agent continues than the one that sampled ``node``, or of a node that nobody sampled the last reply
    before it."""
    replies = [node, *(part for part, _ in reversed(episodes.run.path(node.id).segments))]
    sampled = next((reply.provenance for reply in replies if reply.provenance is not None and reply.role == "assistant"), None)
    then, now = "" if sampled is None else episodes.run.provenance(sampled).weights, episodes.provenance.weights
    if then in ("", now):
        return ()
    return (
        f"the attempt was sampled by other weights than those that continue ({then[:12]}, now {now[:12]}): what is found is of "
        "the present agent",
    )


def placed_in(run: Run, spec: str) -> tuple[str, str]:
    """Device and dtype for a run's own model: its weights are those that sampled in the dtype that the run began in. A run in
    float32 may continue on another device."""
    if not is_local(spec):
        return "", ""
    noted: Mapping[str, Any] = next((entry.payload for entry in run.journal("environment", "versions")), {})
    dtype = str(noted.get("dtype") or run.config.get("dtype") or "")
    return ("" if dtype in ("", "float32") else str(noted.get("device") or run.config.get("device") or "")), dtype


def has_player(run: Run, model: AnyModel | None, environment: AnyEnvironment | None) -> bool:
    """Whether the method that made the run registers its own agent for continuations."""
    return environment is None and (model is None or isinstance(model, str)) and run.kind in registry.names("player")


def by_player(
    run: Run, nodes: Iterable[Node], model: AnyModel | None = None, environment: AnyEnvironment | None = None
) -> list[list[Node]]:
    """Nodes of ``run`` grouped by the agent that continues them:
    what :func:`open_episodes` opens for one node of a list fits all of it."""
    own, apart = has_player(run, model, environment), dict[Any, list[Node]]()
    for node in nodes:
        apart.setdefault((own and node.tree, node.provenance), []).append(node)
    return list(apart.values())


def task_of(run: Run, tree: str) -> tuple[Task, str]:
    """The task that a tree of ``run`` is about, and the tree's group."""
    info = run.tree_info(tree)
    return Task(str(info.task.get("id", info.name)), info.task.get("data") or dict(info.task)), info.group


@dataclass(frozen=True, slots=True)
class WhoPlays:
    """Who continues the attempts of a run; None is whom the run names."""

    model: AnyModel | None = None
    env: AnyEnvironment | None = None
    trust: bool = False
    """The settings of a run that was made elsewhere may load code."""
    effects: Mapping[str, str] = field(default_factory=dict)
    """What the environment's tools do (:data:`ramify.env.tools.EFFECTS`)."""


@contextmanager
def open_episodes(
    path: Path | str,
    node: Node,
    model: AnyModel | None = None,
    environment: AnyEnvironment | None = None,
    compactor: Compactor | None = None,
    trust: bool = False,
    effects: Mapping[str, str] | None = None,
) -> Iterator[tuple[Episodes, Task]]:
    """Episodes that continue from ``node`` of a stored run, and the node's task. The run is open for writing meanwhile.

    Of an improve run the agent is the one that sampled the node where its weights are still there (the starting or the improved
    ones), else the improved one. ``effects`` say what the environment's tools do (:data:`ramify.env.tools.EFFECTS`).
    """
    who = WhoPlays(model, environment, trust, effects or {})
    with Run.open(path, write=True) as run:
        yield episodes_in(run, node, who, compactor)
        run.commit()


def episodes_in(run: Run, node: Node, who: WhoPlays, compactor: Compactor | None = None) -> tuple[Episodes, Task]:
    """:func:`open_episodes` of a run that is open for writing."""
    config = run.config
    spec, env = named_components(run, who.model, who.env)
    check_trust(run, who.trust or (who.model is not None and who.env is not None and compactor is not None))
    task, group = task_of(run, node.tree)
    seed = int(config.get("seed", 0))
    if has_player(run, who.model, who.env):
        agent, chosen = registry.get("player", run.kind)(run, node, who.model)
        declare(chosen, who.effects)
        return Episodes(agent, chosen, run, seed, group), task
    agent = agent_of(run, node, who.model, spec, compactor)
    chosen = any_environment(who.env or env)
    declare(chosen, who.effects)
    return Episodes(agent, chosen, run, seed, group), task


def agent_of(run: Run, node: Node, model: AnyModel | None, spec: Any, compactor: Compactor | None = None) -> Agent:
    """The agent of ``run`` that continues from ``node``: ``model``, else the one that ``spec``, its settings' model, names.
    Raises UserError."""
    config = run.config
    shortens: Any = compactor or config.get("compactor")
    if shortens == "":
        raise UserError(f"{run.folder} was made with a compactor that ramify cannot load by name; pass compactor=")
    window = int(config.get("window") or 0)
    settings = sampling_in(config)
    if model is None or isinstance(model, str):
        spec, improved = model or spec, run.folder / AGENT
        sampled_by = "" if node.provenance is None else run.provenance(node.provenance).weights
        kept = kept_template(run)
        placed = placed_in(run, spec) if model is None else ("", "")
        found, template = find_model(spec, *placed, kept)
        if model is None and improved.is_dir() and found.identity.weights != sampled_by:
            found, template = find_model(f"hf:{improved}", *placed, kept)
        settings["stop_tokens"] = () if template is None else template.stop_tokens
        return make_agent(found, template, read_sampling(settings), shortens, window)
    return make_agent(model, None, read_sampling(settings), shortens, window, kept_template(run))


def sampling_in(config: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling settings among those of a run."""
    alone = {"temperature": config.get("temperature", 1.0), "max_tokens": config.get("max_reply", 64)}
    return dict(config.get("sampling") or alone)
