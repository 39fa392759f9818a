"""Acts on the pages of ``ramify ui --act``: their forms, the queue, each job with its progress and result.

A request that starts, stops or continues something is a POST of a form of these pages: it bears their token, and a browser says
that it comes from them (:class:`ramify.web.limits.Guard` refuses another host's name and another site's Origin before that).
Without ``--act`` there are no forms, and nothing answers to a POST.
"""

from __future__ import annotations

import hmac
import json
import secrets
import shlex
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode

from ramify.base.errors import RamifyError, UserError
from ramify.base.words import plural
from ramify.jobs.acts import ACTS, ActLimits, Field, act_of
from ramify.jobs.queue import JobState, Queue
from ramify.render.escape import visible
from ramify.render.result import to_html
from ramify.render.svg import clip
from ramify.render.terminal import minutes, short
from ramify.trace.db import Run
from ramify.web.limits import RefusedRequestError
from ramify.web.pages import markup, page
from ramify.web.shelf import Shelf
from ramify.web.way import Nav, key_of, name_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

ON_STEP = ("edit", "fork", "token", "cause", "fix")
"""Acts that are about a step, in the order of their links."""
ON_RUN = ("why", "record")
MOST_FORM, MOST_FIELDS = 256 << 10, 40
"""Bytes of a form, and fields in it."""
LISTED = 100
"""Jobs of the list, the latest first."""
BUDGET = (
    Field("tokens", "Most tokens, of prompts and replies", ActLimits().tokens, 1, 10**12),
    Field("seconds", "Most seconds", ActLimits().seconds, 1, 10**7),
)


class Acting:
    """The forms and the queue of the runs on ``shelf``; ``allowed`` is whether anything may be started."""

    def __init__(self, shelf: Shelf, allowed: bool) -> None:
        self.shelf, self.queue, self.allowed = shelf, Queue(shelf.root), allowed
        self.token = secrets.token_urlsafe(24)

    def links(self, run: Run, nav: Nav, node: str = "") -> tuple[tuple[str, str], ...]:
        """Address and text of what can be done on a run's page, or on that of a node."""
        if not self.allowed:
            return ()
        names = ON_STEP if node else [name for name in ON_RUN if name != "record" or run.kind == "record"]
        asked = f"?{urlencode({'node': node})}" if node else ""
        return tuple((f"{nav.base}/act/{name}{asked}", ACTS[name].title) for name in names)

    def form_html(self, run: Run, nav: Nav, name: str, given: Mapping[str, str], error: str = "") -> str:
        """The form of an act, with the values ``given``, and what is wrong with them. Raises UserError where there is no such
        act."""
        if name not in (*ON_STEP, *ON_RUN):
            raise UserError(f"there is no act '{name}'")
        kind, step = ACTS[name], given.get("node", "")
        shown = [(field, given.get(field.name, _text(field.default)), field in BUDGET) for field in (*kind.fields, *BUDGET)]
        said = ""
        if step and not error:
            said = clip(run.node(run.find(step)).message.spoken(), 1500) or "(nothing)"
        return page(
            "act.html", kind.title, nav, does=kind.does, shown=shown, error=error, step=said, back=f"{nav.base}/node/{step}",
            action=f"{nav.base}/act/{name}", form_token=self.token,
        )  # fmt: skip

    def start(self, key: str, name: str, given: dict[str, str]) -> int:
        """Put the act of a form into the queue; its job. Raises UserError on what is wrong with it."""
        limits = {field.name: field.read(given.pop(field.name, None)) for field in BUDGET}
        act = act_of(name, self.shelf.find(name_of(key)), given)
        return self.queue.submit(act, ActLimits(**limits)).number

    def checked(self, headers: Mapping[str, str], body: bytes) -> dict[str, str]:
        """The fields of a form of these pages, without the token. Raises RefusedRequestError."""
        if headers.get("sec-fetch-site", "same-origin") != "same-origin":
            raise RefusedRequestError(403, "This server takes forms from its own pages only.")
        if headers.get("content-type", "").partition(";")[0] != "application/x-www-form-urlencoded" or len(body) > MOST_FORM:
            raise RefusedRequestError(400, f"A form of these pages is wanted, of at most {MOST_FORM} bytes.")
        try:
            pairs = parse_qsl(body.decode("utf-8"), keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict")
        except ValueError:
            raise RefusedRequestError(400, "The form cannot be read.") from None
        given = dict(pairs)
        if not hmac.compare_digest(given.pop("form_token", "").encode(), self.token.encode()):
            raise RefusedRequestError(403, "This form is of another page, or of a server that has ended: open the page again.")
        return given

    # -- jobs ------------------------------------------------------------------------------------------------------------------

    def jobs_html(self) -> str:
        """The queue, the latest job first."""
        numbers, rows, damaged = self.queue.numbers(), [], []
        for number in numbers[:LISTED]:
            try:
                state = self.queue.state(number)
            except UserError as error:
                damaged.append(str(error))
                continue
            run = self._run(state)
            if self.shelf.only is None or run[1]:
                rows.append((f"/jobs/{number}", state, _asked(state), run))
        left = max(0, len(numbers) - LISTED)
        return page("jobs.html", "Jobs", Nav("jobs"), rows=rows, left=left, damaged=damaged, allowed=self.allowed)

    def job_html(self, number: int) -> str:
        """A job: how far it is, what it found, what it said. Raises UserError where there is none."""
        state = self._shown(number)
        try:
            sections, caveats = self.queue.result(number)
        except UserError as error:
            sections, caveats = (), [str(error)]
        return page(
            "job.html",
            f"Job {number}: {ACTS[state.job.act].title if state.job.act in ACTS else state.job.act}",
            Nav("jobs"),
            state=state,
            told=_told(state),
            run=self._run(state),
            asked=_asked(state),
            command=shlex.join(("ramify", *state.job.words)),
            result=markup(to_html(sections, "What it found")),
            caveats=caveats,
            log=self.queue.log(number),
            source=f"/jobs/{number}/data",
            live=not state.over,
            form_token=self.token if self.allowed else "",
        )

    def job_data(self, number: int) -> str:
        """What changes while a job runs. Raises UserError where there is none."""
        state = self._shown(number)
        return json.dumps({"over": state.over, "share": _share(state), "texts": _told(state)})

    def _shown(self, number: int) -> JobState:
        """Raises UserError where there is no such job, or it is of a run that is not shown."""
        state = self.queue.state(number)
        if self.shelf.only is not None and not self._run(state)[1]:
            raise UserError(f"there is no job {number} of this run")
        return state

    def _run(self, state: JobState) -> tuple[str, str]:
        """Name and address of a job's run; no address where it is gone."""
        try:
            name = self.shelf.name_of(Path(state.job.run))
            self.shelf.find(name)
        except UserError:
            return visible(state.job.run), ""
        return visible(name), f"/run/{key_of(name)}/"


def _text(default: str | int | None) -> str:
    return "" if default is None else str(default)


def _asked(state: JobState) -> str:
    return datetime.fromtimestamp(state.job.asked).strftime("%Y-%m-%d %H:%M")


def _share(state: JobState) -> float:
    return min(1.0, state.done / state.total) if state.total else 0.0


def _told(state: JobState) -> dict[str, str]:
    """The texts of a job's page that change, by the ids of their elements."""
    job = state.job
    count = f"at most {plural(job.attempts, 'attempt')}"
    if state.total:
        count = f"{short(state.done)} of {short(state.total)} {state.unit}"
    spent = f"{short(state.tokens)} of {short(job.tokens)} tokens, {minutes(state.took)} of {minutes(job.seconds)}"
    return {"state": state.state, "count": count, "spent": spent, "note": state.note}


def act_routes(
    acting: Acting,
    of_run: Callable[[str, Any], Callable[[Request], Response]],
    refusal: Callable[[RefusedRequestError], Response],
) -> list[Route]:
    """The forms and what answers to them. ``of_run`` makes the endpoint of a page of a run (:mod:`ramify.web.server`),
    ``refusal`` the answer to a request that is refused."""
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import RedirectResponse
    from starlette.routing import Route

    def form(request: Request, given: Mapping[str, str] | None = None, error: str = "") -> Response:
        def made(run: Run, nav: Nav, asked: Request, _: str | None) -> str:
            return acting.form_html(run, nav, asked.path_params["name"], given or asked.query_params, error)

        answer = of_run("", made)(request)
        answer.status_code = 400 if error and answer.status_code == 200 else answer.status_code
        return answer

    def posted(do: Callable[[Request, dict[str, str]], Response]) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            try:
                given = acting.checked(request.headers, await request.body())
                return await run_in_threadpool(do, request, given)
            except RefusedRequestError as refused:
                return refusal(refused)
            except RamifyError as error:
                return refusal(RefusedRequestError(409, str(error)))

        return endpoint

    def start(request: Request, given: dict[str, str]) -> Response:
        try:
            number = acting.start(request.path_params["run"], request.path_params["name"], dict(given))
        except UserError as error:
            return form(request, given, str(error))
        return RedirectResponse(f"/jobs/{number}", 303)

    def change(request: Request, _: dict[str, str], what: str) -> Response:
        number = request.path_params["number"]
        (acting.queue.stop if what == "stop" else acting.queue.resume)(number)
        return RedirectResponse(f"/jobs/{number}", 303)

    return [
        Route("/run/{run}/act/{name}", form),
        Route("/run/{run}/act/{name}", posted(start), methods=["POST"]),
        *(
            Route(f"/jobs/{{number:int}}/{what}", posted(partial(change, what=what)), methods=["POST"])
            for what in ("stop", "continue")
        ),
    ]
