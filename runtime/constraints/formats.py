"""String formats as automata over values: the calendar, RFC 3339, 5321, 1123, 3986, 6901 and 9562, addresses."""

from __future__ import annotations

from functools import lru_cache

from .byte_dfa import ByteDFA, compile_pattern
from .dfa_algebra import conjunction
from .regex_syntax import translate

YEAR = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_LEAP = "(?:0[48]|[2468][048]|[13579][26])"
DATE = (
    f"(?:{YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    f"|(?:[0-9]{{2}}{_LEAP}|{_LEAP}00)-02-29)"
)
_MINUTE = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_ZONE = f"(?:[Zz]|[+-]{_MINUTE})"
_TIME = rf"(?:{_MINUTE}:[0-5][0-9](?:\.[0-9]+)?{_ZONE}|23:59:60(?:\.[0-9]+)?[Zz])"
_LABEL = "(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?)"
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
IPV4 = rf"(?:(?:{_OCTET}\.){{3}}{_OCTET})"
_H16 = "[0-9A-Fa-f]{1,4}"
_LS32 = f"(?:{_H16}:{_H16}|{IPV4})"
IPV6 = (
    f"(?:(?:{_H16}:){{6}}{_LS32}|::(?:{_H16}:){{5}}{_LS32}|(?:{_H16})?::(?:{_H16}:){{4}}{_LS32}"
    f"|(?:(?:{_H16}:){{0,1}}{_H16})?::(?:{_H16}:){{3}}{_LS32}|(?:(?:{_H16}:){{0,2}}{_H16})?::(?:{_H16}:){{2}}{_LS32}"
    f"|(?:(?:{_H16}:){{0,3}}{_H16})?::{_H16}:{_LS32}|(?:(?:{_H16}:){{0,4}}{_H16})?::{_LS32}"
    f"|(?:(?:{_H16}:){{0,5}}{_H16})?::{_H16}|(?:(?:{_H16}:){{0,6}}{_H16})?::)"
)
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
_DOMAIN = rf"(?:{_LABEL}(?:\.{_LABEL})*)"
_EMAIL = rf"(?:{_ATOM}+(?:\.{_ATOM}+)*@{_DOMAIN})"
_DAY_PARTS = "(?:[0-9]+D|[0-9]+M(?:[0-9]+D)?|[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?)"
_CLOCK_PARTS = "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
_UCS = r"\x{a0}-\x{d7ff}\x{f900}-\x{fdcf}\x{fdf0}-\x{ffef}\x{10000}-\x{1fffd}\x{20000}-\x{2fffd}"


def _uri(more: str, *, reference: bool) -> str:
    """RFC 3986; ``more`` are further unreserved characters (RFC 3987)."""
    encoded = "%[0-9A-Fa-f]{2}"
    unreserved, sub = rf"A-Za-z0-9._~{more}\-", "!$&'()*+,;="
    pchar = f"(?:[{unreserved}{sub}:@]|{encoded})"
    segments = f"(?:/{pchar}*)*"
    host = rf"(?:\[(?:{IPV6}|v[0-9A-Fa-f]+\.[{unreserved}{sub}:]+)\]|(?:[{unreserved}{sub}]|{encoded})*)"
    authority = f"(?:(?:[{unreserved}{sub}:]|{encoded})*@)?{host}(?::[0-9]*)?"
    rest = f"(?://{authority}{segments}|/(?:{pchar}+{segments})?|{pchar}+{segments}|)"
    tail = rf"(?:\?(?:{pchar}|[/?])*)?(?:#(?:{pchar}|[/?])*)?"
    whole = f"[A-Za-z][A-Za-z0-9+.-]*:{rest}{tail}"
    if not reference:
        return whole
    no_colon = f"(?:[{unreserved}{sub}@]|{encoded})"
    relative = f"(?://{authority}{segments}|/(?:{pchar}+{segments})?|{no_colon}+{segments}|)"
    return f"(?:{whole}|{relative}{tail})"


_POINTER = r"(?:/(?:[\x{0}\x{5}-\x{2e}\x{30}-\x{7d}\x{7f}-\x{10ffff}]|~[01])*)*"
OWN = "furcate:"
"""Beginning of the names of formats that are not JSON Schema's: texts as Python's types read them."""

_CLOCK = rf"{_MINUTE}:[0-5][0-9](?:\.[0-9]{{1,6}})?"
_SPAN = r"(?:[0-9]{1,4}H(?:[0-9]{1,2}M)?(?:[0-9]{1,2}S)?|[0-9]{1,4}M(?:[0-9]{1,2}S)?|[0-9]{1,4}(?:\.[0-9]{1,6})?S)"
_HOST = r"[a-z](?:[a-z0-9]{0,20})(?:\.[a-z]{2,10}){1,3}"
_PATTERNS = {
    OWN + "date": DATE,
    OWN + "time": f"{_CLOCK}(?:Z|[+-]{_MINUTE})?",
    OWN + "datetime": f"{DATE}T{_CLOCK}(?:Z|[+-]{_MINUTE})?",
    OWN + "duration": f"-?P(?:[0-9]{{1,7}}D(?:T{_SPAN})?|T{_SPAN})",
    OWN + "integer": "-?(?:0|[1-9][0-9]{0,17})",
    OWN + "decimal": r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?",
    OWN + "url": rf"https?://{_HOST}(?::[1-9][0-9]{{0,3}})?(?:/[A-Za-z0-9._~-]*)*(?:\?[A-Za-z0-9._~=&-]*)?",
    "date": DATE,
    "time": _TIME,
    "date-time": f"{DATE}[Tt]{_TIME}",
    "duration": f"P(?:{_DAY_PARTS}(?:{_CLOCK_PARTS})?|{_CLOCK_PARTS}|[0-9]+W)",
    "email": _EMAIL,
    "ipv4": IPV4,
    "ipv6": IPV6,
    "uri": _uri("", reference=False),
    "uri-reference": _uri("", reference=True),
    "iri": _uri(_UCS, reference=False),
    "iri-reference": _uri(_UCS, reference=True),
    "uuid": "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(?:0|[1-9][0-9]*)(?:#|{_POINTER})",
}
KNOWN = frozenset(_PATTERNS) | {"hostname"}
"""Formats that are enforced."""

REFUSED = frozenset({"idn-email", "idn-hostname", "uri-template", "regex"})
"""Formats of the specification that are no regular languages, or not enforced."""


def is_known(name: str) -> bool:
    """Whether a format is enforced."""
    return name in KNOWN or name.startswith(OWN + "regex:")


@lru_cache(maxsize=64)
def format_automaton(name: str) -> ByteDFA:
    """The automaton of the values of a format that ``is_known``."""
    if name == "hostname":
        return conjunction([compile_pattern(_DOMAIN), compile_pattern("[A-Za-z0-9.-]{1,253}")])
    if name.startswith(OWN + "regex:"):
        return compile_pattern(translate(name.removeprefix(OWN + "regex:")))
    return compile_pattern(_PATTERNS[name])
