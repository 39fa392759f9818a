"""What a rule forbids, decided from the arguments of a tool call:
addresses, SQL, paths, amounts, language, regions. Nothing is executed.

Rules of arXiv 2606.22528, section 3.3. Needs ``pip install "ramify[governance]"`` for SQL, languages and international domains.
"""

from __future__ import annotations

import importlib
import json
import logging
import posixpath
import re
import shlex
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from email.utils import getaddresses
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from ramify.base.errors import NeedsError, UserError, nearest

CONFIDENCE = 0.9
"""A text whose language is less sure than this is unreadable."""


class UnreadableError(ValueError):
    """Arguments from which the effect cannot be determined."""


Call = tuple[str, Mapping[str, Any]]
"""Name and arguments."""
SHELLS = ("Bash", "bash", "shell", "exec_command", "local_shell", "container.exec", "command_execution", "run_shell_command")
"""Tools that run a command of the shell, as coding agents call them: where a predicate of commands names no tool."""
EDITORS = ("Edit", "MultiEdit", "Write", "NotebookEdit", "apply_patch", "file_change", "str_replace_based_edit_tool")
"""Tools that change files, likewise."""


def forbids(predicate: Mapping[str, Any], name: str, arguments: Mapping[str, Any], earlier: Sequence[Call] | None = None) -> bool:
    """Whether a rule, given as a predicate, forbids a call.

    ``predicate`` holds ``kind``, ``tool`` (a name, or several) and the kind's own parameters, see :data:`KINDS`. ``earlier`` are
    the calls of the session before this one, in their order, which the kind ``needs`` looks at. Raises UnreadableError where
    the arguments do not decide it (or where ``earlier`` is wanted and not given), UserError on a predicate that is none.
    """
    if not concerns(predicate, name):
        return False
    kind = str(predicate["kind"])
    try:
        if kind == NEEDS:
            return _needs(predicate, name, arguments, earlier)
        return KINDS[kind](predicate, arguments)
    except KeyError as error:
        if error.args and error.args[0] in _PARAMETERS:
            raise UserError(f"a predicate of kind '{kind}' lacks {error}") from None
        raise


def concerns(predicate: Mapping[str, Any], name: str) -> bool:
    """Whether a rule says anything of calls of the tool ``name``. Raises UserError on a predicate that is none."""
    kind = predicate.get("kind")
    if kind not in KINDS and kind != NEEDS:
        raise UserError(f"unknown kind of predicate '{kind}' ({nearest(str(kind), [*KINDS, NEEDS])})")
    tools = predicate.get("tool", _TOOLS.get(str(kind)))
    if not isinstance(tools, (str, list, tuple)):
        raise UserError(f"a predicate of kind '{kind}' must name its tool")
    return name in ([tools] if isinstance(tools, str) else tools)


def allows(predicate: Mapping[str, Any]) -> Callable[[str, Mapping[str, Any]], bool]:
    """A predicate as the gate of a pin: what it forbids, or cannot read, is not allowed."""

    def gate(name: str, arguments: Mapping[str, Any]) -> bool:
        try:
            return not forbids(predicate, name, arguments)
        except UnreadableError:
            return False

    return gate


def _email(predicate: Mapping[str, Any], arguments: Mapping[str, Any]) -> bool:
    """``allow``: domains; sub-domains too where ``subdomains`` is true. Any other recipient is forbidden."""
    allowed = {_domain(name) for name in predicate["allow"]}
    found = [_domain(address.rpartition("@")[2]) for address in addresses(arguments)]
    within = allowed if predicate.get("subdomains") else set()
    return not all(domain in allowed or any(domain.endswith("." + name) for name in within) for domain in found)


def addresses(arguments: Mapping[str, Any]) -> list[str]:
    """Every address in to, cc and bcc. Raises UnreadableError where there is none, or something that is not an address."""
    given = [arguments.get(field) for field in ("to", "cc", "bcc", "recipient", "recipients")]
    texts = [text for value in given if value for text in (value if isinstance(value, list) else [value])]
    if not all(isinstance(text, str) for text in texts):
        raise UnreadableError("a recipient is not text")
    found = [
        address.strip() for _, address in getaddresses([text.replace(";", ",") if ":" not in text else text for text in texts])
    ]
    if not found or any("@" not in address or address.endswith("@") for address in found):
        raise UnreadableError("no recipient, or one that is not an e-mail address")
    return found


def _domain(name: str) -> str:
    """A domain in the form in which two spellings of one are equal (IDNA, lower case); what is not a domain stays."""
    idna = _need("idna", "the domains of addresses")
    bare = name.strip().rstrip(".>").lower()
    try:
        return str(idna.encode(bare, uts46=True).decode("ascii").lower())
    except idna.IDNAError:
        return bare


def _language(predicate: Mapping[str, Any], arguments: Mapping[str, Any]) -> bool:
    """``allow``: ISO 639-1 codes the ``field`` (default body) may be written in, quotations and code left out."""
    body = arguments.get(predicate.get("field", "body"))
    if not isinstance(body, str):
        raise UnreadableError("there is no text whose language could be detected")
    code, sure = language_of(body)
    if sure < CONFIDENCE:
        raise UnreadableError(f"the language cannot be detected reliably ({code}, {sure:.2f})")
    return code not in predicate["allow"]


def language_of(text: str) -> tuple[str, float]:
    """ISO 639-1 code and confidence of the language of a text, quoted lines, code and addresses left out; ("", 0) of nothing."""
    bare = re.sub(r"(?s)```.*?```|`[^`\n]*`|https?://\S+|\S+@\S+", " ", text)
    bare = "\n".join(line for line in bare.splitlines() if not line.lstrip().startswith(">")).strip()
    found = _detector().compute_language_confidence_values(bare) if bare else []
    return (found[0].language.iso_code_639_1.name.lower(), float(found[0].value)) if found else ("", 0.0)


@lru_cache(maxsize=1)
def _detector() -> Any:
    lingua = _need("lingua", "the language of a text")
    names = ("ENGLISH", "SPANISH", "CHINESE", "FRENCH", "GERMAN", "PORTUGUESE")
    languages = [getattr(lingua.Language, name) for name in names]
    return lingua.LanguageDetectorBuilder.from_languages(*languages).with_low_accuracy_mode().build()


_CURRENCIES = {
    "$": "USD",
    "us$": "USD",
    "usd": "USD",
    "dollar": "USD",
    "dollars": "USD",
    "dólares": "USD",
    "dólar": "USD",
    "美元": "USD",
}
_CURRENCIES |= {
    "€": "EUR",
    "eur": "EUR",
    "euro": "EUR",
    "euros": "EUR",
    "£": "GBP",
    "gbp": "GBP",
    "¥": "CNY",
    "cny": "CNY",
    "元": "CNY",
    "rmb": "CNY",
}


def _amount(predicate: Mapping[str, Any], arguments: Mapping[str, Any]) -> bool:
    """``limit``: the most that ``amount`` times ``quantity`` may be,
    in ``currency`` (default USD); the limit itself is allowed."""
    value, currency = _money(arguments.get("amount"))
    quantity = _money(arguments.get("quantity", 1))[0]
    given = arguments.get("currency")
    named = _CURRENCIES.get(str(given).strip().lower(), str(given).upper()) if given else currency
    wanted = predicate.get("currency", "USD")
    if (named or wanted) != wanted or (currency or wanted) != wanted:
        raise UnreadableError(f"the amount is in {named or currency}, the limit in {wanted}")
    return value * quantity > Decimal(str(predicate["limit"]))


def _money(value: Any) -> tuple[Decimal, str]:
    """An amount and the currency it names ("" where none): 1,200.50 and 1.200,50 are one number. Raises UnreadableError."""
    text = unicodedata.normalize("NFKC", str(value)).strip().lower() if type(value) in (str, int, float) else ""
    found = re.fullmatch(r"([^\d\s+-]*)\s*(\d[\d.,  ']*)\s*([^\d\s]*)", text)
    if found is None:
        raise UnreadableError(f"'{value}' is not an amount")
    digits = re.sub(r"[  ']", "", found[2]).rstrip(".,")
    last = max(digits.rfind("."), digits.rfind(","))
    other = "," if last >= 0 and digits[last] == "." else "."
    if last >= 0 and (digits.count(digits[last]) > 1 or (len(digits) - last == 4 and other not in digits)):
        digits = digits.replace(digits[last], "")
    digits = digits.replace(other, "").replace(",", ".")
    unit = found[1] or found[3]
    try:
        return Decimal(digits), _CURRENCIES.get(unit, unit.upper())
    except InvalidOperation:
        raise UnreadableError(f"'{value}' is not an amount") from None


_REGION = re.compile(r"\b(?:us|eu|ap|sa|ca|me|af|il|cn|mx)-(?:gov-)?(?:north|south|east|west|central)+-\d\b", re.IGNORECASE)


def _region(predicate: Mapping[str, Any], arguments: Mapping[str, Any]) -> bool:
    """``allow``: the regions a call may name, in any of its arguments. Raises UnreadableError where it names none."""
    text = json.dumps(dict(arguments), ensure_ascii=False)
    found = {match.lower() for match in _REGION.findall(text)}
    if not found:
        raise UnreadableError("the call names no region")
    return not found <= {name.lower() for name in predicate["allow"]}


def _sql_destructive(predicate: Mapping[str, Any], arguments: Mapping[str, Any]) -> bool:
    """Forbids DROP, TRUNCATE, DELETE and ALTER ... DROP in the ``environments`` (default production and prod)."""
    places = {name.lower() for name in predicate.get("environments", ("production", "prod"))}
    where = str(arguments.get("environment", "")).strip().lower()
    tables: set[str] = set()
    destructive = False
    for statement in _statements(arguments):
        destructive |= _destroys(statement)
        tables |= {
            str(part).lower() for table in statement.find_all(_need_exp().Table) for part in (table.db, table.catalog) if part
        }
    if not destructive:
        return False
    if not where and not tables & places:
        raise UnreadableError("the call does not say which environment it is for")
    return where in places or bool(tables & places)


def _destroys(statement: Any) -> bool:
    exp = _need_exp()
    if isinstance(statement, exp.Command):  # what the parser leaves as it is: EXPLAIN, EXECUTE, DO, ALTER SYSTEM
        verb, rest = str(statement.this).upper(), str(statement.expression).upper()
        if verb in ("EXPLAIN", "DESCRIBE") and "ANALYZE" not in rest:
            return False
        return verb in ("DROP", "TRUNCATE", "DELETE") or bool(re.search(r"\b(?:DROP|TRUNCATE|DELETE)\b", rest))
    if statement.find(exp.Drop, exp.TruncateTable, exp.Delete):
        return True
    return any(str(when.args.get("then")).upper() == "DELETE" for when in statement.find_all(exp.When))


_OFF = r"\W*(?:=|\bto\b|,)?[\s'\"(]*(?:off|false|0|none|no|disable[d]?)\b"


def _sql_control(predicate: Mapping[str, Any], arguments: Mapping[str, Any]) -> bool:
    """``control``: a regular expression of the settings that no SET or ALTER may turn off."""
    exp = _need_exp()
    for statement in _statements(arguments):
        if isinstance(statement, exp.Select | exp.Update | exp.Insert) and not statement.find(exp.Anonymous):
            continue
        text = statement.sql(comments=False)
        if re.search(rf"(?:{predicate['control']})\w*['\"]?{_OFF}", text, re.IGNORECASE):
            return True
        if isinstance(statement, exp.Alter | exp.Command | exp.Drop) and re.search(
            rf"\b(?:disable|drop|stop)\b.*(?:{predicate['control']})", text, re.IGNORECASE | re.DOTALL
        ):
            return True
    return False


def _statements(arguments: Mapping[str, Any]) -> list[Any]:
    """The statements of ``sql`` (or ``query``, ``statement``) as syntax trees. Raises UnreadableError where it is not SQL."""
    sqlglot = _need("sqlglot", "SQL")
    text = next((arguments[name] for name in ("sql", "query", "statement") if name in arguments), None)
    if not isinstance(text, str) or not text.strip():
        raise UnreadableError("there is no SQL")
    logging.getLogger("sqlglot").setLevel(logging.ERROR)  # it warns of each statement that it leaves as it is
    for dialect in (None, "postgres", "mysql"):
        try:
            return [statement for statement in sqlglot.parse(text, dialect=dialect) if statement is not None]
        except (sqlglot.errors.SqlglotError, RecursionError):
            continue
    raise UnreadableError("the SQL cannot be read")


def _path(predicate: Mapping[str, Any], arguments: Mapping[str, Any]) -> bool:
    """``deny``: globs over whole paths, ``except``: globs that are allowed all the same.
    Paths are compared without ``..`` and ``~``."""
    paths = [arguments[name] for name in _PATHS if name in arguments]
    paths = [path for value in paths for path in (value if isinstance(value, list) else [value])]
    paths += [
        path for text in arguments.values() if isinstance(text, str) for pair in _PATCHED.findall(text) for path in pair if path
    ]
    changes = arguments.get("changes")  # of `codex exec --json`
    paths += [change.get("path") for change in changes if isinstance(change, Mapping)] if isinstance(changes, list) else []
    if not paths or not all(isinstance(path, str) and path for path in paths):
        raise UnreadableError("there is no path")
    return any(
        any(fnmatchcase(whole, glob) for glob in predicate["deny"])
        and not any(fnmatchcase(whole, glob) for glob in predicate.get("except", ()))
        for whole in map(plain_path, paths)
    )


_PATHS = ("path", "file", "filename", "file_path", "notebook_path")
_PATCHED = re.compile(r"^\*\*\* (?:Add|Update|Delete) File: (.+)$|^\*\*\* Move to: (.+)$", re.MULTILINE)
"""A file that a patch of Codex names."""


def plain_path(path: str, home: str = "/home/user", folder: str = "/home/user") -> str:
    """A path as an absolute one without ``~``, ``.``, ``..`` and doubled slashes; links are not looked up."""
    whole = re.sub(r"^file://", "", path.strip())
    whole = re.sub(r"^(?:~(?=/|$)|\$HOME\b|\$\{HOME\})", home, whole)
    return posixpath.normpath(posixpath.join(folder, whole)).replace("//", "/")


def _pattern(predicate: Mapping[str, Any], arguments: Mapping[str, Any]) -> bool:
    """``pattern``: a regular expression that no argument (or none of ``fields``) may match."""
    fields = predicate.get("fields") or list(arguments)
    values = [arguments.get(name, "") for name in fields]
    text = "\n".join(" ".join(map(str, value)) if isinstance(value, list) else str(value) for value in values)
    return re.search(predicate["pattern"], unicodedata.normalize("NFKC", text), re.IGNORECASE) is not None


def _tool(predicate: Mapping[str, Any], arguments: Mapping[str, Any]) -> bool:
    """Forbids every call of the tool."""
    return True


def _command(predicate: Mapping[str, Any], arguments: Mapping[str, Any]) -> bool:
    """``deny``: commands of the shell that none may begin with; their options may stand anywhere in it.
    ``git push --force`` forbids ``cd x && git push origin main --force``."""
    denied = predicate["deny"]
    commands = commands_of(arguments)
    return any(_begins(words, deny) for deny in ([denied] if isinstance(denied, str) else denied) for words in commands)


def commands_of(arguments: Mapping[str, Any]) -> list[list[str]]:
    """The simple commands, as words, of a call of a shell: of pipes, lists and ``bash -c``. Raises UnreadableError."""
    given = next((arguments[name] for name in ("command", "cmd", "script", "input") if arguments.get(name)), None)
    if isinstance(given, list) and all(isinstance(word, str) for word in given) and given:
        if len(given) == 3 and given[1] in ("-c", "-lc"):
            return commands_of({"command": given[2]})
        return [given]
    if not isinstance(given, str):
        raise UnreadableError("there is no command")
    lexer = shlex.shlex(_without_texts(given).replace("\n", " ; "), posix=True, punctuation_chars=";|&()")
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError as error:
        raise UnreadableError(f"the command cannot be read: {error}") from None
    split: list[list[str]] = [[]]
    for word in words:
        if word and set(word) <= set(";|&()"):
            split.append([])
        elif split[-1] or not (_ASSIGNED.fullmatch(word) or word in _BEFORE):
            split[-1].append(word)
    inside = [words[2] for words in split if len(words) > 2 and words[0] in _RUNS and words[1] in ("-c", "-lc")]
    return [words for words in split if words] + [words for text in inside for words in commands_of({"command": text})]


def _without_texts(command: str) -> str:
    """A command of the shell without the texts that its here-documents give it: no commands."""
    lines = command.split("\n")
    last = {line.split()[0]: at for at, line in enumerate(lines) if line.strip()}
    kept, until = list[str](), ""
    for at, line in enumerate(lines):
        if until and line.split()[:1] != [until]:
            continue
        if until:
            kept[-1], until = f"{kept[-1]} {line.strip().removeprefix(until)}", ""
            continue
        kept.append(line)
        if (begun := _HEREDOC.search(line)) and last.get(begun[2], -1) > at:
            until = begun[2]
    return "\n".join(kept)


_HEREDOC = re.compile(r"(?<!<)<<-?\s*(['\"]?)(\w+)\1")
_ASSIGNED = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_BEFORE, _RUNS = ("sudo", "time", "command", "exec", "env", "nohup", "then", "do", "else", "!"), ("bash", "sh", "zsh")
"""Words before a command, and commands that run a text of commands."""


def _begins(words: Sequence[str], denied: str) -> bool:
    wanted = denied.split()
    plain, options = ([w for w in wanted if w.startswith("-") == which] for which in (False, True))
    operands = [word for word in words if not word.startswith("-")]
    return bool(wanted) and operands[: len(plain)] == plain and set(options) <= set(words)


def _needs(predicate: Mapping[str, Any], name: str, arguments: Mapping[str, Any], earlier: Sequence[Call] | None) -> bool:
    """``command``: one of the shell; ``first``: one that must have run since the last of these, or since the session began."""
    command, first = str(predicate["command"]), str(predicate["first"])
    here = commands_of(arguments)
    at = next((i for i, words in enumerate(here) if _begins(words, command)), None)
    if at is None or any(_begins(words, first) for words in here[:at]):
        return False
    if earlier is None:
        raise UnreadableError("what was called before is not known")
    for called, given in reversed(earlier):
        if not concerns(predicate, called):
            continue
        try:
            commands = commands_of(given)
        except UnreadableError:
            continue
        for words in reversed(commands):
            if _begins(words, first):
                return False
            if _begins(words, command):
                return True
    return True


NEEDS = "needs"
"""The kind of predicate that looks at earlier calls: see :func:`_needs`."""
KINDS: dict[str, Callable[[Mapping[str, Any], Mapping[str, Any]], bool]] = {
    "email": _email,
    "language": _language,
    "amount": _amount,
    "region": _region,
    "sql-destructive": _sql_destructive,
    "sql-control": _sql_control,
    "path": _path,
    "pattern": _pattern,
    "tool": _tool,
    "command": _command,
}
_TOOLS = {"command": SHELLS, NEEDS: SHELLS}
_PARAMETERS = ("allow", "limit", "control", "deny", "pattern", "command", "first")


def _need(name: str, what: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise NeedsError(f"grading {what} needs the package '{name}': pip install 'ramify[governance]' ({error})") from error


def _need_exp() -> Any:
    return _need("sqlglot", "SQL").exp
