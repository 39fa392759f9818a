"""Find the tokens at which my transformers checkpoint falls off, check them on fresh forks, and make training pairs of them.

python examples/methods/find_cliffs.py [CHECKPOINT PROBLEMS VERIFIER]: a folder that transformers loads, JSON lines with id,
prompt and answer, and exact, number, boxed or cmd:./check.sh. Without them a small model of chain arithmetic is trained first.
"""

import sys
from pathlib import Path

from ramify import Sampling, wait_for
from ramify.engine.named import find_continuing
from ramify.env.builtin import chain
from ramify.env.protocol import Task
from ramify.methods.cliffs import ReplyForks, ScanConfig, scan, summary
from ramify.methods.cliffs.report import ablation_table, picture
from ramify.methods.cliffs.run import ablate, examine, pairs
from ramify.render.potential import potential_text
from ramify.rollout.token_traces import TokenProblem, read_problems
from ramify.score.judge import find_judge
from ramify_experiments.recipes import ChainRecipe


def mine(checkpoint, problems, verifier):
    model, template = find_continuing(f"hf:{checkpoint}")
    settings = Sampling(
        temperature=0.7, top_p=0.8, top_k=20, max_tokens=1024, stop_tokens=template.stop_tokens if template else ()
    )
    return ReplyForks(model, model.tokenizer, find_judge(verifier, takes=("text", "trace")), settings), read_problems(
        Path(problems), template
    )


def small():
    recipe = ChainRecipe(operand=2, hops=3, rows=24, demonstrations=1200, held_out=100, below=0.9)
    model, _ = find_continuing(f"hf:{recipe.folder(print)}")
    tasks = chain.ChainEnvironment((3, 3), recipe.mod, operand=2).task_set("eval", 12)
    problems = [TokenProblem(task.id, tuple(model.tokenizer.encode(chain.prompt(task))), dict(task.data)) for task in tasks]

    def right(text, trace):
        return chain.check(Task(trace.problem_id, trace.data), text).right

    return ReplyForks(model, model.tokenizer, right, Sampling(max_tokens=40)), problems


async def main(forks, problems):
    config = ScanConfig()
    result = await scan(await forks.sample(problems), forks, config)
    found = summary(result.scanned, config)
    print(f"{found.wrong.traces} wrong, {found.right.traces} right; {found.share_of_forks:.0%} of a full scan's forks")
    for one in result.scanned:
        if one.kept and not one.trace.correct:
            texts = [forks.tokenizer.decode([token]) + " " for token in one.trace.response_ids]
            print(f"\n{one.trace.id}\n{potential_text(picture(one, texts))}")
    table = ablation_table(await ablate(result.scanned, forks), [1])
    print(f"\nresampled before the cliff minus after it: {table.gap or 0:+.2f} over {table.cliffs} cliffs")
    rows = pairs(await examine(result.scanned, forks, config.test, top=5))
    print(f"{len(rows)} pairs of single tokens to train on; {forks.spent().forward_tokens} tokens run")


if __name__ == "__main__":
    wait_for(main(*(mine(*sys.argv[1:]) if sys.argv[1:] else small())))
