"""Which parts of what an agent was shown caused a step.

:mod:`ramify.jobs.context.parts` takes the prompt apart and leaves parts out of it, :mod:`ramify.jobs.context.screen` says which
causes the samples so far speak for and what to leave out next, :mod:`ramify.jobs.context.search` screens and confirms, and
:mod:`ramify.jobs.context.ask` does this to a step of a run.
"""
