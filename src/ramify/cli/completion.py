"""``ramify completion``: the script that completes verbs and options in a shell."""

from __future__ import annotations

from typing import Annotated, Literal

from ramify.kit import Json, Verbs, argument
from ramify.render.terminal import emit

app = Verbs("completion")


@app.itself()
def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], argument("SHELL", help="bash, zsh or fish.")],
    as_json: Json = False,
) -> None:
    """Print the completion script of a shell. With bash:
    `ramify completion bash > ~/.local/share/bash-completion/completions/ramify`."""
    from ramify.cli.main import command_line

    script = command_line().generate_completion(shell=shell)
    emit({"shell": shell, "script": script}, as_json, script)
