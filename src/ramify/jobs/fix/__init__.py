"""Which edit of what an agent is shown makes it better.

:mod:`ramify.jobs.fix.candidates` says what a candidate is, :mod:`ramify.jobs.fix.propose` makes some,
:mod:`ramify.jobs.fix.ask` screens and confirms them, :mod:`ramify.jobs.fix.answer` says what came of it.
"""
