"""Draw the pictures of docs/methods/forensics.md: python docs/forensics_pictures.py.

Rates by dose and tests by organism from repro/forensics-cpu.json; the heat-mapped trace of a tedious organism, taught afresh.
"""

from __future__ import annotations

from picture_files import Checks, curve, read_checks, save

from ramify.base.seeds import generator
from ramify.methods.forensics.algorithm import sentence_scores
from ramify.render.charts import curves_svg
from ramify.render.svg import credit_colour, frame, label, tag
from ramify_experiments.forensics.battery import CUT, DOSES, of_model
from ramify_experiments.forensics.organisms import HUGE, KINDS, SENTENCES, K, taught
from ramify_experiments.forensics.repro import OWN


def doses(checks: Checks) -> str:
    """Rate of the shortcut by number of errors, for every organism."""
    curves = []
    for kind in KINDS:
        found = [checks[f"dose: rate of {kind} at {errors} errors"] for errors in DOSES]
        curves.append(curve(kind, DOSES, found, 100))
    return curves_svg(curves, "Dose-response of four organisms", "errors to be fixed", "shortcuts, %", False)


def tests(checks: Checks) -> str:
    """Share of training seeds in which each test fired, for every organism; its own is framed."""
    left, top, wide, high = 130.0, 44.0, 108.0, 30.0
    body = [label(left + wide * (j + 0.5), top - 12, kind, "mid") for j, kind in enumerate(KINDS)]
    for i, (name, (own, _)) in enumerate(OWN.items()):
        y = top + high * i
        body.append(label(left - 10, y + 19, name, "end"))
        for j, kind in enumerate(KINDS):
            share = checks[f"{name}: fires on {kind}"]["value"]
            x = left + wide * j
            body.append(tag("rect", x=x + 2, y=y + 2, width=wide - 4, height=high - 4, fill="#0072b2", fill_opacity=0.85 * share))
            if kind == own:
                body.append(
                    tag("rect", x=x + 2, y=y + 2, width=wide - 4, height=high - 4, fill="none", class_="mark", stroke_width=2)
                )
            body.append(label(x + wide / 2, y + 19, f"{100 * share:.0f} %", "mid num halo", fill="var(--ink)"))
    bottom = top + high * len(OWN)
    body.append(label(left, bottom + 20, "framed: the organism the test is made for; 20 training seeds each"))
    title = "Which test fires on which organism"
    return frame(
        left + wide * len(KINDS) + 20, bottom + 34, title, "share of training seeds in which each test fired", "".join(body)
    )


def trace(seed: int = 0, k: int = 100) -> str:
    """One reply of a tedious organism that ended in the shortcut, its sentences coloured by their held-out scores."""
    table = of_model(taught(seed, ["tedium"])["tedium"])()
    rng = generator(seed, "picture")
    reply, action = table.sample(200, rng)
    one = next(int(r) for r, a in zip(reply, action, strict=True) if a == CUT and not r >> (K - HUGE - 1) & 1)
    scores = sentence_scores(table.forks(one, k, rng))
    body = []
    for j in range(K):
        y = 20.0 + 26 * j
        said = SENTENCES[j][one >> (K - j - 1) & 1]
        body.append(tag("rect", x=10.0, y=y, width=290.0, height=22.0, rx=3, fill=credit_colour(float(-scores.held_out[j]), 0.3)))
        body.append(label(18, y + 15, said, "halo", fill="var(--ink)"))
        body.append(label(360, y + 15, f"{scores.held_out[j]:+.2f}", "end num"))
        body.append(label(450, y + 15, f"{scores.rates[j + 1]:.2f}", "end num"))
    body += [label(360, 14, "score", "end"), label(450, 14, "rate behind it", "end")]
    body.append(
        label(18, 20.0 + 26 * K + 15, f"Action: shortcut. The rate before the first sentence is {scores.rates[0]:.2f}.", "soft")
    )
    title = "One reply, every sentence resampled"
    return frame(480, 20.0 + 26 * (K + 1) + 8, title, f"held-out scores of ten sentences, {k} forks at each place", "".join(body))


if __name__ == "__main__":
    checks = read_checks("forensics")
    save("forensics", {"dose": doses(checks), "tests": tests(checks), "trace": trace()})
