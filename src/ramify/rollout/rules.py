"""Does a text still hold a rule? A keyword test that needs no model: content words and bound values near one another.

A rule survives where at least 60 % of its content words and all its bound values (domains, numbers, regions, paths, channels)
stand within 60 tokens of one another. It is blind to a paraphrase in other words and to irony:
a model as judge is the second observer (`ramify governance judge`).
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache

#: What can have become of a rule, best first; ``unknown`` where part of the context cannot be read.
CLASSES = ("verbatim", "paraphrased", "weakened", "mutated", "contradicted", "dropped", "unknown")
SURVIVED = ("verbatim", "paraphrased")
WINDOW, SHARE, TRACE = 60, 0.6, 0.3

_TOKEN = re.compile(
    r"(?P<region>\b[a-z]{2}(?:-[a-z]+)+-\d+\b)"
    r"|(?P<name>[\w.+-]*@?[^\W_][\w-]*(?:\.[\w-]+)*\.[a-z]{2,}\b)"
    r"|(?P<path>(?:~|\.{1,2})?/[\w.*~-]+(?:/[\w.*~-]*)*)"
    r"|(?P<channel>#[\w-]+)"
    r"|(?P<number>\d+(?:[.,]\d+)*)"
    r"|(?P<han>[\u3400-\u9fff]+)"
    r"|(?P<word>[^\W\d_]+)",
    re.IGNORECASE,
)
_FUNCTION_WORDS = (
    "a an the of to in on at by for from with as and or but if then than that this these those it its is are was were be been "
    "being do does "
    "did have has had i you we they he she my your our their me us them not no never only must may can could shall should will "
    "would any all "
    "each every ever there here so such other than when where which who whose what just always please un una el la los las de "
    "del al en con "
    "por para que se su sus lo y o u no nunca solo sólo debe deben puede pueden es son ser este esta todo toda todos todas"
)
_FUNCTION = frozenset(_FUNCTION_WORDS.split())
_STRICT = re.compile(
    r"\b(?:only|never|not|no|must|always|cannot|can't|don't|won't|mustn't|forbid\w*|prohibit\w*|ban(?:ned)?|exclusively|required?|nothing|none|limit"
    r"|unless|without|solo|sólo|únicamente|exclusivamente|nunca|jamás|debe|deben|prohib\w+|ning[uú]n\w*|siempre|límite)\b"
    r"|不得|不能|不要|不可|禁止|只能|只可|必须|仅|一律|严禁|上限|不许",
    re.IGNORECASE,
)
_RESCINDED = re.compile(
    r"no longer|deprecat|rescind|lifted|obsolete|does not apply|doesn't apply|may now|now allowed|can be ignored|ignore "
    r"(?:the|this|that|all)|"
    r"supersed|revoked|withdrawn|ya no|derogad|sin efecto|no se aplica|不再|作废|取消|失效|已废止|可以忽略",
    re.IGNORECASE,
)
_DEMANDS = re.compile(
    r"\b(?:only|never|always|must|mustn't|forbid\w*|prohibit\w*|exclusively|rules?|polic(?:y|ies)|solo|sólo|únicamente|exclusivamente|nunca|jamás"
    r"|debe|deben|prohib\w+|reglas?|normas?)\b|不得|禁止|只能|只可|必须|仅|一律|严禁|规定|规则",
    re.IGNORECASE,
)
_HEDGE = re.compile(
    r"\b(?:prefer\w*|ideally|usually|generally|if possible|where possible|try to|should "
    r"probably|mostly|recommended|preferiblemente|"
    r"normalmente|si es posible|a ser posible)\b|尽量|最好|通常|一般",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Survival:
    """What became of one rule in one text."""

    kind: str
    """One of :data:`CLASSES`."""
    share: float
    """Of the rule's content words, how many stand in the best window."""
    missing: tuple[str, ...] = ()
    """Bound values that are not in that window."""

    @property
    def survived(self) -> bool:
        """Whether the rule can still be read there: verbatim or paraphrased."""
        return self.kind in SURVIVED


@lru_cache(maxsize=256)
def keywords(rule: str) -> frozenset[str]:
    """Stems of a rule's content words, and pairs of neighbouring Chinese characters: what the test looks for."""
    return frozenset(key for kind, key, _ in _tokens(rule) if kind == "word" and key)


@lru_cache(maxsize=256)
def values(rule: str) -> dict[str, str]:
    """The bound values of a rule and the kind of each: name, region, path, channel or number."""
    return {key: kind for kind, key, _ in _tokens(rule) if kind != "word"}


def survival(rule: str, text: str, opaque: bool = False) -> Survival:
    """What became of ``rule`` in ``text``; ``opaque``: the context holds items that cannot be read, so absence proves nothing."""
    if _plain(rule) in _plain(text):
        return Survival("verbatim", 1.0)
    found = _best(rule, text)
    return Survival("unknown", found.share, found.missing) if opaque and not found.survived else found


def contradicts(left: str, right: str) -> bool:
    """Whether two rules speak of the same thing with different values, or one takes back what the other demands.

    A rule of thumb in the words of the rules: it knows nothing of what they mean.
    """
    if _plain(left) == _plain(right):
        return False
    first, second = keywords(left), keywords(right)
    alike = len(first & second) >= SHARE * max(len(first), len(second), 1)
    kinds = [Counter(values(rule).values()) for rule in (left, right)]
    differ = kinds[0] == kinds[1] and values(left) != values(right)
    strict = [bool(_STRICT.search(rule)) and not _RESCINDED.search(rule) for rule in (left, right)]
    return bool(first) and alike and (differ or strict[0] != strict[1])


def disputes(rule: str, text: str) -> bool:
    """Whether ``text`` says that ``rule`` is over, or demands another value instead.

    A text that only names another value (a request, a result, a call) demands nothing: it may follow the rule or break it, but
    does not change it.
    """
    plain, quoted = _plain(text), _plain(rule).rstrip(".!。！")
    if quoted in plain:  # what is said of it stands in the sentence around the quotation
        around = re.split(r"(?<=[.!?;。！？])\s+", plain.replace(quoted, "\ufffc"))
        return any("\ufffc" in context and _RESCINDED.search(context) for context in around)
    kind = _best(rule, text).kind
    if kind != "mutated" or not _STRICT.search(rule):
        return kind in ("mutated", "contradicted")
    context = _around(text, keywords(rule))
    return bool(_DEMANDS.search(context) or _RESCINDED.search(context))


def _best(rule: str, text: str) -> Survival:
    wanted, bound = keywords(rule), values(rule)
    tokens = _tokens(text)
    need = {*wanted, *bound}
    if not need:
        return Survival("dropped", 0.0)
    hits = [at for at, (_, key, _) in enumerate(tokens) if key in need]
    best, most = (hits[0] if hits else 0), (-1, -1)
    inside: Counter[str] = Counter()
    start = 0
    for at in hits:
        inside[tokens[at][1]] += 1
        while tokens[at][2] - tokens[hits[start]][2] >= WINDOW:
            inside -= Counter([tokens[hits[start]][1]])
            start += 1
        held = len(bound.keys() & inside.keys())
        if (len(inside), held) > most:
            best, most = hits[start], (len(inside), held)
    window = [token for token in tokens[best : best + WINDOW] if token[2] - tokens[best][2] < WINDOW]
    seen = {key for _, key, _ in window}
    share = len(wanted & seen) / len(wanted) if wanted else float(bool(bound.keys() & seen))
    missing = tuple(sorted(bound.keys() - seen))
    return Survival(_kind(rule, text, window, share, missing), share, missing)


def _kind(rule: str, text: str, window: Sequence[tuple[str, str, int]], share: float, missing: tuple[str, ...]) -> str:
    bound = values(rule)
    if share < SHARE:
        return "weakened" if share >= TRACE and bound and not missing else "dropped"
    if missing:
        kinds = {bound[value] for value in missing}
        return "mutated" if any(kind in kinds and key not in bound for kind, key, _ in window) else "weakened"
    context = _around(text, keywords(rule) | bound.keys())
    if _RESCINDED.search(context) and not _RESCINDED.search(rule):
        return "contradicted"
    lost = bool(_STRICT.search(rule)) and not _STRICT.search(context)
    return "weakened" if lost or (_HEDGE.search(context) and not _HEDGE.search(rule)) else "paraphrased"


def _around(text: str, need: Iterable[str]) -> str:
    """The sentences of ``text`` that hold a word or value of the rule: cues elsewhere are about something else."""
    wanted = set(need)
    return " ".join(s for s in re.split(r"(?<=[.!?])\s+|[\n。！？]", text) if any(key in wanted for _, key, _ in _tokens(s)))


@lru_cache(maxsize=8192)
def _tokens(text: str) -> list[tuple[str, str, int]]:
    """(kind, key, place in tokens) of the words and values of a text; function words are counted and left out."""
    found: list[tuple[str, str, int]] = []
    index = 0
    for match in _TOKEN.finditer(unicodedata.normalize("NFKC", text)):
        kind, word = str(match.lastgroup), match[0].lower()
        if kind == "han":
            found += [("word", word[i : i + 2], index + i) for i in range(len(word) - 1)]
            index += len(word)
            continue
        if kind == "word":
            if word not in _FUNCTION and len(word) > 1:
                found.append(("word", _stem(word), index))
        else:
            found.append((kind, _number(word) if kind == "number" else word.rstrip("."), index))
        index += 1
    return found


def _number(text: str) -> str:
    """100, 100.00 and 1,00 that is 1.00 as one key each; groups of three after a comma are thousands."""
    whole = re.sub(r"[.,](?=\d{3}(?:\D|$))", "", text).replace(",", ".")
    return f"{Decimal(whole).normalize():f}" if whole.count(".") < 2 else text


@lru_cache(maxsize=1 << 16)
def _stem(word: str) -> str:
    bare = "".join(c for c in unicodedata.normalize("NFD", word) if not unicodedata.combining(c))
    for end in ("ations", "ation", "ings", "ing", "ers", "ed", "es", "s", "ly"):
        if bare.endswith(end) and len(bare) - len(end) >= 3:
            bare = bare[: -len(end)]
            break
    return bare.rstrip("e") if len(bare) > 3 else bare


def _plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).split()).casefold()
