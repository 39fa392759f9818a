"""What traces that nobody here wrote show of recovery: solutions of reasoning-gym, games of TextWorld played by its own agents.

Prints the table of docs/methods/maze-recovery.md (two minutes of one core;
needs the extra ``environments``): python docs/foreign_traces.py
"""

import asyncio
import json
import tempfile
import warnings
from pathlib import Path

import reasoning_gym
import textworld
from magiccube import Cube
from textworld.agents import RandomCommandAgent, WalkthroughAgent

from ramify.methods.maze_recovery import audit_traces
from ramify.methods.maze_recovery.attempts import Traces, from_records
from ramify.methods.maze_recovery.traces import Lexicon, audit_texts, detect
from ramify.trace.keys import scrub

N = 100


def hanoi():
    """tower_of_hanoi: the optimal moves; the state is where each disk lies."""
    for i, item in enumerate(reasoning_gym.create_dataset("tower_of_hanoi", seed=1, size=N, max_disks=6)):
        about = item["metadata"]
        pegs, steps = [about["start_peg"]] * about["num_disks"], []
        for move in item["answer"].splitlines():
            disk, to = int(move.split()[2]), int(move.split()[-1])
            steps.append({"state": list(pegs), "action": move})
            pegs[disk - 1] = to
        yield {"task_id": i, "steps": steps, "success": set(pegs) == {about["target_peg"]}}


def jugs():
    """jugs: the moves of a breadth-first search; the state is how full each jug is."""
    for i, item in enumerate(reasoning_gym.create_dataset("jugs", seed=1, size=N)):
        size, target = item["metadata"]["puzzle"]["jug_capacities"], item["metadata"]["puzzle"]["target"]
        full, steps = [0] * len(size), []
        for move in json.loads(item["answer"]):
            steps.append({"state": list(full), "action": move})
            verb, names = move.split()
            at, *to = (ord(name) - ord("A") for name in names.split("->"))
            poured = min(full[at], size[to[0]] - full[to[0]]) if to else 0
            full[at] = size[at] if verb == "fill" else full[at] - poured if to else 0
            if to:
                full[to[0]] += poured
        yield {"task_id": i, "steps": steps, "success": target in full}


def cubes():
    """rubiks_cube: the moves of a layer-by-layer solver; the state is the whole cube."""
    for i, item in enumerate(reasoning_gym.create_dataset("rubiks_cube", seed=1, size=N)):
        about = item["metadata"]
        cube, steps = Cube(about["cube_size"]), []
        cube.rotate(about["scramble_moves"])
        for move in about["example_correct_answer"].split():
            steps.append({"state": str(cube), "action": move})
            cube.rotate(move)
        if steps:
            yield {"task_id": i, "steps": steps, "success": cube.is_done()}


def games(agents, state, turns=300):
    """TextWorld: ten generated games; the state is every fact of the game, or the text that the player sees."""
    for game in range(10):
        options = textworld.GameOptions()
        options.nb_rooms, options.nb_objects, options.quest_length, options.seeds = 4, 6, 5, game
        options.path = str(Path(tempfile.gettempdir()) / f"ramify-foreign-{game}.z8")
        if not Path(options.path).exists():
            textworld.make(options)
        for agent in agents():
            infos = textworld.EnvInfos(facts=True, feedback=True, admissible_commands=True, won=True, policy_commands=True)
            env = textworld.start(options.path, infos)
            agent.reset(env)
            seen, steps, done = env.reset(), [], False
            while not done and len(steps) < turns:
                key = sorted(map(str, seen.facts)) if state == "facts" else seen.feedback.strip()
                action = agent.act(seen, 0, done)
                steps.append({"state": key, "obs": seen.feedback, "action": action, "actions": list(seen.admissible_commands)})
                seen, _, done = env.step(action)
            yield {"task_id": game, "steps": steps, "success": bool(seen.won), "truncated": not done}


def texts():
    """gsm_symbolic: the worked solutions, written by templates that take nothing back."""
    for i, item in enumerate(reasoning_gym.create_dataset("gsm_symbolic", seed=1, size=N)):
        yield {"task_id": i, "steps": [{"obs": item["question"], "action": item["metadata"]["answer_cot"]}], "success": True}


def players():
    """Two random players a game."""
    return [RandomCommandAgent(seed) for seed in range(2)]


def share(value):
    """A share with its interval."""
    return "" if value is None else f"{value.value:.2f}" + f" ({value.interval[0]:.2f} to {value.interval[1]:.2f})"


def row(name, found):
    """One row of the page's table."""
    cells = [name, f"{found.success_share.k} of {found.traces}", found.steps, share(found.loop_free)]
    cells += [share(found.recovery_traces), f"{found.recovery_rate:.1f}", found.dead_ends]
    cells += [f"{found.families_covered} of {found.families}", share(found.ambiguity)]
    return "| " + " | ".join(map(str, cells)) + " |"


def main():
    """Print the table."""
    print("| traces | success | steps | loop-free | with a recovery | recoveries a trace | dead ends | covered | ambiguous |")
    print("|---|---|---|---|---|---|---|---|---|")
    print(row("reasoning-gym, tower_of_hanoi", audit_traces(hanoi())))
    print(row("reasoning-gym, jugs", audit_traces(jugs())))
    print(row("reasoning-gym, rubiks_cube", audit_traces(cubes())))
    print(row("TextWorld, walkthroughs, all facts", audit_traces(games(lambda: [WalkthroughAgent()], "facts"))))
    print(row("TextWorld, random commands, all facts", audit_traces(games(players, "facts"))))
    seen = list(games(players, "text"))
    print(row("the same, the text as it is", audit_traces(seen)))
    print(row("the same, the text without numbers", audit_traces(seen, keys=scrub("numbers"))))
    solutions = Traces(from_records(texts()))
    marks, _ = asyncio.run(detect([[step.reply.text for step in trace.steps] for trace in solutions.traces], Lexicon()))
    found = audit_texts(solutions, marks, "lexicon")
    back = {kind: found.kinds[kind].k for kind in ("retract", "restart", "verify")}
    print(f"\ngsm_symbolic, {found.traces} solutions, {found.steps} steps by the phrases: {back}")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
