"""Languages: one table for every data set's spelling.

Mr.TyDi's archives say ``japanese``, its short names ``ja``, Tatoeba ``jpn``; all are this table's
one row. It holds the languages of Tatoeba's test set, of NTREX-128 as far as we use it, and those
XLM-R was trained on. The three-letter codes are ISO 639-3 as Tatoeba spells them, which for some
macrolanguages is the usual individual language (``cmn``, ``pes``, ``swh``); other spellings of the
same row are in :data:`ALSO`. Scripts are Unicode's names, most used first.
"""

import re
from dataclasses import dataclass

from ccpretrieve.errors import unknown


@dataclass(frozen=True, slots=True)
class Language:
    """One language.

    Attributes:
        iso3: ISO 639-3 code in Tatoeba's spelling, such as ``jpn``.
        iso1: ISO 639-1 code, such as ``ja``; empty if the language has none.
        scripts: Unicode names of the scripts it is written in, such as ``Hiragana``.
        name: English name in lower case, as Mr.TyDi and Pyserini write it.
    """

    iso3: str
    iso1: str
    scripts: tuple[str, ...]
    name: str

    @property
    def code(self) -> str:
        """The code our corpora and calibrations use: of two letters where there is one."""
        return self.iso1 or self.iso3


# iso3, iso1 (- for none), scripts, name
TABLE = """
afr af Latin afrikaans
amh am Ethiopic amharic
ang -  Latin old english
ara ar Arabic arabic
arq -  Arabic algerian arabic
arz -  Arabic egyptian arabic
asm as Bengali assamese
ast -  Latin asturian
awa -  Devanagari awadhi
aze az Latin azerbaijani
bel be Cyrillic belarusian
ben bn Bengali bengali
ber -  Latin berber
bos bs Latin,Cyrillic bosnian
bre br Latin breton
bul bg Cyrillic bulgarian
cat ca Latin catalan
cbk -  Latin chavacano
ceb -  Latin cebuano
ces cs Latin czech
cha ch Latin chamorro
cmn zh Han chinese
cor kw Latin cornish
csb -  Latin kashubian
cym cy Latin welsh
dan da Latin danish
deu de Latin german
dsb -  Latin lower sorbian
dtp -  Latin central dusun
ell el Greek greek
eng en Latin english
epo eo Latin esperanto
est et Latin estonian
eus eu Latin basque
fao fo Latin faroese
fin fi Latin finnish
fra fr Latin french
fry fy Latin west frisian
gla gd Latin scottish gaelic
gle ga Latin irish
glg gl Latin galician
gsw -  Latin swiss german
guj gu Gujarati gujarati
hau ha Latin hausa
heb he Hebrew hebrew
hin hi Devanagari hindi
hrv hr Latin croatian
hsb -  Latin upper sorbian
hun hu Latin hungarian
hye hy Armenian armenian
ibo ig Latin igbo
ido io Latin ido
ile ie Latin interlingue
ina ia Latin interlingua
ind id Latin indonesian
isl is Latin icelandic
ita it Latin italian
jav jv Latin javanese
jpn ja Hiragana,Katakana,Han japanese
kab -  Latin kabyle
kan kn Kannada kannada
kat ka Georgian georgian
kaz kk Cyrillic kazakh
khm km Khmer khmer
kir ky Cyrillic kyrgyz
kor ko Hangul,Han korean
kur ku Latin,Arabic kurdish
kzj -  Latin coastal kadazan
lao lo Lao lao
lat la Latin latin
lfn -  Latin,Cyrillic lingua franca nova
lit lt Latin lithuanian
lvs lv Latin latvian
mal ml Malayalam malayalam
mar mr Devanagari marathi
max -  Latin north moluccan malay
mhr -  Cyrillic meadow mari
mkd mk Cyrillic macedonian
mlg mg Latin malagasy
mon mn Cyrillic mongolian
mya my Myanmar burmese
nds -  Latin low german
nep ne Devanagari nepali
nld nl Latin dutch
nno nn Latin norwegian nynorsk
nob nb Latin norwegian bokmål
nov -  Latin novial
oci oc Latin occitan
ori or Oriya odia
orm om Latin oromo
orv -  Cyrillic old east slavic
pam -  Latin kapampangan
pan pa Gurmukhi punjabi
pes fa Arabic persian
pms -  Latin piedmontese
pol pl Latin polish
por pt Latin portuguese
pus ps Arabic pashto
ron ro Latin romanian
rus ru Cyrillic russian
san sa Devanagari sanskrit
sin si Sinhala sinhala
slk sk Latin slovak
slv sl Latin slovenian
snd sd Arabic sindhi
som so Latin somali
spa es Latin spanish
sqi sq Latin albanian
srp sr Cyrillic,Latin serbian
sun su Latin sundanese
swe sv Latin swedish
swg -  Latin swabian
swh sw Latin swahili
tam ta Tamil tamil
tat tt Cyrillic,Latin tatar
tel te Telugu telugu
tgl tl Latin tagalog
tha th Thai thai
tuk tk Latin turkmen
tur tr Latin turkish
tzl -  Latin talossan
uig ug Arabic uyghur
ukr uk Cyrillic ukrainian
urd ur Arabic urdu
uzb uz Latin,Cyrillic uzbek
vie vi Latin vietnamese
war -  Latin waray
wuu -  Han wu chinese
xho xh Latin xhosa
yid yi Hebrew yiddish
yor yo Latin yoruba
yue -  Han cantonese
zsm ms Latin malay
zul zu Latin zulu
"""


def _row(line: str) -> Language:
    iso3, iso1, scripts, name = line.split(maxsplit=3)
    return Language(iso3, iso1.replace("-", ""), tuple(scripts.split(",")), name)


LANGUAGES = tuple(_row(line) for line in TABLE.strip().splitlines())

#: Other codes and names in use for a row, with its iso3: macrolanguages and their usual member.
ALSO = {
    **{"arb": "ara", "azj": "aze", "als": "sqi", "ekk": "est", "khk": "mon", "kmr": "kur"},
    **{"fas": "pes", "lav": "lvs", "msa": "zsm", "nor": "nob", "no": "nob", "npi": "nep"},
    **{"ory": "ori", "plt": "mlg", "swa": "swh", "uzn": "uzb", "ydd": "yid", "zho": "cmn"},
    **{"farsi": "pes", "filipino": "tgl", "mandarin": "cmn", "norwegian": "nob"},
}

_BY_ISO3 = {row.iso3: row for row in LANGUAGES}
_BY_SPELLING = (
    {spelling: _BY_ISO3[iso3] for spelling, iso3 in ALSO.items()}
    | {row.name: row for row in LANGUAGES}
    | {row.iso1: row for row in LANGUAGES if row.iso1}
    | _BY_ISO3
)


def find(name: str) -> Language | None:
    """Look a language up by any spelling; None if it is not in the table."""
    return _BY_SPELLING.get(" ".join(name.lower().replace("_", " ").replace("-", " ").split()))


def language(name: str) -> Language:
    """Look a language up by any spelling.

    Args:
        name: A code of two or three letters or the English name, in any case.

    Raises:
        UserError: If the table has no such language; near spellings are offered.

    >>> language("ja") is language("jpn") is language("Japanese")
    True
    """
    row = find(name)
    if row is None:
        listing = "give an ISO 639 code or an English name, such as ja, jpn or japanese"
        raise unknown("language", name, _BY_SPELLING, listing)
    return row


def guess(name: str) -> str:
    """The code of the language a corpus' name is or ends in, ``""`` if it is none.

    >>> guess("mrtydi-v1.1-japanese")
    'ja'
    """
    row = find(name) or find(re.split(r"[-_./:]", name)[-1])
    return row.code if row else ""
