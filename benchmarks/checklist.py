"""What there is to reproduce: each table and claim of the paper as an item to tick off.

An item is where it stands in the paper, the command that a reader types for it, what was published,
what the full run needs, and, where this can be done here, how it is measured. Published numbers and
settings are in ``benchmarks/paper/``, the claims of section 5 in
:mod:`benchmarks.ablation_cells`; what is in no text we have is None here and a dash in the table.

A stand-in measures something of the same kind on the data at hand. Its value is not the paper's
number and is never judged by it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks import checklist_measures as measures
from benchmarks import checklist_needs as needs
from benchmarks.checklist_item import ONLY, AtHand, Item, Value
from benchmarks.table import AVERAGE, read_published
from ccpretrieve.calibration_config import CalibrateConfig
from ccpretrieve.config import Config, EncodeConfig, flag_of
from ccpretrieve.data.languages import language
from ccpretrieve.data.sources import MRTYDI_LANGUAGES, XQUAD_LANGUAGES
from ccpretrieve.finetune_config import FinetuneConfig
from ccpretrieve.training_config import PretrainConfig

FIRST = "settings-pretrain first; "
HUB = "castorini/mdpr"
#: Row of Table 3 -> short name, what is fine-tuned, layers and width.
STARTS = {
    "CCP": ("ccp", "out/ccp", needs.LARGE),
    "InfoXLM": ("infoxlm", "infoxlm-large", needs.LARGE),
    "XLM-R": ("xlm-r", "xlm-r-large", needs.LARGE),
    "LaBSE": ("labse", "labse", needs.BASE),
    "M-BERT": ("m-bert", "m-bert", needs.BASE),
}
#: Row of Pyserini's table -> short name, checkpoint on the hub.
TIED = {
    "mDPR tied, NQ": ("tied-nq", f"{HUB}-tied-pft-nq"),
    "mDPR tied, MS MARCO": ("tied-msmarco", f"{HUB}-tied-pft-msmarco"),
    "mDPR tied, MS MARCO + all TyDi": ("tied-all", f"{HUB}-tied-pft-msmarco-ft-all"),
}
#: Settings of pretraining that the paper leaves open.
OPEN = (
    *("temperature", "radius", "mlm_share", "warmup_steps", "schedule", "clip", "max_length"),
    *("head_activation", "window_positives"),
)


def items() -> list[Item]:
    """The checklist: settings, then the paper's sections, stand-ins last."""
    return [
        *_settings(),
        *_tatoeba(),
        _data(),
        *_pyserini(),
        *map(_table_3, STARTS),
        *_xor(),
        *_others(),
        *_stand_ins(),
    ]


# -- settings --


def _settings() -> list[Item]:
    """What holds here if no setting is given, against the paper's settings."""
    from ccpretrieve.model import known

    return [
        _setting(
            Item(
                "settings-pretrain",
                "sections 3.1 and 4, Algorithm 1: settings of pretraining",
                "python -m ccpretrieve.pretrain --config benchmarks/paper/pretrain.yaml "
                "--encoder xlm-r-large --corpus documents --output out/ccp",
                needs.PRETRAINING,
            ),
            PretrainConfig,
            unstated=OPEN,
        ),
        _setting(
            Item(
                "settings-finetune",
                "section 4.3: settings of fine-tuning",
                _fine_tuning("out/ccp", "ccp"),
                needs.finetuning(),
            ),
            FinetuneConfig,
        ),
        _setting(
            Item(
                "settings-calibrate",
                "section 3.2: settings of the calibration",
                "python -m ccpretrieve.calibrate --config benchmarks/paper/calibrate.yaml "
                "--encoder out/ccp --pooling mean --layer 14 --texts documents "
                "--steps shift,scale,rotate --output out/ccp.safetensors",
                f"{FIRST}text of each language, which need not be parallel",
            ),
            CalibrateConfig,
            unstated=("steps",),
        ),
        _setting(
            Item(
                "settings-tatoeba",
                "section 4.2: sentence vectors of XLM-R large",
                "python -m benchmarks.tatoeba --data data/tatoeba --encoder xlm-r-large",
                needs.tatoeba(*needs.LARGE),
            ),
            EncodeConfig,
            known.lookup("xlm-r-large"),
        ),
    ]


def _setting(
    item: Item,
    config: type[Config],
    actual: Mapping[str, Any] | None = None,
    unstated: Sequence[str] = (),
) -> Item:
    """An item with the settings of ``benchmarks/paper/<its name>.yaml``.

    Args:
        item: Without numbers.
        config: Of the command.
        actual: Setting -> value here; the command's defaults if None.
        unstated: Settings that the paper leaves open.
    """
    name = item.name.removeprefix("settings-")
    expected: dict[str, Mapping[str, Value]] = {
        flag: {ONLY: value} for flag, value in measures.stated(name, config).items()
    }
    return replace(
        item,
        expected=expected | {flag_of(each): {ONLY: None} for each in unstated},
        source=f"benchmarks/paper/{name}.yaml; measured is what holds here if none is given",
        measure=partial(measures.settings, actual or measures.defaults(config)),
        lacks=_nothing,
    )


def _nothing(at: AtHand, column: str) -> str:
    return ""


def _fine_tuning(start: str, short: str) -> str:
    return (
        "python -m ccpretrieve.finetune --config benchmarks/paper/finetune.yaml --train nq "
        f"--dev nq --encoder {start} --output out/{short}-nq"
    )


# -- section 4.2 --


def _tatoeba() -> list[Item]:
    command = "python -m benchmarks.tatoeba --encoder out/ccp --pooling mean --layer 14"
    dump = "python -m benchmarks.parallel_builder --sentences sentences.csv --links links.csv"
    return [
        Item(
            "tatoeba-english",
            "section 4.2: Tatoeba with English, 112 languages, 14 in the main table; raw, shift, "
            "scale, rotate",
            f"{command} --data data/tatoeba --calibration out/ccp.safetensors",
            f"{FIRST}{needs.tatoeba(*needs.LARGE)}",
            source=_source("tatoeba-steps-paper"),
        ),
        Item(
            "tatoeba-pairs",
            "section 4.2: Tatoeba without English, 14 pairs, 50 in the supplement; loss",
            f"{dump} --pairs fra-deu jpn-kor --with-english --output data/pairs\n"
            f"{command} --data data/pairs --pairs all",
            f"{FIRST}a dump of Tatoeba's sentences and links; which pairs is in no text we have",
            source=_source("tatoeba-english-paper"),
        ),
    ]


# -- section 4.3 --


def _data() -> Item:
    (questions,) = read_published("mrtydi-questions").rows.values()
    names = " ".join(f"mrtydi-{code}" for code in MRTYDI_LANGUAGES)
    return Item(
        "mrtydi-data",
        "section 4.3: the test questions of Mr.TyDi v1.1",
        f"python -m ccpretrieve.corpora {names} --fetch --yes",
        "questions and judgements: some MB that come by themselves",
        {
            measures.QUESTIONS: {code: int(questions[code]) for code in MRTYDI_LANGUAGES},
            measures.JUDGEMENTS: dict.fromkeys(MRTYDI_LANGUAGES),
        },
        _source("mrtydi-questions"),
        measure=measures.counts,
        lacks=measures.lacks_counts,
    )


def _pyserini() -> list[Item]:
    """The rows that Pyserini has published, of systems that anybody can have."""
    rows = {
        "BM25": Item(
            "mrtydi-bm25",
            "beside Table 3: Pyserini's BM25",
            "python -m benchmarks.mrtydi --systems bm25",
            f"{needs.collections()}; no GPU; Lucene has not been timed on them here",
        ),
        "mDPR split, NQ": Item(
            "mrtydi-mdpr-split-nq",
            "beside Table 3: Pyserini's mDPR split, NQ",
            f"hf download {HUB}-question-nq --local-dir out/mdpr-split/query\n"
            f"hf download {HUB}-passage-nq --local-dir out/mdpr-split/passage\n"
            "python -m benchmarks.mrtydi --encoder out/mdpr-split --pooling cls --similarity dot "
            "--title pair",
            needs.mrtydi(*needs.BASE),
            lacks=lambda at, column: "two towers that the command puts together",
            encoder=None,
        ),
        **{
            row: Item(
                f"mrtydi-mdpr-{short}",
                f"beside Table 3: Pyserini's {row}",
                f"python -m benchmarks.mrtydi --encoder {encoder}",
                needs.mrtydi(*needs.BASE),
                encoder=encoder,
            )
            for row, (short, encoder) in TIED.items()
        },
    }
    return [_scored(item, row, "pyserini") for row, item in rows.items()]


def _table_3(row: str) -> Item:
    """A row of the paper: its recipe from a start, then all languages zero-shot."""
    short, start, shape = STARTS[row]
    large = "its size is in no text we have, so that of CCP's own start is taken; "
    before = {"CCP": FIRST, "InfoXLM": large, "XLM-R": large}
    item = Item(
        f"mrtydi-{short}",
        f"Table 3, {row}",
        f"{_fine_tuning(start, short)}\npython -m benchmarks.mrtydi --encoder out/{short}-nq",
        f"{before.get(row, '')}{needs.finetuning()}; {needs.mrtydi(*shape)}",
        encoder=f"out/{short}-nq",
    )
    return _scored(item, row, "paper")


def _scored(item: Item, row: str, origin: str) -> Item:
    """An item with a published row of Mr.TyDi, measured by its encoder if it names one or none."""
    from benchmarks.mrtydi_report import METRICS

    tables = {label: f"{files}-{origin}" for label, files in METRICS.values()}
    published = replace(
        item,
        expected={label: _row(file, row, MRTYDI_LANGUAGES) for label, file in tables.items()},
        source=_source(*tables.values()),
        digits=3 if origin == "paper" else 4,  # as many as were published
    )
    if item.encoder is None:
        return published
    return replace(
        published,
        measure=partial(measures.mrtydi, item.encoder),
        lacks=partial(measures.lacks_mrtydi, item.encoder),
        kept=True,
    )


def _xor() -> list[Item]:
    """XOR-Retrieve: the paper's rows, and that of a system that has a source."""
    files = {f"R@{size}kt": f"xor-retrieve-r{size}kt-drdecr" for size in (2, 5)}
    table = read_published(files["R@2kt"])
    (row,) = table.rows
    return [
        Item(
            "xor-retrieve",
            "section 4.3: XOR-Retrieve, dev, R@2kt and R@5kt",
            "python -m ccpretrieve.corpora xor-retrieve --fetch --yes\n"
            "python -m benchmarks.xor_retrieve --encoder out/ccp-nq",
            f"what mrtydi-ccp fine-tunes; {needs.xor_retrieve(*needs.LARGE)}",
            source=_source("xor-retrieve-r2kt-paper"),
        ),
        Item(
            "xor-retrieve-drdecr",
            f"beside section 4.3: {row}",
            "python -m benchmarks.xor_retrieve --predictions FILE",
            "its submission file; seconds",
            {label: _row(file, row, table.rows[row]) for label, file in files.items()},
            _source(*files.values()),
            lacks=lambda at, column: "the submission file of a system that is not part of this",
        ),
    ]


def _others() -> list[Item]:
    return [
        Item(
            "figure-1",
            "Figure 1: clouds of English and Arabic, XLM-R and CCP, before and after calibration",
            "python -m benchmarks.figure1 --data data/tatoeba --languages en ar --encoder "
            "xlm-r-large out/ccp --names XLM-R CCP --pooling mean --layer 14 14",
            f"{FIRST}minutes on a CPU",
            source="a picture without a number",
        ),
        Item(
            "supervised",
            "appendix: training questions of every language",
            "python -m benchmarks.supervised --config benchmarks/recipes/mrtydi-supervised.yaml "
            "--encoder out/ccp",
            f"{FIRST}{needs.collections()}; a GPU",
            source="no figure of that table could be had from any source",
        ),
    ]


# -- stand-ins --


def _stand_ins() -> list[Item]:
    """Small trainings, and small data with an encoder of the reader's."""
    from benchmarks.ablation_cells import CELLS
    from benchmarks.mrtydi_report import METRICS

    claims = {name: cell.claim for name, cell in CELLS.items() if cell.claim}
    shared = [code for code in XQUAD_LANGUAGES if code in MRTYDI_LANGUAGES]
    pairs = [code for code in MRTYDI_LANGUAGES if code != "en"]
    words: dict[str, Mapping[str, Value]] = {name: {ONLY: each} for name, each in claims.items()}
    return [
        Item(
            "ablations",
            "section 5: what each part is worth",
            "python -m benchmarks.ablations --corpus documents --tatoeba data/tatoeba --encoder E",
            "the paper's size: settings-pretrain once a cell; this size: 5 min a cell on two cores",
            {measures.TRAINED: {ONLY: None}, measures.START: {ONLY: None}, **words},
            "the paper's claims in kind; no figure of its table could be had from any source",
            "small trainings; Tatoeba accuracy in per cent, mean and spread over seeds",
            partial(measures.ablations, tuple(claims)),
            measures.lacks_ablations,
        ),
        Item(
            "xquad",
            "section 4.3 in small: question and passages of one language",
            "python -m benchmarks.mrtydi --data data/xquad --encoder E --languages "
            + " ".join(shared),
            "a minute a language on two idle cores",
            {label: dict.fromkeys([*shared, AVERAGE]) for label, _ in METRICS.values()},
            stand_in="XQuAD, 240 passages a language, for Mr.TyDi",
            measure=measures.xquad,
            lacks=measures.lacks_xquad,
            encoder=None,
            kept=True,
        ),
        Item(
            "tatoeba-small",
            "section 4.2 in small: translations that are nearest neighbours",
            "python -m benchmarks.tatoeba --data data/tatoeba --encoder E --languages "
            + " ".join(language(code).iso3 for code in pairs),
            "minutes on two idle cores",
            {measures.ACCURACY: dict.fromkeys([*pairs, AVERAGE])},
            stand_in="Mr.TyDi's languages, the encoder's own layer and pooling, no calibration",
            measure=measures.tatoeba,
            lacks=measures.lacks_tatoeba,
            encoder=None,
            kept=True,
        ),
    ]


# -- published numbers --


def _row(file: str, row: str, columns: Mapping[str, object]) -> dict[str, Value]:
    """A published row and its average, None where there is a dash."""
    table = read_published(file)
    scores: dict[str, Value] = {code: table.rows[row].get(code) for code in columns}
    return {**scores, AVERAGE: table.averages.get(row)}


def _source(*files: str) -> str:
    """Who published, each line once."""
    return " ".join(dict.fromkeys(line for file in files for line in read_published(file).source))
