"""Text for the examples: made by the program, or WikiText-2 from a folder.

The made text has what a language model learns first: a few words are frequent and most are rare, words come in kinds
(article, adjective, noun, verb, …) that follow each other by a grammar, and a verb often belongs to the noun
before it. It is the same text every time.
"""

import lzma
from collections import Counter
from pathlib import Path

import numpy as np
import torch

#         after →   article adjective noun  verb  adverb stop
GRAMMAR = np.array([[0.00, 0.40, 0.60, 0.00, 0.00, 0.00],
                    [0.00, 0.20, 0.80, 0.00, 0.00, 0.00],
                    [0.00, 0.00, 0.00, 0.80, 0.00, 0.20],
                    [0.50, 0.00, 0.00, 0.00, 0.30, 0.20],
                    [0.40, 0.00, 0.00, 0.00, 0.00, 0.60],
                    [0.70, 0.30, 0.00, 0.00, 0.00, 0.00]])  # fmt: skip
NOUN, VERB = 2, 3


def load(words, tokens, folder=None, train_size=None, valid_size=None, make_train=2000, make_valid=200):
    """((inputs, targets) to train on, (inputs, targets) to validate on): integer tensors of (sequences, tokens).

    A target is the input's next word. Without sizes, all of WikiText-2 is read, with its `words` most frequent words
    (the others become <unk>), or `make_train` and `make_valid` sequences are made.
    """
    if folder is None:
        train = make((train_size or make_train) * tokens + 1, words, seed=1)
        valid = make((valid_size or make_valid) * tokens + 1, words, seed=2)
    else:
        train, valid = read_wikitext(Path(folder), words)
    return sequences(train, tokens, train_size), sequences(valid, tokens, valid_size)


def sequences(text, tokens, limit):
    count = (len(text) - 1) // tokens
    inputs = torch.from_numpy(text[: count * tokens]).view(count, tokens)
    targets = torch.from_numpy(text[1 : count * tokens + 1]).view(count, tokens)
    return inputs[:limit], targets[:limit]


def make(length, words, seed, streams=64):
    """`length` words, by their number: word w is of kind w % 6, and the more frequent the smaller it is."""
    rng = np.random.default_rng(seed)
    steps = -(-length // streams)
    odds, coin = GRAMMAR.cumsum(1), rng.random((steps, streams))
    kinds = np.zeros((steps, streams), np.int64)
    for i in range(1, steps):
        kinds[i] = (coin[i, :, None] > odds[kinds[i - 1]]).sum(1)
    kinds = kinds.T.ravel()
    per_kind = words // len(GRAMMAR)
    ranks = (per_kind ** rng.random(kinds.size)).astype(np.int64) - 1  # the n-th is 1/n as frequent as the first
    follows = np.flatnonzero((kinds[1:] == VERB) & (kinds[:-1] == NOUN) & (rng.random(kinds.size - 1) < 0.7))
    ranks[follows + 1] = ranks[follows]
    return (ranks * len(GRAMMAR) + kinds)[:length]


def read_wikitext(folder, words):
    train, valid = (
        lzma.open(folder / "wikitext-2" / f"{part}.txt.xz", "rt", encoding="utf-8", newline="\n")
        .read()
        .replace("\n", " <eos> ")
        .split()
        for part in ("train", "valid")
    )
    frequent = [word for word, _ in Counter(train).most_common(words)]
    numbers = {word: number for number, word in enumerate(frequent)}
    return tuple(np.array([numbers.get(word, numbers["<unk>"]) for word in part], np.int64) for part in (train, valid))
