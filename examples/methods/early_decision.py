"""When is my model's answer decided? Cut its thinking anywhere, answer at once or think on,
and probe the states before the first thought.

python examples/methods/early_decision.py [CHECKPOINT PROMPTS VOTER]: a folder that transformers loads, JSON lines with id and
prompt, and regex:PATTERN, factory:MODULE:ATTRIBUTE or judge:MODEL on the answer. Without them a small model of chain arithmetic
is trained first; its outcome is whether the answer is right, and its probe needs scikit-learn.
"""

import importlib.util
import sys
import tempfile
from pathlib import Path

from ramify import Sampling, wait_for
from ramify.engine.named import find_continuing
from ramify.env.builtin import chain
from ramify.methods.early_decision import Study, StudyConfig, build, continuations, rollout
from ramify.methods.early_decision.judges import find_jury
from ramify.methods.early_decision.results import StudySource
from ramify.methods.early_decision.run import ContinueConfig
from ramify.methods.early_decision.settings import ProbeConfig
from ramify.methods.early_decision.states import probe_stage
from ramify.methods.early_decision.thinking import Marks, Thinking
from ramify.rollout.sampler import Sampler
from ramify.rollout.token_traces import TokenProblem, read_problems
from ramify.score.judge import FunctionJudge, Jury
from ramify_experiments.recipes import ChainRecipe


def mine(checkpoint, prompts, voter):
    model, template = find_continuing(f"hf:{checkpoint}")
    stops = template.stop_tokens if template else ()
    sampling = Sampling(temperature=0.6, top_p=0.95, max_tokens=4096), Sampling(temperature=0.6, top_p=0.95, stop_tokens=stops)
    thinking = Thinking(model, model.tokenizer, Marks.of(model.tokenizer), *sampling)
    return Sampler(model), thinking, find_jury([voter]), read_problems(Path(prompts), template, ("prompt", "pool"))


def small():
    recipe = ChainRecipe(operand=2, hops=3, rows=24, demonstrations=1200, held_out=100, below=0.9)
    model, _ = find_continuing(f"hf:{recipe.folder(print)}")
    tasks = {chain.prompt(task): task for task in chain.ChainEnvironment((3, 3), recipe.mod, operand=2).task_set("eval", 30)}
    ids = model.tokenizer.encode
    problems = [TokenProblem(task.id, tuple(ids(said)), {"prompt": said}) for said, task in tasks.items()]
    answer = tuple(ids("answer"))  # the answer follows this word; the text before it is the thinking
    thinking = Thinking(model, model.tokenizer, Marks((), answer, answer), Sampling(max_tokens=40), Sampling(max_tokens=2))
    right = lambda prompt, said: chain.check(tasks[prompt], f"answer {said}").right  # noqa: E731
    return Sampler(model), thinking, Jury([FunctionJudge(right, ("prompt", "answer"))]), problems


async def main(sampler, thinking, jury, problems):
    about = StudySource(sampler.identity.name, sampler.identity.weights)
    with Study.begin(Path(tempfile.mkdtemp()), StudyConfig(k=6), problems, about) as study:
        await rollout(study, sampler, thinking, jury)
        await continuations(study, sampler, thinking, jury, ContinueConfig(m=2, n=8))
        if importlib.util.find_spec("sklearn"):
            probe_stage(study, sampler.model, thinking, ProbeConfig())
        print(build(study))


if __name__ == "__main__":
    wait_for(main(*(mine(*sys.argv[1:]) if sys.argv[1:] else small())))
