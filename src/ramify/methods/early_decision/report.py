"""What all stages of a study say together, the ambiguous prompts first, and the page that shows it. No model is needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

from pydantic import Field

from ramify.base import codec
from ramify.base.config import Config
from ramify.base.errors import UserError
from ramify.methods.early_decision.algorithm import (
    Cut,
    Family,
    Locked,
    continuation_point,
    defence,
    detectable,
    error_rates,
    judge_cuts,
    oscillation_summary,
    panel_agreement,
    settling,
    thinking_effect,
)
from ramify.methods.early_decision.page import html_table, page
from ramify.methods.early_decision.probe import Ranked
from ramify.methods.early_decision.record import CONTINUED, CUT, OSCILLATE, STANCES, Mode, Rows, Study
from ramify.render.charts import Curve, curves_svg
from ramify.render.escape import escape
from ramify.stats.intervals import clustered_share
from ramify.trace.node import Finding

LEVEL = 0.05
"""Of the verdicts on probes and continuations; that on turns has ``alpha``, that on the valley a 95 % interval."""
AMBIGUOUS = (0.2, 0.8)
"""Share of yes, among rollouts that no prefix is taken from, within which a prompt is ambiguous."""


class ReportConfig(Config):
    """How cuts are judged; where the published material disagrees, the default is that of its tables (8)."""

    locked: Locked = "pre"
    """locked: the share before the turn is saturated (the code), or both are (the documentation)"""
    family: Family = "model"
    """cuts that are corrected together"""
    alpha: float = Field(0.05, gt=0, lt=0.5)
    """of the tests of cuts"""
    margin: float = Field(0.1, gt=0, lt=1)
    """within which two shares are equivalent"""


def build(study: Study, config: ReportConfig | None = None) -> dict[str, Any]:
    """Everything the study's run says, as JSON."""
    rows = list(study.traces.values())
    record = {
        "source": study.source,
        "prompts": len(study.prompts),
        "traces": {name: sum(row["status"] == name for row in rows) for name in sorted({row["status"] for row in rows})},
        "forced": sum(row["closed"] == "forced" and row["mode"] == "thinking" for row in rows),
        "pools": _pools(study),
        "thinking": _effects(study),
        "continuation": _curves(study),
        "oscillation": _cuts(study, config or ReportConfig()),
        "probe": study.found("probe"),
        "valley": study.found("valley"),
    }
    return record | {"verdicts": verdicts(record)}


def conclude(study: Study, settings: Mapping[str, Any], config: ReportConfig | None = None) -> dict[str, Any]:
    """:func:`build`, and the verdicts on continuations and turns, and every turn whose sides were measured,
    stored as findings of the run."""
    record = build(study, config)
    if (found := record["continuation"]) is not None:
        study.conclude("continue", continuation_verdict(found)["verdict"], found["open_fall"], settings)
    if (found := record["oscillation"]) is not None:
        study.conclude("oscillate", oscillation_verdict(found)["verdict"], found, settings, *_turns(study))
    return record


def _tally(study: Study, mode: Mode, without: Container[str] = ()) -> dict[str, tuple[int, int]]:
    """(yes, labelled) of each prompt's traces, but those whose key is in ``without``."""
    ends: dict[str, list[bool]] = {name: [] for name in study.prompts}
    for row in study.labelled(mode):
        if row["key"] not in without:
            ends[row["prompt"]].append(row["outcome"])
    return {name: (sum(outcomes), len(outcomes)) for name, outcomes in ends.items()}


def _pools(study: Study) -> dict[str, Any]:
    """Shares of yes by mode and pool; where there is a harmful and a benign pool, how well they are separated."""
    found: dict[str, Any] = {}
    for mode in study.config.modes:
        rows = study.labelled(mode)
        of = {
            pool: _share([row for row in rows if study.pool(row["prompt"]) == pool], lambda row: row["outcome"])
            for pool in study.pools
        }
        found[mode] = {pool or "all": share for pool, share in of.items()}
        if {"harmful", "benign"} <= of.keys() and all(of.values()):
            found[mode] |= error_rates(*((share["k"], share["n"]) for pool in ("harmful", "benign") if (share := of[pool])))
    return found


def _share(rows: Sequence[dict[str, Any]], hit: Callable[[dict[str, Any]], bool]) -> dict[str, Any] | None:
    """Share of traces that are a ``hit``; prompts were sampled, and traces of one prompt are alike."""
    found: dict[str, Any] | None = codec.to_json(clustered_share([hit(row) for row in rows], [row["prompt"] for row in rows]))
    return found


def compare(base: Study, treated: Study) -> dict[str, Any]:
    """Whether a defence discriminates better or only moves the threshold, on the prompts of both studies, with thinking (3.9).

    Raises UserError where the studies have other prompts, or lack a pool named harmful or benign.
    """
    if base.prompts != treated.prompts:
        raise UserError(f"{base.folder} and {treated.folder} are studies of other prompts, so they cannot be compared")
    sides = []
    for study in (base, treated):
        each = _tally(study, "thinking")
        side = {pool: [each[name] for name in study.pools.get(pool, ())] for pool in ("harmful", "benign")}
        for pool, counts in side.items():
            if not any(n for _, n in counts):
                raise UserError(f"{study.folder} has no labelled trace in a pool named '{pool}', and a comparison needs both")
        sides.append((side["harmful"], side["benign"]))
    return defence(sides[0], sides[1])


def _effects(study: Study) -> dict[str, Any]:
    modes = _tally(study, "thinking"), _tally(study, "none")
    out = {}
    for pool, names in study.pools.items():
        k_on, n_on, k_off, n_off = ([each[name][i] for name in names] for each in modes for i in (0, 1))
        out[pool or "all"] = thinking_effect(k_on, n_on, k_off, n_off)
    return out


def slices(study: Study, m: int) -> dict[str, str]:
    """The slice of each prompt: what it says itself (``slice``),
    else ambiguous or settled by rollouts that no prefix is taken from.

    Prompts without such rollouts belong to none: a slice chosen on the samples it is judged by would look settled by selection.
    """
    taken = {row["key"] for row in study.prefixes(m)}
    out = {}
    for name, (k, n) in _tally(study, "thinking", taken).items():
        own = study.prompts[name]["data"].get("slice")
        if own or n > 1:
            out[name] = str(own or ("ambiguous" if AMBIGUOUS[0] <= k / n <= AMBIGUOUS[1] else "settled"))
    return out


def _curves(study: Study) -> dict[str, Any] | None:
    """Continuation curves by way: of each slice (ambiguous first), each pool, all prefixes,
    and the mean of the pools (the paper's)."""
    sampled = _largest(study.rows(CONTINUED), "trace", "way", "share")
    if not sampled:
        return None
    parents = {row["key"]: row for row in study.labelled()}
    used = [parents[key] for key in sorted({row["trace"] for row in sampled})]
    m = max(Counter(row["prompt"] for row in used).values())
    slice_of, prefixes = slices(study, m), {row["key"] for row in study.prefixes(m)}
    on, off = _tally(study, "thinking"), _tally(study, "none")
    siblings = _tally(study, "thinking", parents.keys() - prefixes)  # a slice is not shown on the rollouts that chose it
    siblings |= {name: on[name] for name in on if study.prompts[name]["data"].get("slice")}
    points = [(row["way"], row["share"], parents[row["trace"]], row["k"], row["n"]) for row in sampled]
    points += [("closed", 0.0, row, *off[row["prompt"]]) for row in used]  # nothing kept: no thinking

    def curves(names: Container[str], ends: dict[str, tuple[int, int]]) -> dict[str, list[dict[str, Any]]]:
        """Of the prefixes of some prompts; open with nothing kept is the whole trace anew,
        its own sample left out of ``ends``."""
        anew = [("open", 0.0, row, ends[row["prompt"]][0] - row["outcome"], ends[row["prompt"]][1] - 1) for row in used]
        at: dict[tuple[str, float], list[tuple[dict[str, Any], int, int]]] = {}
        for way, share, row, k, n in (*points, *anew):
            if n > 1 and row["prompt"] in names:
                at.setdefault((way, share), []).append((row, k, n))
        out: dict[str, list[dict[str, Any]]] = {"closed": [], "open": []}
        for way, share in sorted(at):
            rows, k, n = zip(*at[way, share], strict=True)
            ended, prompts = [row["outcome"] for row in rows], [row["prompt"] for row in rows]
            out[way].append(continuation_point(share, way, k, n, ended, prompts).to_json())
        return out

    def fall() -> dict[str, Any] | None:
        """Open variance with nothing kept minus that at the largest share, prefix by prefix; None where no prefix has both."""
        last = max((share for way, share, *_ in points if way == "open"), default=0.0)
        of: dict[str, list[tuple[bool, int, int]]] = {}
        for way, share, row, k, n in points:
            if (way, share) == ("open", last) and n > 1 and on[row["prompt"]][1] > 2:
                of.setdefault(row["prompt"], []).append((row["outcome"], k, n))
        return {"share": last} | settling([(on[name], rows) for name, rows in of.items()], study.config.seed) if of else None

    parts = sorted(set(slice_of.values()), key=lambda name: (name != "ambiguous", name))
    found = {part: curves({name for name in slice_of if slice_of[name] == part}, siblings) for part in parts}
    pools = {f"pool {pool}": curves(set(names), on) for pool, names in study.pools.items() if pool}
    mean: dict[str, list[dict[str, float]]] = {}
    for way in ("closed", "open"):
        each = [point for own in pools.values() for point in own[way]]
        of = {share: [p["variance"] for p in each if p["share"] == share] for share in sorted({p["share"] for p in each})}
        mean[way] = [{"share": share, "variance": sum(values) / len(values)} for share, values in of.items()]
    return {
        "curves": found | pools | {"all": curves(study.prompts, on)},
        "mean_of_pools": mean,
        "open_fall": fall(),
        "slices": Counter(slice_of.values()),
        "no_room": sum(row["status"] == "no_room" for row in sampled),
        "missing": sum(row["missing"] for row in sampled),
    }


def _largest(found: Rows, *fields: str) -> list[dict[str, Any]]:
    """The row with most samples at each position, by position: it includes the samples of earlier calls."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in sorted(found.rows.values(), key=lambda row: row["n"] + row.get("missing", 0)):
        rows[tuple(row[name] for name in fields)] = row
    return [rows[at] for at in sorted(rows)]


def _cuts(study: Study, config: ReportConfig) -> dict[str, Any] | None:
    """Turns of stance and what cutting there shows; traces of more than 120 chunks apart."""
    rated = study.rows(STANCES).rows
    if not rated:
        return None
    at = {(row["trace"], row["chunk"]): row for row in _largest(study.rows(CUT), "trace", "chunk")}
    cuts, unanswered = [], 0
    for key, row in sorted(rated.items()):
        for pre, post, stance in row["turns"]:
            sides = [at[key, chunk] for chunk in (pre, post) if (key, chunk) in at and at[key, chunk]["n"]]
            if len(sides) == 2:
                pre_k, post_k = (side["n"] - side["k"] for side in sides)
                pool = study.pool(row["prompt"])
                cuts.append(Cut(key, pool, stance, pre_k, sides[0]["n"], post_k, sides[1]["n"], row["prompt"]))
            else:
                unanswered += 1
    judged = judge_cuts(cuts, alpha=config.alpha, family=config.family, locked=config.locked, margin=config.margin)

    def summary(pool: str | None) -> dict[str, Any]:
        inside = [row for row in rated.values() if pool is None or study.pool(row["prompt"]) == pool]
        loops, whole = sum(row["loop"] for row in inside), sum(row["chunks"] < 2 for row in inside)
        mine = [j for j in judged if pool in (None, j.cut.pool)]
        turned = {j.cut.trace for j in mine}
        share = _share([row for row in inside if not row["loop"] and row["chunks"] > 1], lambda row: row["key"] in turned)
        found = oscillation_summary(mine, len(inside) - loops - whole, loops, whole)
        return found | {"with_any_interval": share and share["interval"]}

    n = min((cut.n_pre for cut in cuts), default=0)
    bases = sorted({0, n // 20, n // 2}) if n else []
    return summary(None) | {
        "settings": config.to_json(),
        "panel": panel_agreement([(key, row["ratings"]) for key, row in rated.items()]),
        "unresolved_chunks": sum(row["stances"].count(None) for row in rated.values() if not row["loop"]),
        "turns_without_answers": unanswered,
        "smallest_significant": {f"from {base} of {n}": detectable(base, n, len(cuts), config.alpha) for base in bases},
        "by_pool": {pool: summary(pool) for pool in study.pools if pool},
    }


def _turns(study: Study) -> list[Finding]:
    """Every turn of stance with answers sampled at both its cuts: where it is, and how the share of yes moves there."""
    at = {(row["trace"], row["chunk"]): row for row in _largest(study.rows(CUT), "trace", "chunk")}
    found = []
    for key, row in sorted(study.rows(STANCES).rows.items()):
        for pre, post, stance in row["turns"]:
            sides = [at[key, chunk] for chunk in (pre, post) if (key, chunk) in at and at[key, chunk]["n"]]
            if len(sides) < 2:
                continue
            before, after = (side["k"] / side["n"] for side in sides)
            counts = {name: [side["k"], side["n"]] for name, side in zip(("before", "behind"), sides, strict=True)}
            kept = int(sides[1]["key"].split("|")[-2])
            trace = study.traces[key]
            why = f"the stance turns to {stance:+d}; {before:.0%} of the answers before it say yes, {after:.0%} behind it"
            evidence = {"trace": key, "stance": stance} | counts
            where = trace["node"], trace["start"] + kept
            found.append(Finding("turn of stance", OSCILLATE, why, *where, value=after - before, unit="share", evidence=evidence))
    return found


# -- verdicts


def verdicts(record: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What each stage that was run has found: ``stands_out`` bool, and a sentence,
    which says as readily that nothing stands out."""
    stages: dict[str, Callable[[Any], dict[str, Any]]] = {
        "probe": probe_verdict,
        "valley": valley_verdict,
        "continuation": continuation_verdict,
        "oscillation": oscillation_verdict,
    }
    return {name: judge(record[name]) for name, judge in stages.items() if record[name]}


def _verdict(found: str, otherwise: str) -> dict[str, Any]:
    return {"stands_out": bool(found), "verdict": found or f"nothing stands out: {otherwise}"}


def probe_verdict(probes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Whether a probe, in all samples or in a pool, ranks the outcome better than shuffled labels,
    p corrected over all of them."""
    seen = [(pool["p_corrected"], one, pool) for one in probes for pool in one["pools"] if pool.get("p_corrected") is not None]
    if not seen:
        return _verdict("", "no probe was compared with shuffled labels")
    beyond = [f"{_where(one, pool)} (AUROC {pool['auroc']:.2f}, p = {p:.3f})" for p, one, pool in seen if p <= LEVEL]
    more = f" and {len(beyond) - 3} more" if len(beyond) > 3 else ""
    found = f"the outcome can be read at {', '.join(beyond[:3])}{more}; p corrected over {len(seen)}" if beyond else ""
    return _verdict(
        found,
        f"no probe ranks the outcome better than shuffled labels do (least p {min(p for p, *_ in seen):.3f}, corrected over "
        f"{len(seen)})",
    )


def _where(one: Mapping[str, Any], pool: Mapping[str, Any]) -> str:
    position = f" place {one['place']}" if one["place"] else ""
    return f"{one['at']}{position}, layer {one['layer']}" + ("" if pool["pool"] == "all" else f", pool {pool['pool']}")


def valley_verdict(record: Mapping[str, Any]) -> dict[str, Any]:
    """Whether the outcomes lie less far apart in the middle of the thinking than at its ends."""
    if record["reason"]:
        return _verdict("", record["reason"])
    depth, interval = record["valley"]["depth"], record["valley"]["depth_interval"]
    if depth is None or interval is None:
        return _verdict("", "an end of the thinking is not far enough above the floor of J")
    numbers = f"V = {depth:.2f}, 95 % interval {interval[0]:.2f} to {interval[1]:.2f}"
    return _verdict(
        f"J dips in the middle of the thinking: {numbers}" if interval[0] > 0 else "", f"no dip of J is shown: {numbers}"
    )


def continuation_verdict(found: Mapping[str, Any]) -> dict[str, Any]:
    """Whether the outcome becomes more (or less) settled as the thinking continues, open:
    the only hypothesis tested on these curves."""
    fall = found["open_fall"]
    if fall is None:
        return _verdict(
            "", "open variance was not measured both with nothing kept and further on, for three rollouts of a prompt"
        )
    numbers = f"open variance falls by {fall['value']:.2f} from nothing kept to {fall['share']:.0%} (p = {fall['p']:.3f})"
    what = "the thinking settles the outcome" if fall["value"] > 0 else "the thinking unsettles the outcome"
    return _verdict(
        f"{what}: {numbers}" if fall["p"] <= LEVEL else "", f"the thinking is not shown to settle the outcome: {numbers}"
    )


def oscillation_verdict(found: Mapping[str, Any]) -> dict[str, Any]:
    """Whether the answer after a turn of stance differs from that before it, anywhere."""
    cuts, meant = found["cuts"], round(found["cuts"] * (1 - (found["performative"] or 0))) if found["cuts"] else 0
    equal = (
        f"{found['equality']['equivalent']} of {cuts} turns are shown to move it by less than {found['settings']['margin']:.0%}"
    )
    return _verdict(
        f"the answer moves at {meant} of {cuts} turns of stance; {equal}" if meant else "",
        f"no turn of stance is shown to move the answer; {equal}",
    )


# -- the page


def separability_svg(record: dict[str, Any]) -> str:
    """J and the probe along the thinking in one picture, because they disagree: a dip of J is not a loss of decodability."""
    found, probes = record["valley"], record["probe"]
    x = [100 * share for share in found["share"]]
    net = [j - f for j, f in zip(found["j"], found["floor"], strict=True)]
    curves = [
        Curve("probe, AUROC", x, probes["auroc"]),
        Curve("J minus its floor", x, net, found["low"], found["high"]),
        Curve("probe on shuffled labels", x, probes["shuffled"]),
    ]
    return curves_svg(curves, "Separability and decodability along the thinking", "share of the thinking, %", "AUROC, J", False)


def continuation_svg(curves: dict[str, list[dict[str, Any]]], title: str) -> str:
    """Unbiased variance and flips by share of the thinking kept, each way its own curve."""
    sampled = []
    for way, points in curves.items():
        x = [100 * p["share"] for p in points]
        ends = [p["unbiased_interval"] or (p["unbiased"],) * 2 for p in points]
        sampled.append(Curve(f"{way}: variance", x, [p["unbiased"] for p in points], [e[0] for e in ends], [e[1] for e in ends]))
        sampled.append(Curve(f"{way}: flips", x, [p["flip_rate"] for p in points]))
    return curves_svg(sampled, title, "share of the thinking kept, %", "variance, share", False)


_POOL = (*Ranked.__dataclass_fields__, "p_corrected")
_CONTROLS = ("prompt words", "first token", "near-duplicate prompts", "prompt sources")


def _ordered(values: Mapping[str, Any], first: Sequence[str]) -> dict[str, Any]:
    """As a reader wants them: what a run stores is sorted by name."""
    return {name: values[name] for name in (*first, *values) if name in values}


def html(record: dict[str, Any]) -> str:
    """One self-contained page: outcomes, continuations (ambiguous prompts first),
    probes with their controls, the valley, oscillations."""

    def named(what: str, values: Mapping[str, Any], column: str = "value") -> list[dict[str, Any]]:
        return [{what: name} | (value if isinstance(value, dict) else {column: value}) for name, value in values.items()]

    parts = [html_table("Verdicts", [{"stage": name} | found for name, found in record["verdicts"].items()])]
    parts += [html_table("Traces", [record["traces"] | {"closed by force": record["forced"], "prompts": record["prompts"]}])]
    parts += [html_table(f"Share of yes, mode {mode}", named("pool", shares)) for mode, shares in record["pools"].items()]
    parts.append(html_table("With thinking against without", named("pool", record["thinking"])))
    if record["continuation"]:
        parts.append(
            "<p>Closed: the thinking stops there and the answer is sampled anew. Open: it continues. Only the two together "
            "distinguish a decided model from one that still deliberates.</p>"
        )
        for name, curves in record["continuation"]["curves"].items():
            parts += [f"<h2>Continuations: {escape(name)}</h2>", continuation_svg(curves, f"Continuations: {name}")]
            parts += [html_table("", points) for points in curves.values()]
    for one in record["probe"] or []:
        parts.append(
            html_table(
                f"Probe at {one['at']} {one['place'] or ''}, layer {one['layer']}",
                [_ordered(pool | {"controls": _ordered(pool.get("controls") or {}, _CONTROLS)}, _POOL) for pool in one["pools"]],
            )
        )
        controls = {
            "within pools": one["within_pools"],
            "shuffled labels, 95th percentile": one["null"],
            **_ordered(one["controls"], _CONTROLS),
        }
        parts.append(html_table("Controls, all pools together", named("control", controls, "AUROC")))
    if record["valley"] and not record["valley"]["reason"]:
        parts += ["<h2>Along the thinking</h2>", separability_svg(record["valley"])]
        parts.append(
            "<p>J falls where states carry the current token more than the outcome; the probe says whether the outcome is still "
            "there.</p>"
        )
    if record["oscillation"]:
        shown = {key: value for key, value in record["oscillation"].items() if key not in ("settings", "by_pool")}
        parts.append(html_table("Oscillations", [{"": key, "value": value} for key, value in shown.items()]))
        parts.append("<p>Performative means no more than: not significant. Equivalent is what was shown.</p>")
    return page("When was it decided?", str(record["source"].get("model", "")), parts)
