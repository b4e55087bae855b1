"""What the full runs of the checklist need: data, disk, memory, hours, GPU.

Derived where that is possible: from the sizes that the registry states, the size of a Transformer
and one measured speed. What has not been measured here is said in words.

hours     passages / SPEED x (layers x width²) / (that of TIMED) / 3600, of one CPU thread
disk      4 bytes a number, shards and index
memory    of an exact search: the vectors of the largest collection

The arithmetic of a Transformer grows with layers x width²; what attention adds is small at the
length of a passage.
"""

from ccpretrieve.data.registry import human, lookup, table
from ccpretrieve.data.sources import MRTYDI_LANGUAGES, TATOEBA

BASE, LARGE = (12, 768), (24, 1024)  # layers, width
#: Passages of XQuAD that `encode` puts through 12 layers of width 384 in a CPU second (one thread,
#: float32, x86), as `python -m benchmarks.speed encode` measures it.
SPEED, TIMED = 12.3, (12, 384)
XOR_PASSAGES = 18_000_000  # of 100 words, about
DAYS, CARDS = 7, 16  # of pretraining, V100s
PRETRAINING = (
    f"2.5 TB of cleaned Common Crawl in 108 languages and {DAYS} days of {CARDS} V100 "
    f"({DAYS * 24 * CARDS:,} GPU hours), as the paper says"
)


def factor(layers: int, width: int) -> float:
    """How many times the arithmetic of the timed Transformer."""
    return layers * width**2 / (TIMED[0] * TIMED[1] ** 2)


def cpu_hours(passages: int, layers: int, width: int) -> float:
    """Hours of one thread to encode passages."""
    return passages / SPEED * factor(layers, width) / 3600


def collections() -> str:
    """What is fetched for Mr.TyDi."""
    passages = sum(count for _, count, _ in MRTYDI_LANGUAGES.values())
    size = sum(megabytes for _, _, megabytes in MRTYDI_LANGUAGES.values()) * 1_000_000
    return f"{passages / 1e6:.0f} M passages in 11 languages, {human(size)} to fetch"


def mrtydi(layers: int, width: int) -> str:
    """Encoding all of Mr.TyDi."""
    counts = [count for _, count, _ in MRTYDI_LANGUAGES.values()]
    return f"{collections()}; {_vectors(sum(counts), max(counts), layers, width)}"


def xor_retrieve(layers: int, width: int) -> str:
    """Encoding the English Wikipedia of XOR-Retrieve."""
    passages = lookup("xor-retrieve").passages
    assert passages is not None, "the registry has them"
    vectors = _vectors(XOR_PASSAGES, XOR_PASSAGES, layers, width)
    return f"{human(passages.size)} to fetch; {vectors}"


def finetuning() -> str:
    """Fine-tuning on Natural Questions."""
    size = sum(file.size for file in lookup("nq").training.values())
    return (
        f"{human(size)} of Natural Questions to fetch; 8 V100 in the paper, for hours that are in "
        "no text we have"
    )


def tatoeba(layers: int, width: int) -> str:
    """Encoding all of Tatoeba."""
    entries = [entry for entry in table().values() if entry.family is TATOEBA]
    size = sum(file.size for entry in entries for _, _, file in entry.files())
    return (
        f"{human(size)} to fetch; the 20 minutes of two cores at {TIMED[0]} layers of {TIMED[1]} "
        f"are {factor(layers, width):.0f} times as many at {layers} of {width}"
    )


def _vectors(passages: int, largest: int, layers: int, width: int) -> str:
    """Encoding and searching vectors as wide as the Transformer."""
    return (
        f"{human(2 * 4 * width * passages)} of disk, {human(4 * width * largest)} of memory to "
        f"search the largest collection, {cpu_hours(passages, layers, width):,.0f} CPU hours to "
        f"encode ({SPEED} passages a second and thread at {TIMED[0]} layers of {TIMED[1]}, scaled "
        f"to {layers} of {width}), so a GPU, on which no speed has been measured"
    )
