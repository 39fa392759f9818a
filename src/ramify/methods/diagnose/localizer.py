"""From a repository and an issue to a case file, with any model or with rules; and case files against gold patches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ramify.base.errors import UserError
from ramify.base.ids import stable_hash
from ramify.base.waiting import wait_for
from ramify.methods.diagnose.algorithm import PRIOR, RULES, InjectionGate, LocalizeConfig, Span, gold_spans, scores
from ramify.methods.diagnose.case import BugSearch, CaseFile
from ramify.methods.diagnose.loop import driven, played
from ramify.methods.diagnose.policy import NAME, RulePolicy, Weights
from ramify.methods.diagnose.results import LocationScores, summary
from ramify.methods.diagnose.signals import picks_same, rival_messages, rivals, signals_of
from ramify.methods.diagnose.snapshot import Snapshot
from ramify.methods.diagnose.tools import RepoTools
from ramify.model.chat import ChatTemplate
from ramify.model.protocol import Model, Sampling
from ramify.rollout.compact import reply
from ramify.rollout.sampler import Sampler
from ramify.trace.message import Message

BY_RULES = "rules (no model: a policy that matches words, calls and siblings)"


class Localizer:
    """Localizes issues with ``model`` (a :class:`ramify.model.protocol.Model`), or with rules where it is None.

    ``samples`` independent localizations are made of each issue; with more than one, or a model, the findings get a
    confidence from the signals of section 3.8 and ``gate``. The first localization is the one that is kept.
    """

    def __init__(
        self, model: Model | None = None, template: ChatTemplate | None = None, config: LocalizeConfig | None = None,
        samples: int = 1, gate: InjectionGate | None = None
    ) -> None:  # fmt: skip
        if samples < 1:
            raise UserError("at least one localization is made of an issue")
        self.model, self.template, self.config, self.samples = model, template, config or LocalizeConfig(), samples
        self.gate = gate or InjectionGate.default(prior=RULES if model is None else PRIOR)

    @property
    def by(self) -> str:
        """Who localizes."""
        return BY_RULES if self.model is None else self.model.identity.name

    def key(self, snapshot: Snapshot, issue: str) -> str:
        """Stable hash of all that decides a localization."""
        who = NAME if self.model is None else stable_hash(self.model.identity.name, self.model.identity.weights)
        return stable_hash(snapshot.digest, issue, who, self.config.model_dump_json(), self.samples)

    def run(
        self, repo: str | Path | Snapshot, issue: str, issue_id: str = "", progress: Callable[[int], object] = lambda turn: None
    ) -> CaseFile:
        """The case file of one issue. Raises UserError on an empty issue or a repository that cannot be read."""
        return self.traced(repo, issue, issue_id, progress)[0]

    def traced(
        self, repo: str | Path | Snapshot, issue: str, issue_id: str = "", progress: Callable[[int], object] = lambda turn: None
    ) -> tuple[CaseFile, list[Message]]:
        """:meth:`run`, with the conversation."""
        if not issue.strip():
            raise UserError("the issue is empty: say in a sentence what goes wrong")
        tools = RepoTools(repo if isinstance(repo, Snapshot) else Snapshot.open(repo), self.config.without)
        made, rival = (
            wait_for(self._by_model(tools, issue, issue_id, progress))
            if self.model is not None
            else self._by_rules(tools, issue, issue_id)
        )
        (case, history), others = made[0], [one for one, _ in made[1:]]
        signals = signals_of(case, tools, others, None, rival)
        if signals and (
            self.model is not None or self.samples > 1
        ):  # of one look, rules know nothing that tells right from wrong
            q = self.gate.probability(signals)
            case = replace(case, findings=tuple(replace(one, confidence=q) for one in case.findings))
        weights = "" if self.model is None else self.model.identity.weights
        meta = replace(case.meta, by=self.by, weights=weights, signals=signals, skipped=len(tools.snapshot.skipped))
        missing = [
            path
            for path in sorted(set(_named_files(issue)))
            if not any(one == path or one.endswith("/" + path) for one in tools.snapshot.paths)
        ]
        notes = [f"the issue names {path}, which is not in the repository" for path in missing[:5]]
        return replace(case, meta=meta, caveats=(*case.caveats, *notes)), history

    def _by_rules(self, tools: RepoTools, issue: str, issue_id: str) -> tuple[list[tuple[CaseFile, list[Message]]], bool | None]:
        made = [played(tools, issue, RulePolicy(Weights(), seed), self.config, issue_id) for seed in range(self.samples)]
        return made, rivals(made[0][0], tools, RulePolicy()) if self.samples > 1 else None

    async def _by_model(
        self, tools: RepoTools, issue: str, issue_id: str, progress: Callable[[int], object]
    ) -> tuple[list[tuple[CaseFile, list[Message]]], bool | None]:
        assert self.model is not None
        sampler = Sampler(self.model, self.config.seed)
        made = [
            await driven(tools, issue, sampler, self.template, self.config, issue_id, at, progress) for at in range(self.samples)
        ]
        if self.samples == 1 or not made[0][0].findings:
            return made, None
        settings = Sampling(self.config.temperature, top_p=self.config.top_p, max_tokens=self.config.max_tokens)
        text, _ = await reply(
            sampler,
            self.template,
            rival_messages(made[0][0], tools),
            settings,
            ("diagnose", "rivals", stable_hash(issue)),
            0,
            "rivals",
        )
        return made, picks_same(made[0][0], Message("assistant", text))


def _named_files(issue: str) -> tuple[str, ...]:
    from ramify.methods.diagnose.policy import named

    return named(issue).paths


def evaluate(cases: Sequence[CaseFile], gold: Mapping[str, str | Sequence[Span]]) -> LocationScores:
    """Every metric of section 3.6 over ``cases``; ``gold``: issue id -> a patch, or the spans that it changes.

    Issues without a case file count as answered with nothing, and so do failed ones. Raises UserError where a case has no gold.
    """
    known = {case.issue_id: case for case in cases}
    for name in known:
        if name not in gold:
            raise UserError(f"there is no gold patch for the issue '{name}'")
    rows, metas, repos = [], [], []
    for name, given in gold.items():
        spans = gold_spans(given) if isinstance(given, str) else [(str(f), int(a), int(b)) for f, a, b in given]
        if not spans:
            continue  # a patch of new files alone has no place in the version before it
        case = known.get(name)
        rows.append(scores(case.locations if case else [], spans))
        metas.append(case.meta if case else BugSearch())
        repos.append(case.repo if case else "")
    return replace(summary(rows, metas, repos), missing=len(set(gold) - set(known)))
