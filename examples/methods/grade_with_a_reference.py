"""Grade the steps of my agent with the checkpoint it was trained from:
choose among attempts, find the step to blame, watch it act.

python examples/methods/grade_with_a_reference.py [POLICY REFERENCE [ATTEMPTS]]: two folders that transformers loads (or one LoRA
adapter and its base), and a run or a file of attempts. Without them the built-in agent is trained for two short updates: too few
for good grades.
"""

import sys
from pathlib import Path

import ramify
from ramify.engine.checkpoints import load_model, model_folder
from ramify.engine.pairs import open_pair, pair_template
from ramify.env.builtin.household import HouseholdEnvironment
from ramify.methods.implicit_advantage import AdvantageScorer, Monitor
from ramify.methods.implicit_advantage.report import blame, report, select
from ramify.score.trajectories import chat_layout, read_trajectories, run_trajectories
from ramify.trace.db import Run

ENVIRONMENT = HouseholdEnvironment()


def attempts_of(source, policy):
    """Attempts as rows of token ids with their actions marked; attempts of text are laid out by the policy's chat template."""
    template = pair_template(policy)
    layout = None if template is None else chat_layout(template)
    if not Path(source).is_dir():
        return read_trajectories(Path(source), layout)
    with Run.open(source) as run:
        return run_trajectories(run, layout)[0]


def main(policy=None, reference=None, source=None):
    if policy is None:
        small = ramify.ImproveConfig(updates=2, tokens=2_000, eval_episodes=10)
        ramify.improve(small, out="runs/trained")
        policy, reference = "runs/trained/agent", str(model_folder("builtin"))
    if source is None:
        source = "runs/to-grade"
        ramify.play(f"hf:{policy}", ENVIRONMENT, ENVIRONMENT.task_set("eval", 6), attempts=8, out=source)
    pair = open_pair(policy, reference, cache="runs/logprobs")
    attempts = attempts_of(source, policy)
    scored = AdvantageScorer(pair, token="sum", step="mean").score_many(attempts)
    records = [one.record("policy", "reference") for one in scored]
    found = report(records)
    print(found.verdict)
    print(f"{found.attempts} attempts at {found.tasks} tasks, {found.positives} succeeded, ceiling {found.luck_ceiling}")
    for row in found.scorers[:3]:
        print(f"  {row.scorer}: AUROC {row.auroc}, 95 % {row.interval}")
    worth = select(records, n=8)
    print(f"best of 8: {worth.best_of}, mean of 8: {worth.mean}, at best {worth.oracle}")
    suspects = blame(records)  # the steps that stand out from those of successful attempts
    print(suspects.verdict)
    for row in suspects.blamed[:3]:
        print(f"  attempt {row.trajectory_id[:8]}, step {row.step} ({row.action}): {row.grade:+.2f}")
    monitor = Monitor(load_model(Path(policy))[0], load_model(Path(reference))[0], on_step=print)
    first = attempts[0]  # the same grades, one by one while the agent acts
    start = int((first.step >= 0).argmax())
    monitor.see(first.tokens[:start])
    monitor.act(first.tokens[first.step == 0])


if __name__ == "__main__":
    main(*sys.argv[1:4])
