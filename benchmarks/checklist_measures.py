"""How items of the checklist are measured, one column at a time, and what that lacks.

By the functions of the other benchmarks, which go on where they were; nothing is downloaded that
was not asked for. A measure that finds the conditions of the published number broken fails, so that
no verdict is passed on something else.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from benchmarks.checklist_item import AtHand, Column, Value
from benchmarks.table import PAPER
from ccpretrieve.config import Config, flag_of
from ccpretrieve.data.languages import language
from ccpretrieve.data.registry import find, lookup, open_corpus
from ccpretrieve.errors import UserError
from ccpretrieve.files import read_json
from ccpretrieve.finetune_config import FinetuneConfig
from ccpretrieve.training_config import PretrainConfig
from ccpretrieve.values import read_yaml

QUESTIONS, JUDGEMENTS = "test questions", "test judgements"
ACCURACY = "accuracy"
TRAINED, START = "trained", "start"
TRAINING = Path("training") / "settings.json"  # of a checkpoint that `finetune` or `pretrain` made


# -- settings --


def stated(name: str, config: type[Config]) -> dict[str, str]:
    """The paper's settings of a command, in ``benchmarks/paper/<name>.yaml``, in words."""
    return {flag: said(value) for flag, value in read_yaml(PAPER / f"{name}.yaml", config).items()}


def defaults(config: type[Config]) -> dict[str, Any]:
    """Setting -> what holds if none is given."""
    return {each.name: each.default for each in dataclasses.fields(config)}


def settings(actual: Mapping[str, Any], at: AtHand, column: str) -> Column:
    """Settings as they are here, by flag."""
    return {flag_of(name): said(value) for name, value in actual.items()}


def said(value: Any) -> str:
    """A setting in words: equal ones in equal words."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "as the checkpoint"
    return f"{value:g}" if isinstance(value, float) else str(value)


# -- Mr.TyDi --


def counts(at: AtHand, code: str) -> Column:
    """Questions and judgements of a language."""
    corpus = open_corpus(f"mrtydi-{code}", at.data)
    judged = sum(len(each) for each in corpus.qrels("test").values())
    return {QUESTIONS: len(corpus.topics("test")), JUDGEMENTS: judged}


def lacks_counts(at: AtHand, code: str) -> str:
    """Files of questions and judgements that are not there."""
    entry = lookup(f"mrtydi-{code}")
    files = (entry.topics["test"], entry.qrels["test"])
    return " and ".join(Path(file.path).name for file in files if find(file, at.data) is None)


def mrtydi(encoder: str, at: AtHand, code: str) -> Column:
    """Scores of a checkpoint, or of BM25 if it is empty, in one language.

    Raises:
        UserError: If the data, or the training of the checkpoint, is not that of the number.
    """
    from benchmarks import mrtydi as benchmark

    if is_ours(encoder):
        check_trained(Path(encoder))
    chosen: dict[str, Any] = {"systems": ("bm25",)}
    if encoder:
        chosen = {"encoder": (encoder,)}
    report = benchmark.run(
        benchmark.MrTydiConfig(languages=(code,), data_dir=at.data, quiet=at.quiet, **chosen)
    )
    if different := getattr(report, "differences", ()):
        raise UserError("; ".join(different))
    return _only_row(report)


def lacks_mrtydi(encoder: str, at: AtHand, code: str) -> str:
    """The checkpoint, if it is to be made first, or the passages."""
    passages = lookup(f"mrtydi-{code}").passages
    found = passages is not None and find(passages, at.data) is not None
    gone = [encoder] if is_ours(encoder) and not Path(encoder).is_dir() else []
    return " and ".join(gone + ([] if found else ["the passages"]))


def is_ours(encoder: str) -> bool:
    """Whether a checkpoint is one that a command of the checklist makes."""
    return encoder.startswith("out/")


def check_trained(checkpoint: Path) -> None:
    """Fail unless a checkpoint was fine-tuned as the paper did, CCP's pretrained so too.

    Raises:
        UserError: Naming a setting that differs.
    """
    tuned = _check_settings(checkpoint, "finetune", FinetuneConfig)
    if [Path(name).name for name in tuned.get("train", ())] != ["nq"]:
        raise UserError(f"{checkpoint}: was not fine-tuned on nq alone")
    if checkpoint.name == "ccp-nq":
        _check_settings(checkpoint.with_name("ccp"), "pretrain", PretrainConfig)


def _check_settings(checkpoint: Path, name: str, config: type[Config]) -> dict[str, Any]:
    """The settings that a checkpoint was made with, if they are the paper's."""
    made = read_json(checkpoint / TRAINING)
    words = {flag_of(key): said(value) for key, value in made.items()}
    for flag, value in stated(name, config).items():
        if words.get(flag) != value:
            raise UserError(f"{checkpoint}: made with {flag} {words.get(flag)}, not {value}")
    return dict(made)


def _only_row(report: Any) -> Column:
    """Label -> score of the one system and language of a report."""
    from benchmarks.mrtydi_report import METRICS

    ((reached,),) = (of_row.values() for of_row in report.measured.values())
    return {label: reached.scores[metric] for metric, (label, _) in METRICS.items()}


# -- stand-ins --


def xquad(at: AtHand, code: str) -> Column:
    """Question and passages of one language of XQuAD."""
    from benchmarks import mrtydi as benchmark

    return _only_row(
        benchmark.run(
            benchmark.MrTydiConfig(
                data=at.data / "xquad",
                languages=(code,),
                encoder=(str(at.encoder),),
                quiet=at.quiet,
            )
        )
    )


def lacks_xquad(at: AtHand, code: str) -> str:
    """The encoder, or the questions."""
    return _lacks(at, f"xquad/{code}/topic.test.tsv")


def tatoeba(at: AtHand, code: str) -> Column:
    """Accuracy on Tatoeba, raw, mean of both directions, as the encoder pools by itself."""
    from benchmarks import tatoeba as benchmark
    from ccpretrieve.retrieval.bitext import RAW

    report = benchmark.run(
        benchmark.TatoebaConfig(
            data=at.data / "tatoeba",
            languages=(language(code).iso3,),
            encoder=(str(at.encoder),),
            quiet=at.quiet,
        )
    )
    (encoded,) = report.encoders.values()
    return {ACCURACY: encoded.average(RAW).mean}


def lacks_tatoeba(at: AtHand, code: str) -> str:
    """The encoder, or the sentences."""
    return _lacks(at, "tatoeba/{0}-eng.{0}".format(language(code).iso3))


def _lacks(at: AtHand, file: str) -> str:
    gone = [] if at.encoder else ["--encoder"]
    return " and ".join(gone + ([] if (at.data / file).is_file() else [file]))


def ablations(cells: Sequence[str], at: AtHand, column: str) -> Column:
    """Cell -> Tatoeba accuracy in per cent, in the pooling of its loss; finished ones only."""
    from benchmarks.ablation_cells import BASE, Result

    made = read_json(_seeds(at.ablations, BASE)[0])["settings"]
    how = f"{made['pooling']} raw"
    found: dict[str, Value] = {
        TRAINED: (
            f"{made['max_steps']} updates of {made['accumulated_batch_size']} windows, "
            f"{made['layers']} layers, {made['pooling']} pooling"
        )
    }
    if (start := at.ablations / "start.json").is_file():
        found[START] = f"{100 * fmean(read_json(start)['accuracy'][how].values()):.1f}"
    for name in cells:
        results = [Result(**read_json(path)["result"]) for path in _seeds(at.ablations, name)]
        if reached := [100 * result.average(how) for result in results]:
            spread = f" ±{stdev(reached):.1f}" if len(reached) > 1 else ", one seed"
            found[name] = f"{fmean(reached):.1f}{spread}"
    return found


def lacks_ablations(at: AtHand, column: str) -> str:
    """Finished trainings of the base."""
    from benchmarks.ablation_cells import BASE

    return "" if _seeds(at.ablations, BASE) else "finished cells (--ablations)"


def _seeds(folder: Path, cell: str) -> list[Path]:
    return sorted(folder.glob(f"{cell}.[0-9]*.json"))
