# mypy: ignore-errors
# ruff: noqa: D102, D103, SIM115
"""Runs in the sandbox only: starts one worker per build, alternates them, and reads their processor time from outside.

Standard library only. A worker holds untrusted code. It gets read-only inputs and one output region; which timed calls are kept
is drawn here after the batch is over, and results leave by this process's standard output,
which no worker can open (the process is not dumpable).
"""

import ctypes
import hashlib
import json
import mmap
import os
import random
import resource
import select
import signal
import struct
import subprocess
import sys
import time

POISON = struct.pack("<I", 0x7FC0DEAD)
BLOCK = 4096
"""Of an output of more than the plan's ``whole`` bytes only blocks of this size come back, drawn here."""


class Pools:
    """The inputs of the timed calls in one file, which workers map: between batches their blocks are put in another order, so an
    answer that was kept for an address, or for the first elements that lie there, is no longer right."""

    def __init__(self, draw):
        self.file = os.open("inputs", os.O_RDWR)
        self.turn = 0
        spans = [(one["in"], one["pool"], one["item"]) for one in draw["arrays"] if one["in"] >= 0 and one["windowed"]]
        self.pools = [(at, os.pread(self.file, size, at), item) for at, size, item in spans]

    def to(self, turn):
        """Put the blocks in the order of ``turn``; 0 is that of the beginning."""
        if turn != self.turn:
            for at, pool, item in self.pools:
                os.pwrite(self.file, turned(pool, item, turn), at)
            self.turn = turn


def turned(pool, item, turn):
    """As ramify.methods.kernel_search.task has it."""
    size = max(1, -(-len(pool) // item // 64)) * item
    blocks = [pool[at : at + size] for at in range(0, len(pool), size)]
    key = lambda i: hashlib.sha256(f"{turn} {i}".encode()).digest()  # noqa: E731
    order = sorted(range(len(blocks)), key=key) if turn else range(len(blocks))
    return b"".join(blocks[i] for i in order)


class WorkerGoneError(Exception):
    """A worker ended, or said something else."""


class WorkerProcess:
    """One build in a process of its own."""

    def __init__(self, plan, spec):
        self.name, self.plan = spec["name"], plan
        self.wide = self.name == "truth"
        size = max([draw["wide_bytes" if self.wide else "out_bytes"] for draw in plan["draws"]] + [1])
        self.path = f"out-{self.name}"
        with open(self.path, "wb") as file:
            file.truncate(size)
        self.file = open(self.path, "r+b")
        self.out = mmap.mmap(self.file.fileno(), size)
        self.log = open(f"log-{self.name}", "w+b")
        begun = time.monotonic()
        self.process = subprocess.Popen(
            [*spec["argv"], spec["build"], "inputs", self.path, str(plan["in_bytes"]), str(size)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, env={**os.environ, **spec.get("env", {})},
        )  # fmt: skip
        self.clock = ((~self.process.pid) << 3) | 2
        self.used, self.last, self.threads = 0.0, 0.0, 1
        self._buffer = b""
        self.answer(plan["start_seconds"], "while its code was loaded")
        self.started = time.monotonic() - begun
        self.last = self.cpu()

    def cpu(self):
        """Processor seconds of the process, all its threads together."""
        return time.clock_gettime(self.clock)

    def faults(self):
        """Page faults so far that read nothing from a disk."""
        with open(f"/proc/{self.process.pid}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[7])

    def children(self):
        """Processor seconds of the processes that it started and waited for: a compiler, for example."""
        with open(f"/proc/{self.process.pid}/stat") as file:
            return sum(map(int, file.read().rpartition(")")[2].split()[13:15])) / os.sysconf("SC_CLK_TCK")

    def answer(self, seconds, when):
        deadline = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0:
                raise WorkerGoneError(f"it ran past {seconds:g} s {when}")
            if select.select([self.process.stdout], [], [], left)[0]:
                data = os.read(self.process.stdout.fileno(), 4096)
                if not data:
                    raise WorkerGoneError(self.died(when))
                self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        if line != b"done":
            raise WorkerGoneError(f"{line[:300].decode(errors='replace')} {when}")

    def died(self, when):
        code = self.process.wait(5)
        self.log.seek(0)
        said = self.log.read(4000).decode(errors="replace").strip()
        if code < 0:
            name = signal.Signals(-code).name if -code in {s.value for s in signal.Signals} else str(-code)
            why = {
                "SIGSEGV": "it touched memory that is not its own (SIGSEGV)",
                "SIGILL": "this processor lacks an instruction (SIGILL)",
            }
            return f"{why.get(name, f'it died by {name}')} {when}"
        return f"it ended with code {code} {when}" + (f": {said[-600:]}" if said else "")

    def send(self, words):
        try:
            self.process.stdin.write((" ".join(map(str, words)) + "\n").encode())
            self.process.stdin.flush()
        except OSError:
            raise WorkerGoneError(self.died("between calls")) from None

    def layout(self, draw):
        words = ["layout", draw["windows"], draw["slots"]]
        for one in draw["arrays"]:
            out, stride = (one["wide"], 0) if self.wide else (one["out"], one["stride"])
            words += [one["in"], out, one["count"], stride, int(one["windowed"])]
        self.send([*words, *draw["scalars"]])
        self.answer(self.plan["call_seconds"], "when it was given a shape")

    def make(self, draw):
        """Let a problem's own code write inputs."""
        self.layout(draw)
        self.send(["make", draw["seed"], draw["make"]])
        self.answer(self.plan["start_seconds"], "when it made inputs")

    def poison(self, draw):
        self.out[: draw["out_bytes"]] = POISON * (draw["out_bytes"] // 4)

    def batch(self, draw, calls, seed, mode="run"):
        """Processor seconds of ``calls`` calls; raises WorkerGoneError on anything but their end."""
        self.poison(draw)
        self.send([mode, calls, seed])
        begun, before = time.monotonic(), self.last  # what it did since the last answer counts, too
        self.answer(self.plan["call_seconds"] + calls * 1e-3, f"in a batch of {calls} calls")
        ended, after = time.monotonic(), self.cpu()
        self.last = after
        self.used += after - before
        self.threads = max(self.threads, len(os.listdir(f"/proc/{self.process.pid}/task")))
        return ended - begun if self.plan["wall"] else after - before

    def canaries(self, draw):
        """Whether every byte of the output region that is not an output is as it was."""
        at = 0
        spans = sorted(
            (one["out"] + slot * one["stride"], one["bytes"])
            for one in draw["arrays"]
            if one["out"] >= 0
            for slot in range(draw["slots"])
        )
        for begin, size in [*spans, (draw["out_bytes"], 0)]:
            gap = self.out[at:begin]
            if gap != (POISON * (len(gap) // 4 + 2))[at % 4 : at % 4 + len(gap)]:
                return False
            at = begin + size
        return True

    def outputs(self, draw, slot, rng):
        """The outputs of one slot as (argument, offset, bytes): whole, or blocks of it chosen here."""
        for number, one in enumerate(draw["arrays"]):
            if one["out"] < 0:
                continue
            begin, size = one["out"] + slot * one["stride"], one["bytes"]
            if size <= self.plan["whole"]:
                yield number, 0, bytes(self.out[begin : begin + size])
                continue
            starts = {0, (size - BLOCK) // 8 * 8, *(rng.randrange((size - BLOCK) // 8) * 8 for _ in range(self.plan["blocks"]))}
            for start in sorted(starts):
                yield number, start, bytes(self.out[begin + start : begin + start + BLOCK])

    def close(self):
        self.process.kill()
        self.process.wait()


def main():
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # not dumpable: no worker opens its memory or its descriptors
    with open("plan.json", encoding="utf-8") as file:
        plan = json.load(file)
    os.unlink("plan.json")
    rng = random.SystemRandom()
    found = {
        "kept": [],
        "times": {},
        "failed": {},
        "calls": {},
        "threads": {},
        "used": {},
        "overhead": {},
        "varies": {},
        "faults": {},
    }
    body, workers = [], {}

    def keep(worker, draw, number, slot, seed, call, timed, turn=0):
        for argument, start, data in worker.outputs(draw, slot, rng):
            body.append(data)
            record = [worker.name, number, argument, start, len(data), seed, call, int(timed), turn]
            found["kept"].append(record)

    def guarded(name, function):
        try:
            return function()
        except (WorkerGoneError, OSError) as error:
            found["failed"].setdefault(name, str(error))
            workers.pop(name).close() if name in workers else None
            return None

    def started(spec):
        made = guarded(spec["name"], lambda: WorkerProcess(plan, spec))
        if made is not None:
            workers[spec["name"]] = made

    def checked(name):
        for number, draw in enumerate(plan["draws"]):
            if name in workers:
                guarded(name, lambda d=draw, i=number: check(workers[name], d, i, keep, rng, found))

    # workers of trusted code start first, and are done with their files, which are gone before untrusted code runs
    names = [spec["name"] for spec in plan["workers"] if spec["name"] != "truth"]
    for spec in plan["workers"][:-1]:
        started(spec)
    if "reference" in workers:
        guarded("reference", lambda: [workers["reference"].make(draw) for draw in plan["draws"] if draw["make"]])
    for name in names[:-1]:
        checked(name)
    pools = {"reference": Pools(plan["draws"][0])}  # the truth reads the same file
    secure(plan)
    pools["candidate"] = Pools(plan["draws"][0])
    if not found["failed"]:
        started(plan["workers"][-1])
        checked(names[-1])
    before = dict(found["failed"])
    found["prepared"] = sum(
        worker.children() for worker in workers.values()
    )  # what compiled before anything was timed is not a hidden work
    if plan.get("timing"):
        timed(plan, workers, [name for name in names if name in workers], pools, keep, rng, found, guarded)
    if "reference" in found["failed"] and "reference" not in before:
        found["failed"]["candidate"] = f"while it ran the process of the reference failed: {found['failed'].pop('reference')}"
    if "truth" in workers:
        truths(plan, workers["truth"], pools["reference"], found, body)
    for name, worker in workers.items():
        found["threads"][name], found["used"][name] = worker.threads, worker.cpu()
        worker.close()
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    found["children"] = usage.ru_utime + usage.ru_stime
    found["own"] = time.process_time()
    head = json.dumps(found).encode()
    sys.stdout.buffer.write(struct.pack("<Q", len(head)) + head)
    for data in body:
        sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
    os._exit(0)


def secure(plan):
    """Remove what the candidate's process does not need, and give it inputs of its own."""
    with open("inputs", "rb") as file:
        data = file.read()
    mine = plan["workers"][-1]
    needed = {os.path.basename(word) for word in (*mine["argv"], mine["build"], *mine.get("keep", ()))} | {"about.json"}
    for entry in list(os.scandir(".")):
        if entry.is_file(follow_symlinks=False) and entry.name not in needed:
            os.unlink(entry.name)
    with open("inputs", "wb") as file:
        file.write(data)


def check(worker, draw, number, keep, rng, found):
    """The calls of an input set, twice from the same inputs: outputs are kept, and whether both runs gave the same."""
    worker.layout(draw)
    slots, seen = min(2, draw["slots"]), []
    for again in range(2):
        worker.batch(draw, slots, draw["seed"])
        if not worker.canaries(draw):
            raise WorkerGoneError("it wrote outside its outputs")
        spans = [(one["out"], one["stride"], one["bytes"]) for one in draw["arrays"] if one["out"] >= 0]
        seen.append(
            [
                bytes(worker.out[at + slot * stride : at + slot * stride + size])
                for at, stride, size in spans
                for slot in range(slots)
            ]
        )
        if not again:
            for slot in range(slots):
                keep(worker, draw, number, slot, draw["seed"], slot, False)
    if seen[0] != seen[1]:
        found["varies"].setdefault(worker.name, number)


def timed(plan, workers, names, pools, keep, rng, found, guarded):
    """Batches in pairs, A B then B A; of each batch the output of one call, chosen now, is kept.

    A batch has at most as many calls as there are windows, so none of its inputs comes twice, and every batch has its inputs
    anew. Before or after some of the candidate's batches it has one of a length drawn now, which is looked at and not timed: so a
    call cannot know whether it is among the last."""
    timing, draw = plan["timing"], plan["draws"][plan["timing"]["draw"]]
    calls, made, most = {}, dict.fromkeys(names, 0), draw["windows"]

    def calibrate(name):
        worker = workers[name]
        worker.layout(draw)
        k = 1
        worker.batch(draw, 1, rng.getrandbits(30))
        while True:
            spent = worker.batch(draw, k, rng.getrandbits(30))
            if spent >= timing["batch_seconds"] * 0.5 or k >= most:
                return max(1, int(k * timing["batch_seconds"] / max(spent, 1e-9)) if spent < timing["batch_seconds"] else k)
            k = min(max(2 * k, int(k * timing["batch_seconds"] / max(spent, 1e-6))), most)

    for name in names:
        k = guarded(name, lambda n=name: calibrate(n))
        if k:
            calls[name] = min(k, most)
    names = [name for name in names if name in calls]
    found["calls"] = calls
    for name in names:
        found["times"][name] = []
        empty = guarded(name, lambda n=name: min(workers[n].batch(draw, calls[n], 1, "empty") / calls[n] for _ in range(3)))
        if empty is not None:
            found["overhead"][name] = empty
    begun = {name: workers[name].faults() for name in names if name in workers}

    def batch(name, count, looked_at):
        """Processor seconds of one batch on inputs in a new order; None where the worker is gone."""
        if name not in workers:
            return None
        seed, turn, worker = rng.getrandbits(30), rng.getrandbits(60) + 1, workers[name]
        pools[name].to(turn)
        spent = guarded(name, lambda: worker.batch(draw, count, seed))
        if spent is None:
            return None
        made[name] += count
        if not worker.canaries(draw):
            found["failed"].setdefault(name, "it wrote outside its outputs in a timed call")
        call = count - 1 - rng.randrange(min(draw["slots"], count))
        if looked_at:
            keep(worker, draw, timing["draw"], call % draw["slots"], seed, call, True, turn)
        return spent

    for pair in range(timing["pairs"]):
        for name in names if pair % 2 == 0 else names[::-1]:
            candidate = name != "reference"
            extra = [name] if candidate and pair < timing["keep"] and name in calls else []
            first = rng.random() < 0.5
            for _ in extra if first else ():
                batch(name, rng.randint(1, calls[name]), True)
            spent = batch(name, calls[name], candidate and (pair < timing["keep"] or pair >= timing["pairs"] - 2))
            if spent is None:
                return
            found["times"][name].append(spent / calls[name])
            for _ in () if first else extra:
                batch(name, rng.randint(1, calls[name]), True)
    for name in begun:
        if name in workers:
            found["faults"][name] = (workers[name].faults() - begun[name]) / max(1, made[name])


def truths(plan, worker, pools, found, body):
    """For every output that was kept: what the reference gives, and what it gives on absolute values,
    as doubles; in the order of ``kept``."""
    last, both, known = None, [], {}
    for _, number, argument, start, size, seed, call, _, turn in found["kept"]:
        draw = plan["draws"][number]
        if (number, seed, call, turn) != last:
            last = (number, seed, call, turn)
            both = known.get(last, [])
            pools.to(turn)
            for mode in () if both else ("truth", "scale"):
                try:
                    worker.layout(draw)
                    worker.send([mode, call, seed])
                    worker.answer(plan["call_seconds"], "as the reference")
                except (WorkerGoneError, OSError) as error:
                    found["failed"].setdefault("truth", str(error))
                    return
                spans = [(one["wide"], 8 * one["count"]) if one["out"] >= 0 else (0, 0) for one in draw["arrays"]]
                both.append([bytes(worker.out[at : at + bytes_]) for at, bytes_ in spans])
            if seed == draw["seed"]:
                known[last] = both
        item = draw["arrays"][argument]["item"]
        body.extend(one[argument][start // item * 8 : (start + size) // item * 8] for one in both)
        found["truths"] = found.get("truths", 0) + 1


main()
