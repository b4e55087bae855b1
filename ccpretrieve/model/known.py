"""Settings of public multilingual encoders whose checkpoints do not state them.

The settings are how each model was trained or is evaluated by its authors:

* M-BERT, XLM-R and InfoXLM are language models: without fine-tuning their sentence vector is the
  mean of a middle layer, compared by cosine. The CCP paper takes layer 14 of the 24 (section 4.2);
  XTREME's and InfoXLM's evaluations take layer 7 of the 12.
* LaBSE: first token through the model's own tanh layer, unit length.
* mDPR (Mr.TyDi's baselines): first token, dot product, title and text as a pair.
* multilingual-e5: mean, unit length, ``query: `` and ``passage: ``.
"""

from typing import Any

Settings = dict[str, Any]

_JOIN: Settings = {"title": "join"}
_COSINE: Settings = {"normalize": True, "similarity": "cosine"}
_MIDDLE_OF_12: Settings = {"pooling": "mean", "layer": 7, **_COSINE, **_JOIN}
_LAYER_14: Settings = {"pooling": "mean", "layer": 14, **_COSINE, **_JOIN}
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

#: Last part of the hub name, lower case -> what the model's authors do.
KNOWN: dict[str, Settings] = {
    "bert-base-multilingual-cased": _MIDDLE_OF_12,
    "bert-base-multilingual-uncased": _MIDDLE_OF_12,
    "xlm-roberta-base": _MIDDLE_OF_12,
    "xlm-roberta-large": _LAYER_14,
    "infoxlm-base": _MIDDLE_OF_12,
    "infoxlm-large": _LAYER_14,
    "labse": {"pooling": "pooler", **_COSINE, **_JOIN},
    "mdpr-question-nq": _DPR,
    "mdpr-passage-nq": _DPR,
    "mdpr-tied-pft-nq": _DPR,
    "mdpr-tied-pft-msmarco": _DPR,
    "mdpr-tied-pft-msmarco-ft-all": _DPR,
    "multilingual-e5-small": _E5,
    "multilingual-e5-base": _E5,
    "multilingual-e5-large": _E5,
}


def lookup(name: str) -> Settings | None:
    """Settings of a model by its directory or hub name; None if it is not in the table."""
    return KNOWN.get(name.rstrip("/").rsplit("/", 1)[-1].lower())
