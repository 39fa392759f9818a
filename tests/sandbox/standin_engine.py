#!/usr/bin/python3
"""A stand-in for the docker client where no engine runs: understands exactly the words `DockerSandbox` says, and runs them with
unshare and nsenter. It shows that the words fit together (files, limits of output and time, sessions,
clean-up), not that docker isolates.

State: a file per container in $STANDIN. Needs root.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

STATE = Path(os.environ["STANDIN"])
ALONE = {"--interactive", "--rm", "--init", "--read-only"}
AS_NOBODY = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--no-new-privs"]


def options(words: list[str]) -> tuple[list[tuple[str, str]], list[str]]:
    found = []
    while words and words[0].startswith("--"):
        name = words.pop(0)
        found.append((name, "" if name in ALONE else words.pop(0)))
    return found, words


def build(root: str, given: list[tuple[str, str]]) -> str:
    """Shell lines that make the container's root below ``root``."""
    lines = [
        "set -e",
        f"mount -t tmpfs root {root}",
        f"cd {root}",
        "mkdir -p usr etc proc dev tmp box/work",
        "mount --rbind /usr usr",
    ]
    for top in ("bin", "sbin", "lib", "lib64"):
        lines.append(
            f"if [ -h /{top} ]; then cp -P /{top} {top}; elif [ -d /{top} ]; then mkdir {top}; mount --rbind /{top} {top}; fi"
        )
    lines += [
        "mount -t proc proc proc",
        "touch dev/null dev/urandom",
        "mount --bind /dev/null dev/null",
        "mount --bind /dev/urandom dev/urandom",
    ]
    for name, value in given:
        if name == "--tmpfs":
            target, _, settings = value.partition(":")
            kept = ",".join(word for word in settings.split(",") if word != "rw")
            lines += [f"mkdir -p .{target}", f"mount -t tmpfs -o {kept} tmp .{target}"]
        elif name == "--mount":
            parts = dict(word.partition("=")[::2] for word in value.split(","))
            source, target = parts["source"], parts["target"]
            lines += [
                f"mkdir -p .{target}; [ -d {source} ] || {{ rmdir .{target}; touch .{target}; }}",
                f"mount --bind {source} .{target}",
            ]
    return "\n".join(lines)


def run(words: list[str]) -> None:
    given, (_image, *argv) = options(words)
    name = dict(given)["--name"]
    root = STATE / f"{name}.root"
    root.mkdir()
    script = build(str(root), given) + f"\nexec chroot {root} {' '.join(AS_NOBODY)} {' '.join(argv)}"
    box = ["unshare", "--mount", "--pid", "--net", "--ipc", "--fork", "--kill-child", "sh", "-c", script]
    with subprocess.Popen(box) as child:
        children = Path(f"/proc/{child.pid}/task/{child.pid}/children")
        while not (inner := children.read_text().split()):
            pass
        (STATE / f"{name}.pid").write_text(inner[0])
        child.wait()
    (STATE / f"{name}.pid").unlink()
    root.rmdir()


def execute(words: list[str]) -> None:
    given, (name, *argv) = options(words)
    pid = (STATE / f"{name}.pid").read_text()
    env = ["PATH=/usr/local/bin:/usr/bin:/bin", *(value for option, value in given if option == "--env")]
    inner = [*AS_NOBODY, "env", "-i", f"--chdir={dict(given)['--workdir']}", *env, *argv]
    enter = ["nsenter", "--target", pid, "--mount", "--pid", "--net", "--ipc", "--root", "--wd"]
    code = subprocess.run([*enter, *inner]).returncode
    sys.exit(code if code >= 0 else 128 - code)


def main(verb: str, *words: str) -> None:
    if verb == "version":
        print("stand-in")
    elif verb == "image":
        sys.exit(words[1] != "present")
    elif verb == "run":
        run(list(words))
    elif verb == "exec":
        execute(list(words))
    elif verb == "kill":
        if (file := STATE / f"{words[0]}.pid").exists():
            os.kill(int(file.read_text()), signal.SIGKILL)
    else:
        sys.exit(f"the stand-in does not know '{verb}'")


if __name__ == "__main__":
    main(*sys.argv[1:])
