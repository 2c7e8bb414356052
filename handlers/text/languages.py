"""The languages of translation models: how each family selects them, and the code for a detector's label. Pure.

tokenizer + generation config       -> read_languages -> Languages: codes, and how to select each
label of a detector (fr, fra_Latn)  -> find_key ->  one key per language  <- find_key <- codes of a model (fr_XX, fra)
codes -> ModelCodes: label -> the model's code, if it has one

Marian (one pair)        nothing
Marian (many targets)    ">>fra<< " before the text
M2M100, NLLB, mBART-50   the tokenizer's `src_lang`; the target's token forced to come first
mBART-25                 the tokenizer's `src_lang`; the decoder starts with the target's token
SeamlessM4T              the tokenizer's `src_lang`; generate(tgt_lang=...)
T5 and others            nothing: the text contains the name of the task, if there is one

A key is the language's code of ISO 639-3, or its macrolanguage's if ISO 639-1 and most models mean that: Standard
Arabic (arb) and Arabic (ar, ara) have one key. Tests compare the tables with the codes of transformers and the labels
of fastText's lid.176.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from handlers.errors import InvalidOption

CODE = re.compile(r"[a-z]{3}_[A-Z][a-z]{3}|[a-z]{2}_[A-Z]{2}")  # codes look like fra_Latn (NLLB) or fr_XX (mBART)

# ISO 639-1 to ISO 639-3, as the latter's registration authority, SIL, publishes it (Debian's iso-codes has it as JSON).
_ISO_639 = (
    "aa:aar ab:abk ae:ave af:afr ak:aka am:amh an:arg ar:ara as:asm av:ava ay:aym az:aze ba:bak be:bel bg:bul bi:bis "
    "bm:bam bn:ben bo:bod br:bre bs:bos ca:cat ce:che ch:cha co:cos cr:cre cs:ces cu:chu cv:chv cy:cym da:dan de:deu "
    "dv:div dz:dzo ee:ewe el:ell en:eng eo:epo es:spa et:est eu:eus fa:fas ff:ful fi:fin fj:fij fo:fao fr:fra fy:fry "
    "ga:gle gd:gla gl:glg gn:grn gu:guj gv:glv ha:hau he:heb hi:hin ho:hmo hr:hrv ht:hat hu:hun hy:hye hz:her ia:ina "
    "id:ind ie:ile ig:ibo ii:iii ik:ipk io:ido is:isl it:ita iu:iku ja:jpn jv:jav ka:kat kg:kon ki:kik kj:kua kk:kaz "
    "kl:kal km:khm kn:kan ko:kor kr:kau ks:kas ku:kur kv:kom kw:cor ky:kir la:lat lb:ltz lg:lug li:lim ln:lin lo:lao "
    "lt:lit lu:lub lv:lav mg:mlg mh:mah mi:mri mk:mkd ml:mal mn:mon mr:mar ms:msa mt:mlt my:mya na:nau nb:nob nd:nde "
    "ne:nep ng:ndo nl:nld nn:nno no:nor nr:nbl nv:nav ny:nya oc:oci oj:oji om:orm or:ori os:oss pa:pan pi:pli pl:pol "
    "ps:pus pt:por qu:que rm:roh rn:run ro:ron ru:rus rw:kin sa:san sc:srd sd:snd se:sme sg:sag sh:hbs si:sin sk:slk "
    "sl:slv sm:smo sn:sna so:som sq:sqi sr:srp ss:ssw st:sot su:sun sv:swe sw:swa ta:tam te:tel tg:tgk th:tha ti:tir "
    "tk:tuk tl:tgl tn:tsn to:ton tr:tur ts:tso tt:tat tw:twi ty:tah ug:uig uk:ukr ur:urd uz:uzb ve:ven vi:vie vo:vol "
    "wa:wln wo:wol xh:xho yi:yid yo:yor za:zha zh:zho zu:zul "
    # M2M100 has its own code for Northern Sotho.
    "ns:nso"
)
_LONG = dict(pair.split(":") for pair in _ISO_639.split())
_SHORT = {long: short for short, long in _LONG.items() if short != "ns"}

# Languages that NLLB, SeamlessM4T or detectors name -> the macrolanguage that other models name, by ISO 639-3's table
# of macrolanguages (SIL).
_MACROLANGUAGES = (
    "als:sqi arb:ara ayr:aym azj:aze cmn:zho dik:din ekk:est fuv:ful gaz:orm khk:mon kmr:kur knc:kau lvs:lav nob:nor "
    "npi:nep ory:ori pbt:pus pes:fas plt:mlg quy:que swh:swa uzn:uzb ydd:yid zlm:msa zsm:msa"
)
_MACROLANGUAGE = dict(pair.split(":") for pair in _MACROLANGUAGES.split())

# lid.176 has Wikipedia's codes: "als" is Alemannic (in ISO 639-3 Tosk Albanian), and "bh" is Bhojpuri.
_WIKIPEDIA = {"als": "gsw", "bh": "bho"}

# The nearest language if a model lacks one: Egyptian Arabic, Cantonese and Wu as Arabic and Chinese, Nynorsk as
# Norwegian, Serbo-Croatian (in a detector: text in Latin letters) as Croatian.
_NEAREST = {"arz": "ara", "yue": "zho", "wuu": "zho", "nno": "nor", "hbs": "hrv"}


@dataclass(frozen=True, slots=True)
class Target:
    """The language of an answer: a prefix of the text, or further arguments of generate()."""

    prefix: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Languages:
    sources: frozenset[str] = frozenset()  # values of the tokenizer's `src_lang`; none if there is only one language
    targets: Mapping[str, Target] = field(default_factory=dict)  # by code; none if there is only one language

    def check(self, src_lang: str | None, tgt_lang: str | None, text: str) -> None:
        """Check that a text can be translated from one language to another; None for a language that is not named."""
        _check("src_lang", src_lang, self.sources)
        if tgt_lang is not None or not self.prefix_of(text)[0]:
            _check("tgt_lang", tgt_lang, self.targets.keys())

    def prefix_of(self, text: str) -> tuple[str, str]:
        """Split a target's prefix, which clients of Marian may send, off a text; the prefix may be empty."""
        for target in self.targets.values():
            token = target.prefix.strip()
            if token and text.startswith(token):
                return target.prefix, text[len(token) :].removeprefix(" ")
        return "", text


def _check(name: str, code: str | None, codes: Any) -> None:
    if code is None and not codes:
        return
    if not codes:
        raise InvalidOption(f"{name}: this model's languages are fixed.")
    if code not in codes:
        problem = "needed" if code is None else "not a language of this model"
        raise InvalidOption(f"{name}: {problem}; known are {', '.join(sorted(codes))}.")


def read_languages(tokenizer: Any, generation: Any) -> Languages:
    """Read the languages of a model of transformers, and how to select each."""
    prefixes = getattr(tokenizer, "supported_language_codes", None)
    if prefixes is not None:
        return Languages(targets={token[2:-2]: Target(prefix=f"{token} ") for token in prefixes})
    vocabulary = tokenizer.get_vocab()
    spoken = getattr(generation, "text_decoder_lang_to_code_id", None)
    if spoken is not None:
        sources = frozenset(code for code in spoken if f"__{code}__" in vocabulary)
        return Languages(sources, {code: Target(arguments={"tgt_lang": code}) for code in spoken})
    if hasattr(tokenizer, "get_lang_id"):
        ids = {code: tokenizer.get_lang_id(code) for code in tokenizer.lang_code_to_token}
    elif hasattr(tokenizer, "src_lang"):
        ids = {token: number for token, number in vocabulary.items() if CODE.fullmatch(token)}
    else:
        ids = {}
    place = "decoder_start_token_id" if type(tokenizer).__name__.startswith("MBartTokenizer") else "forced_bos_token_id"
    return Languages(frozenset(ids), {code: Target(arguments={place: number}) for code, number in ids.items()})


def find_key(code: str) -> str:
    """Return the key of a language's code; `fr`, `fr_XX`, `fra` and `fra_Latn` have one key."""
    base = code.partition("_")[0]
    long = _LONG.get(base, base)
    return _MACROLANGUAGE.get(long, long)


def shorten_code(code: str) -> str:
    """Return the code of ISO 639-1 for any code of a language; the key if there is no such code."""
    key = find_key(code)
    return _SHORT.get(key, key)


class ModelCodes:
    """The codes of one model's languages, by a detector's labels."""

    def __init__(self, codes: Iterable[str]) -> None:
        self._by_key: dict[str, list[str]] = defaultdict(list)
        for code in sorted(codes):
            self._by_key[find_key(code)].append(code)

    def find(self, label: str) -> str | None:
        """Find the model's code for a detector's label, itself (`zho_Hant`) or the first (`zho_Hans`), or None."""
        key = _WIKIPEDIA.get(label) or find_key(label)
        codes = self._by_key.get(key) or self._by_key.get(_NEAREST.get(key, ""), [])
        return label if label in codes else next(iter(codes), None)
