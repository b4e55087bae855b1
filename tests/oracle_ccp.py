"""Algorithm 1 and section 3.1 of the paper read aloud: what the package is compared with.

Plain floats, lists and dicts and nested loops: slow, and nothing is shared with the package. The
gradient of the parameters' update is a finite difference of these loops, so no differentiation by
hand or by a library is trusted either.

    Context(s_c) = {s_p : c - w <= p <= c + w, p != c}                              context
    m(c, i)      = 1 where c != i share a window                                    mask
    z            = g(h): linear - batch norm - activation - linear                  project
    l(c, i)      = -log(exp(cos(z_c, z_i) / tau) / sum_{k != c} exp(cos(z_c, z_k) / tau))
    L_CL         = sum_{c, i} m(c, i) l(c, i), or its mean over the pairs           loss
    the queue    one a language, oldest out first                                   enqueue
    steps e = 0, 1, ..: project, loss, update, and only then fill the bank          run

What the paper leaves open, as it is read here:

* Asymmetric batch norm with one head: "centers-first" projects the centres, then the contexts, so
  that on even steps the contexts meet running statistics which the centres have just moved;
  "evaluation-first" projects the side in evaluation mode before the other moves anything. No
  gradient flows through running statistics.
* Plain: each side is normalised with its own statistics, and both update the running ones, the
  centres first. Shuffled: the same group by group.
* e counts the forward passes of a batch, not the parameters' updates.
"""

import copy
import math

EPSILON = 1e-5  # of torch.nn.BatchNorm1d
STEP = 1e-4  # of the finite differences


# ------------------------------------------------------------------------------------ windows
def context(center, length, radius):
    """Positions of Context(s_c) in a document of ``length`` sentences."""
    return [p for p in range(length) if center - radius <= p <= center + radius and p != center]


def mask(windows):
    """m(c, i) for the window of each sentence of the batch."""
    m = []
    for c in range(len(windows)):
        m.append([])
        for i in range(len(windows)):
            m[c].append(c != i and windows[c] == windows[i])
    return m


# --------------------------------------------------------------------------------------- head
# A head is {"first": layer, "norm": norm or None, "second": layer}; a layer {"weight": rows,
# "bias": row}; a norm {"gamma", "beta", "mean", "variance"}, one number a column. "seen" keeps the
# running statistics last used; "held" ones are used in their place (see gradient).
def linear(rows, layer):
    """y_o = b_o + sum_d W_od x_d, for every row."""
    out = []
    for x in rows:
        y = []
        for o in range(len(layer["weight"])):
            total = layer["bias"][o]
            for d in range(len(x)):
                total += layer["weight"][o][d] * x[d]
            y.append(total)
        out.append(y)
    return out


def statistics(rows):
    """Mean and biased variance of every column."""
    mean, variance = [], []
    for d in range(len(rows[0])):
        mean.append(sum(x[d] for x in rows) / len(rows))
        variance.append(sum((x[d] - mean[d]) ** 2 for x in rows) / len(rows))
    return mean, variance


def normalize(rows, norm, mean, variance):
    """gamma (x - mean) / sqrt(variance + epsilon) + beta, for every row."""
    out = []
    for x in rows:
        y = []
        for d in range(len(x)):
            unit = (x[d] - mean[d]) / math.sqrt(variance[d] + EPSILON)
            y.append(norm["gamma"][d] * unit + norm["beta"][d])
        out.append(y)
    return out


def move(norm, mean, variance, count, momentum):
    """Move the running statistics towards a batch's: the variance there is the unbiased one."""
    for d in range(len(mean)):
        unbiased = variance[d] * count / (count - 1)
        norm["mean"][d] = (1 - momentum) * norm["mean"][d] + momentum * mean[d]
        norm["variance"][d] = (1 - momentum) * norm["variance"][d] + momentum * unbiased


def activate(rows, activation):
    """ReLU, GELU (the exact one) or nothing."""
    functions = {
        "relu": lambda x: max(x, 0.0),
        "gelu": lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
        "none": lambda x: x,
    }
    return [[functions[activation](x) for x in row] for row in rows]


def evaluation_mode(rows, head, activation):
    """g with the running statistics, which stay as they are."""
    hidden = linear(rows, head["first"])
    if head["norm"]:
        running = (list(head["norm"]["mean"]), list(head["norm"]["variance"]))
        head["seen"] = head.get("held") or running
        hidden = normalize(hidden, head["norm"], *head["seen"])
    return linear(activate(hidden, activation), head["second"])


def training_mode(rows, head, activation, momentum):
    """g with the statistics of ``rows``, towards which the running ones move."""
    hidden = linear(rows, head["first"])
    mean, variance = statistics(hidden)
    move(head["norm"], mean, variance, len(rows), momentum)
    hidden = normalize(hidden, head["norm"], mean, variance)
    return linear(activate(hidden, activation), head["second"])


def parts(count, groups):
    """(start, end) of ``groups`` runs of ``count`` rows; the first ones are the longer ones."""
    bounds, start = [], 0
    for group in range(groups):
        end = start + count // groups + (1 if group < count % groups else 0)
        bounds.append((start, end))
        start = end
    return bounds


def grouped(rows, head, activation, momentum, groups):
    """g in training mode with the statistics of each group of rows by itself."""
    out = []
    for start, end in parts(len(rows), groups):
        out += training_mode(rows[start:end], head, activation, momentum)
    return out


def project(
    centers,
    contexts,
    heads,
    step,
    *,
    batch_norm="asymmetric",
    activation="relu",
    order="centers-first",
    momentum=0.1,
    groups=4,
    permutation=(),
):
    """Lines 6-12: (z_c, z_i); the running statistics in ``heads`` are changed.

    ``heads`` holds one head, or that of the centres and that of the contexts; ``permutation`` is
    the order in which the contexts are grouped (shuffled only).
    """
    g_c, g_i = heads[0], heads[-1]
    if batch_norm == "none":
        z_c = evaluation_mode(centers, g_c, activation)
        z_i = evaluation_mode(contexts, g_i, activation)
    elif batch_norm == "plain":
        z_c = training_mode(centers, g_c, activation, momentum)
        z_i = training_mode(contexts, g_i, activation, momentum)
    elif batch_norm == "shuffled":
        z_c = grouped(centers, g_c, activation, momentum, groups)
        shuffled = [contexts[p] for p in permutation]
        z_shuffled = grouped(shuffled, g_i, activation, momentum, groups)
        z_i = [z_shuffled[permutation.index(k)] for k in range(len(contexts))]
    elif step % 2 == 1:
        z_c = evaluation_mode(centers, g_c, activation)
        z_i = training_mode(contexts, g_i, activation, momentum)
    elif order == "centers-first":
        z_c = training_mode(centers, g_c, activation, momentum)
        z_i = evaluation_mode(contexts, g_i, activation)
    else:
        z_i = evaluation_mode(contexts, g_i, activation)
        z_c = training_mode(centers, g_c, activation, momentum)
    return z_c, z_i


# --------------------------------------------------------------------------------------- loss
def similarity(a, b, l2):
    """Cosine, or the dot product without ``l2``."""
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / (math.hypot(*a) * math.hypot(*b)) if l2 else dot


def candidates(c, i, m, count, window_positives, ignored):
    """Every k of the denominator of l(c, i): all but c itself, and what the settings leave out."""
    kept = []
    for k in range(count):
        other_positive = k < len(m) and m[c][k] and k != i
        if k == c:
            continue
        if other_positive and window_positives == "mask":
            continue
        if ignored and ignored[c][k] and k != i:
            continue
        kept.append(k)
    return kept


def loss(
    z,
    windows,
    bank,
    *,
    temperature,
    l2=True,
    reduction="mean",
    window_positives="keep",
    ignored=None,
):
    """L_CL over the sum or mean of its pairs, and what is reported beside it.

    ``z`` are the vectors of the batch (centres, then contexts), ``bank`` the vectors of the queue.
    A pair counts as found where its similarity is above that of every candidate that shares no
    window with c.
    """
    everything = z + bank
    m = mask(windows)
    per_pair, found, counts = [], [], []
    for c in range(len(z)):
        for i in range(len(z)):
            if not m[c][i]:
                continue
            score = {}
            for k in candidates(c, i, m, len(everything), window_positives, ignored):
                score[k] = similarity(everything[c], everything[k], l2) / temperature
            # log of the denominator; the greatest exponent is taken out, since e^710 overflows
            top = max(score.values())
            log_sum = top + math.log(sum(math.exp(s - top) for s in score.values()))
            per_pair.append(log_sum - score[i])
            negatives = [k for k in score if k >= len(z) or not m[c][k]]
            found.append(all(score[i] > score[k] for k in negatives))
            counts.append(len(score))
    total = sum(per_pair)
    return {
        "loss": total if reduction == "sum" else total / len(per_pair),
        "per_pair": per_pair,
        "accuracy": sum(found) / len(found),
        "candidates": sum(counts) / len(counts),
    }


def same_sentence(keys, bank_keys, windows=None):
    """Candidates k that are a copy of c, or with ``windows`` of any sentence of its window.

    The sentence itself is no copy: without copies nothing is True, positives included.
    """
    everything, ignored = keys + bank_keys, []
    for c in range(len(keys)):
        originals = [c]
        if windows:
            originals = [r for r in range(len(keys)) if windows[r] == windows[c]]
        ignored.append([])
        for k in range(len(everything)):
            copied = [r for r in originals if r != k and keys[r] == everything[k]]
            ignored[c].append(len(copied) > 0)
    return ignored


# --------------------------------------------------------------------------------------- bank
def new_bank(size, kind="language"):
    """No queue yet: each begins empty with the first vectors of its language."""
    return {"size": size, "kind": kind, "queues": {}}


def queue(bank, language):
    """The (vector, key) pairs that a batch of ``language`` sees."""
    if bank["kind"] == "none":
        return []
    return bank["queues"].get("every language" if bank["kind"] == "shared" else language, [])


def enqueue(bank, language, z, keys):
    """Put vectors in one by one; whenever there are too many, the oldest leaves."""
    if bank["kind"] == "none":
        return
    name = "every language" if bank["kind"] == "shared" else language
    for vector, key in zip(z, keys, strict=True):
        bank["queues"].setdefault(name, []).append((list(vector), key))
        if len(bank["queues"][name]) > bank["size"]:
            bank["queues"][name].pop(0)


# ---------------------------------------------------------------------------------------- run
def cells(heads):
    """(list, index) of every parameter: weights, biases, gamma and beta."""
    found = []
    for head in heads:
        rows = head["first"]["weight"] + head["second"]["weight"]
        rows += [head["first"]["bias"], head["second"]["bias"]]
        if head["norm"]:
            rows += [head["norm"]["gamma"], head["norm"]["beta"]]
        found += [(row, d) for row in rows for d in range(len(row))]
    return found


def forward(batch, heads, step, queued, settings):
    """One batch: z_c, z_i and the loss; the running statistics in ``heads`` are changed."""
    z_c, z_i = project(
        batch["centers"],
        batch["contexts"],
        heads,
        step,
        permutation=batch.get("permutation", ()),
        **settings["head"],
    )
    ignored = None
    if settings["mask_duplicates"]:
        ignored = same_sentence(batch["keys"], [key for _, key in queued], batch["windows"])
    vectors = [vector for vector, _ in queued]
    value = loss(z_c + z_i, batch["windows"], vectors, ignored=ignored, **settings["loss"])
    return z_c, z_i, value


def gradient(batch, heads, step, queued, settings):
    """dL/dtheta of every parameter, by central differences of fourth order."""
    heads = copy.deepcopy(heads)  # what moves here, running statistics too, moves in a copy
    unmoved = copy.deepcopy(heads)
    forward(batch, unmoved, step, queued, settings)
    for head, seen in zip(heads, unmoved, strict=True):
        head["held"] = seen.get("seen")  # no gradient flows through running statistics
    slopes = []
    for row, d in cells(heads):
        value, at = row[d], {}
        for steps in (-2, -1, 1, 2):
            row[d] = value + steps * STEP
            at[steps] = forward(batch, copy.deepcopy(heads), step, queued, settings)[2]["loss"]
        row[d] = value
        slopes.append((8 * (at[1] - at[-1]) - (at[2] - at[-2])) / (12 * STEP))
    return slopes


def adam(cell, slope, memory, count, rate):
    """One step of Adam (Kingma and Ba 2015, algorithm 1) for one parameter."""
    row, d = cell
    memory["m"] = 0.9 * memory["m"] + 0.1 * slope
    memory["v"] = 0.999 * memory["v"] + 0.001 * slope**2
    m, v = memory["m"] / (1 - 0.9**count), memory["v"] / (1 - 0.999**count)
    row[d] -= rate * m / (math.sqrt(v) + 1e-8)


def entries(which, e, batch, z_c, z_i):
    """(language, vectors, keys) of what a batch leaves in the bank."""
    n = len(z_c)
    centers = (batch["language"], z_c, batch["keys"][:n])
    contexts = (batch["language"], z_i, batch["keys"][n:])
    if which == "contexts":
        return [contexts]
    if which == "both":
        return [centers, contexts]
    return [contexts] if e % 2 == 0 else [centers]  # evaluated


def run(batches, heads, bank, settings):
    """Algorithm 1 over given hidden vectors; ``heads`` and ``bank`` end as training leaves them.

    Args:
        batches: One dict a forward pass: language, centers, contexts (hidden vectors), windows and
            keys (of the centres, then the contexts), permutation (shuffled only). None stands for
            a batch of masked language modelling: it counts towards an update, and not in e.
        heads: As in ``project``.
        bank: As ``new_bank`` makes it.
        settings: head and loss, of ``project`` and ``loss``; mask_duplicates, whether equal
            sentences leave the denominator; accumulation, the forward passes of an update, whose
            losses are averaged; rate, of Adam, 0 to leave the parameters; enters, what the bank
            takes: "contexts" (z_i), "both" (z_c first) or "evaluated" (the side in that mode).

    Returns:
        A dict each CCP batch: z_c, z_i, loss (as ``loss`` gives it), the bank before the next
        update and the running statistics after the batch.
    """
    e, updates, records, waiting, slopes = 0, 0, [], [], [0.0] * len(cells(heads))
    memories = [{"m": 0.0, "v": 0.0} for _ in slopes]
    for number, batch in enumerate(batches, 1):
        if batch:
            queued = queue(bank, batch["language"])
            if settings["rate"]:
                for p, slope in enumerate(gradient(batch, heads, e, queued, settings)):
                    slopes[p] += slope / settings["accumulation"]
            z_c, z_i, value = forward(batch, heads, e, queued, settings)
            waiting += entries(settings["enters"], e, batch, z_c, z_i)
            e += 1
            record = {"z_c": z_c, "z_i": z_i, "loss": value, "bank": bank}
            record["statistics"] = [head["norm"] for head in heads]
            records.append(copy.deepcopy(record))
        if number % settings["accumulation"] == 0 and waiting:
            # MLM alone gives the head no gradient: it rests, and Adam's memory of it too
            updates += 1
            for p, cell in enumerate(cells(heads)):
                adam(cell, slopes[p], memories[p], updates, settings["rate"])
            slopes = [0.0] * len(slopes)
            for entry in waiting:  # only after the update
                enqueue(bank, *entry)
            waiting = []
    return records
