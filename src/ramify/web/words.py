"""The words of the pages, each with what it means."""

WORDS = {
    "run": "A folder with everything that one command made: attempts, scores, and what other commands found in them.",
    "task": "What the agent is asked to do. A task set is a sorted set of them.",
    "attempt": "One try at a task, from its start to its end. It succeeds, fails, or is cut off by a limit.",
    "tree": "All attempts at one task. Equal beginnings are one branch, so that what differs is seen.",
    "node": "One message of a tree, or the piece of one that was sampled or inserted at once. Commands name it by its id.",
    "step": "One reply of the agent, with what the environment answered.",
    "fork": "To go back to a step or a token, change one thing or nothing, and sample on from there, beside a control.",
    "success": "The share of attempts that succeeded. Attempts that an infrastructure failure ended are not counted.",
    "95 % interval": "Where the true share lies, 19 times in 20. Wide means that there are few attempts.",
    "chance, beyond chance": "A difference that chance alone makes rarely, after counting how many were looked at.",
    "potential": "The chance of success from a position on, measured by forks of it.",
    "credit": "How much one step changed the chance of success, as a number for each step or token.",
    "finding": "What a method concluded, where, and why. It is stored in the run.",
    "context": "What the agent was shown when it took a step.",
    "part, cause": "A piece of the context; a part whose change changes the step beyond chance is a cause of it.",
    "edit": "A change of what the agent is shown: a rule, an inserted message, a file.",
    "screen, confirm": "An edit is tried at the step first, then in whole attempts at tasks that the screening never saw.",
    "reliability": "How often all of k attempts at one task succeed, and how often two attempts end differently.",
    "environment": "What the agent acts in: it answers its steps and says how an attempt ended.",
    "scorer": "Who says whether an attempt succeeded: the environment, an imported reward, or a judge.",
    "token": "A piece of text as the model reads and writes it; what models are paid by.",
    "finished, stopped, running, damaged": "A run is done; it was begun and can be continued; a process writes to it now; "
    "it cannot be read.",
}
