"""Which tokens of a step were forks: another token there would have led elsewhere.

Source: Bigelow, Holtzman, Tanaka, Ullman, "Forking Paths in Neural Text Generation" (arXiv 2412.07961), who force each likely
other token at every position and sample on. Here few are screened, and what is named is confirmed on samples of its own.
:mod:`ramify.jobs.tokens.search` screens and confirms, :mod:`ramify.jobs.tokens.ask` does this to a step of a run.
"""
