"""``ccpretrieve VERB ...``, the console script: same commands as ``python -m ccpretrieve.VERB``."""

import importlib
import sys

import ccpretrieve
from ccpretrieve.commandline import await_libraries
from ccpretrieve.errors import unknown

VERBS = {
    "corpora": "list the corpora known by name, and fetch them",
    "encode": "encode a corpus and build its index",
    "index": "build another kind of index from the embeddings",
    "search": "search an index: topics into a run, or a typed question",
    "evaluate": "score runs against relevance judgements",
    "pretrain": "pretrain an encoder on documents, by contrastive context prediction",
    "finetune": "fine-tune an encoder on questions and passages, by dense passage retrieval",
    "mine": "find hard negatives for questions, by BM25 or an index",
    "calibrate": "fit the cross-lingual calibration: shift, scale, rotate",
    "pyserini": "Pyserini's own commands, with our encoders registered",
}


def main() -> None:
    """Run a verb; without one, list them."""
    await_libraries()
    verb, *rest = sys.argv[1:] or ["--help"]
    if verb in ("--version", "-V", "version"):
        sys.stdout.write(f"ccpretrieve {ccpretrieve.__version__}\n")
        return
    if verb in ("--help", "-h", "help"):
        width = max(map(len, VERBS))
        lines = [f"  {name:<{width}}  {what}" for name, what in VERBS.items()]
        sys.stdout.write("\n".join(["Usage: ccpretrieve VERB [OPTIONS]", "", *lines, ""]))
        return
    if verb not in VERBS:
        sys.exit(f"error: {unknown('command', verb, tuple(VERBS))}")
    importlib.import_module(f"ccpretrieve.{verb}").main(rest)


if __name__ == "__main__":
    main()
