"""Public multilingual encoders: the settings their checkpoints do not state, and short names.

``--encoder m-bert`` and its full hub name mean the same; so does a local directory whose last part
is either. A layer is counted as everywhere here: 0 the embeddings, N the N-th of the Transformer.

* M-BERT, XLM-R, InfoXLM, Unicoder are language models: without fine-tuning their sentence vector is
  the mean of a middle layer over all tokens, special ones included, compared by cosine. XTREME's
  evaluation (google-research/xtreme, scripts/run_tatoeba.sh with third_party/evaluate_retrieval.py)
  drops the embeddings and counts from 0: its layer 7 of 12 is our 8, its layer 13 of 24 our 14. The
  CCP paper's layer 14 (section 4.2) is that one. InfoXLM's contrast is trained on layer 8
  (microsoft/unilm, infoxlm: ``--xlco_layer 8``). Unicoder is XLM-R base in shape, and nothing says
  otherwise of its sentences.
* CRISS: mean of the encoder's last states, behind its final norm, over all tokens with ``</s>`` and
  without a language code, compared by cosine (fairseq, examples/criss: save_encoder.py and
  sentence_retrieval/). A converted checkpoint states it itself (:mod:`ccpretrieve.model.criss`).
* LaBSE: first token through the model's own tanh layer, unit length (its model card).
* LASER: the largest of each of its LSTM's outputs, compared by cosine; it pools by itself
  (:mod:`ccpretrieve.model.laser`).
* mDPR (Mr.TyDi's baselines): first token, dot product, title and text as a pair.
* multilingual-e5: mean, unit length, ``query: `` and ``passage: ``.
"""

import difflib
from pathlib import Path
from typing import Any

Settings = dict[str, Any]

_JOIN: Settings = {"title": "join"}
_COSINE: Settings = {"normalize": True, "similarity": "cosine"}
_LAYER_8: Settings = {"pooling": "mean", "layer": 8, **_COSINE, **_JOIN}
_LAYER_14: Settings = {"pooling": "mean", "layer": 14, **_COSINE, **_JOIN}
_LABSE: Settings = {"pooling": "pooler", **_COSINE, **_JOIN}
_DPR: Settings = {"pooling": "cls", "similarity": "dot", "title": "pair"}
_E5: Settings = {
    "pooling": "mean",
    **_COSINE,
    **_JOIN,
    "query_prefix": "query: ",
    "passage_prefix": "passage: ",
    "query_length": 512,
    "passage_length": 512,
}
_LASER: Settings = {**_LABSE, "query_length": 512, "passage_length": 512}

#: Last part of the hub name, lower case -> what the model's authors do.
KNOWN: dict[str, Settings] = {
    "bert-base-multilingual-cased": _LAYER_8,
    "bert-base-multilingual-uncased": _LAYER_8,
    "xlm-roberta-base": _LAYER_8,
    "xlm-roberta-large": _LAYER_14,
    "infoxlm-base": _LAYER_8,
    "infoxlm-large": _LAYER_14,
    "unicoder": _LAYER_8,
    "criss": {"pooling": "mean", "layer": -1, **_COSINE, **_JOIN},
    "labse": _LABSE,
    "laser": _LASER,
    "mdpr-question-nq": _DPR,
    "mdpr-passage-nq": _DPR,
    "mdpr-tied-pft-nq": _DPR,
    "mdpr-tied-pft-msmarco": _DPR,
    "mdpr-tied-pft-msmarco-ft-all": _DPR,
    "multilingual-e5-small": _E5,
    "multilingual-e5-base": _E5,
    "multilingual-e5-large": _E5,
}

#: Short name -> hub name.
HUB_NAMES: dict[str, str] = {
    "m-bert": "google-bert/bert-base-multilingual-cased",
    "xlm-r": "FacebookAI/xlm-roberta-base",
    "xlm-r-large": "FacebookAI/xlm-roberta-large",
    "infoxlm": "microsoft/infoxlm-base",
    "infoxlm-large": "microsoft/infoxlm-large",
    "labse": "sentence-transformers/LaBSE",
}

#: Short name of what no hub has -> where it is and what to do.
ELSEWHERE: dict[str, str] = {
    "unicoder": (
        "there is no directory of that name, and no hub has it; download the 12-layer model that "
        "github.com/microsoft/Unicoder links to (understanding/) and give its directory, called "
        "unicoder"
    ),
    "criss": (
        "there is no directory of that name, and no hub has it; unpack criss_checkpoints.tar.gz of "
        "fairseq's examples/criss, run python -m benchmarks.convert_criss --input "
        "criss_checkpoints/criss.3rd.pt --output criss, and give that directory"
    ),
}

LASER = "laser"  # its short name; its package knows where it is
LASER_WEIGHTS = "laser2.pt"  # the file that makes a directory LASER's


def is_laser(path: Path) -> bool:
    """Whether a directory holds LASER's weights."""
    return (path / LASER_WEIGHTS).is_file()


def lookup(name: str) -> Settings | None:
    """Settings of a model by its short or hub name or its directory; None if it is not known.

    A directory of the hub's own cache, ``models--<owner>--<model>/snapshots/<commit>``, is the
    model's.
    """
    if is_laser(Path(name).expanduser()):
        return KNOWN[LASER]
    parts = name.rstrip("/").lower().split("/")
    last = parts[-1]
    if len(parts) > 2 and parts[-2] == "snapshots" and parts[-3].startswith("models--"):
        last = parts[-3].rsplit("--", 1)[-1]
    if last in HUB_NAMES:
        last = HUB_NAMES[last].rsplit("/", 1)[-1].lower()
    return KNOWN.get(last)


def hub_name(name: str) -> str:
    """The name to ask the hub for: what a short name stands for, else ``name`` itself."""
    return HUB_NAMES.get(name.lower(), name)


def hint(name: str) -> str:
    """What "give the path of a checkpoint directory" is followed by where there is no ``name``.

    >>> hint("m-bert")
    ' called bert-base-multilingual-cased'
    >>> hint("mbert")
    "; did you mean 'm-bert'?"
    """
    if lookup(name) is not None:
        return f" called {hub_name(name).rsplit('/', 1)[-1]}"
    near = difflib.get_close_matches(name.lower(), [*HUB_NAMES, *ELSEWHERE, LASER], n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
