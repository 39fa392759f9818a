"""Train my transformers checkpoint on traces that keep recoveries,
compared with the same traces without their loops, at equal tokens.

python examples/methods/train_on_recoveries.py [CHECKPOINT [TRACES]]: a folder that transformers loads, and a run, or a file of
whole traces or of any format that `ramify import` reads. Without them the built-in agent plays the built-in environment, before
and after: 16 games, which show that it runs, not which set is better.
"""

import sys
from pathlib import Path

import ramify
from ramify.engine.checkpoints import load_model, model_folder, save_model
from ramify.env.builtin.household import HouseholdEnvironment
from ramify.methods.maze_recovery import audit_traces, build_sft
from ramify.methods.maze_recovery.attempts import load
from ramify.train.loop import TrainConfig, Trainer

TOKENS = 150  # with a loss, in each set; real ones hold millions
ENVIRONMENT = HouseholdEnvironment()


def success(model, name):
    """Share of held-out tasks that the model solves."""
    played = ramify.play(model, ENVIRONMENT, ENVIRONMENT.task_set("eval", 16), out=f"runs/recovery-{name}")
    return sum(bool(attempt.outcome) for attempt in played) / len(played)


def main(checkpoint=None, source=None):
    folder = Path(checkpoint) if checkpoint else model_folder("builtin")
    if source is None:
        source = "runs/recovery-traces"
        ramify.play("builtin", ENVIRONMENT, ENVIRONMENT.task_set("train", 12), attempts=4, out=source)
    traces = load(Path(source))
    found = audit_traces(traces)
    print(f"{found.traces} traces, {found.recovery_rate:.2f} recoveries each, coverage {found.recovery_coverage:.0%}")
    for mode in ("recovery_mix", "success_loop_erased"):
        model, template = load_model(folder)
        if not checkpoint and mode == "recovery_mix":
            print(f"before: success {success(model, 'before'):.2f}")
        made = build_sft(traces, template=template, mode=mode, rho=0.5, token_budget=TOKENS, mask_mistakes=True)
        rows = [example.conversation.to_row(template) for example in made.examples]
        trainer = Trainer(model.module, TrainConfig(lr=3e-4, epochs=2, minibatches=8), seed=0)
        loss = trainer.update(rows, {"cross_entropy": 1.0})["cross_entropy"]
        model.refresh()
        save_model(model, folder, Path(f"runs/trained-{mode}"))
        print(f"{mode}: {made.summary.tokens} tokens, {made.summary.with_recovery} recoveries, loss {loss:.3f}")
        if not checkpoint:
            print(f"  success {success(model, mode):.2f}")


if __name__ == "__main__":
    main(*sys.argv[1:3])
