"""Puts the embeddings of two languages on the plane, as they are or calibrated (section 3.2)."""

import importlib
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from benchmarks.clouds import Panel, Points
from ccpretrieve.errors import UserError
from ccpretrieve.retrieval.bitext import accuracy

Vectors = NDArray[np.float32]
Clouds = tuple[Vectors, Vectors]
#: Both clouds on the plane, and the share of variance shown there if that has a meaning.
Projection = Callable[[Vectors, Vectors], tuple[Points, Points, float | None]]

PROJECTIONS = ("pca", "umap", "tsne")


def calibrate(clouds: Clouds, fitted: Clouds) -> Clouds:
    """Shift and scale each cloud by the statistics of other vectors of its language.

    Args:
        clouds: Shape ``(N, D)`` each.
        fitted: Shape ``(M, D)`` each, M at least 2; not in pairs.
    """
    from ccpretrieve.model.calibration_file import Spread

    x, y = (Spread.fit(f).transform(v) for v, f in zip(clouds, fitted, strict=True))
    return x, y


def panel(clouds: Clouds, project: Projection, name: str) -> Panel:
    """Project two clouds, and score them in all dimensions.

    Args:
        clouds: Shape ``(N, D)`` each, rows translations of each other.
        project: To the plane.
        name: Of the encoder, for the message.

    Raises:
        UserError: If all vectors are the same.
    """
    if not np.ptp(np.concatenate(clouds), axis=0).any():
        raise UserError(f"{name}: gives all sentences the same vector; there is nothing to draw")
    x, y, variance = project(*clouds)
    return Panel((x, y), variance, accuracy(*clouds))


def pca(x: Vectors, y: Vectors) -> tuple[Points, Points, float | None]:
    """The two directions in which both clouds together vary most.

    Args:
        x: Shape ``(N, D)``.
        y: Shape ``(M, D)``.

    Returns:
        Both on the plane, shapes ``(N, 2)`` and ``(M, 2)``, and the share of the variance there.
        The first language is on the left; up is where the largest loading is positive.
    """
    both = np.concatenate([x, y]).astype(np.float64)
    both -= both.mean(axis=0)
    _, s, vt = np.linalg.svd(both, full_matrices=False)
    axes = vt[:2]
    axes *= np.sign(axes[np.arange(2), np.abs(axes).argmax(axis=1)])[:, None]
    plane = both @ axes.T
    if plane[: len(x), 0].mean() > 0:
        plane[:, 0] *= -1
    return plane[: len(x)], plane[len(x) :], float((s[:2] ** 2).sum() / (s**2).sum())


def projection(name: str, seed: int) -> Projection:
    """Look a projection up.

    Raises:
        UserError: If it needs a library that is not installed.
    """
    if name == "pca":
        return pca
    module, package = {
        "umap": ("umap", "umap-learn"),
        "tsne": ("sklearn.manifold", "scikit-learn"),
    }[name]
    try:
        library = importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"--projection {name} needs {package}: pip install {package}; pca needs nothing"
        ) from error

    def project(x: Vectors, y: Vectors) -> tuple[Points, Points, float | None]:
        both = np.concatenate([x, y])
        if name == "umap":
            near = min(15, len(both) - 1)
            made = library.UMAP(n_neighbors=near, random_state=seed, n_jobs=1)
        else:
            made = library.TSNE(perplexity=min(30, (len(both) - 1) / 3), random_state=seed)
        plane = made.fit_transform(both).astype(np.float64)
        return plane[: len(x)], plane[len(x) :], None

    return project
