"""LARS and LAMB in float64, tensor by tensor, written from the formulas and from nothing else."""

from __future__ import annotations

import math

import numpy as np

Array = np.ndarray


class Reference:
    """Keeps weights and state of its own; `step` takes the gradients of one step, None for a tensor that has none."""

    def __init__(self, weights: list[Array], exempt: list[bool]) -> None:
        self.weights = [np.array(w, dtype=np.float64) for w in weights]
        self.exempt = exempt
        self.first = [np.zeros_like(w) for w in self.weights]
        self.second = [np.zeros_like(w) for w in self.weights]
        self.count = [0] * len(weights)


def norm(a: Array) -> float:
    return math.sqrt(float((a * a).sum()))


class Lamb(Reference):
    def step(
        self, grads: list[Array | None], *, lr: float, betas: tuple[float, float], eps: float, decay: float
    ) -> None:
        for i, g in enumerate(grads):
            if g is None:
                continue
            g = np.array(g, dtype=np.float64)
            self.count[i] += 1
            t, (b1, b2), w = self.count[i], betas, self.weights[i]
            self.first[i] = b1 * self.first[i] + (1 - b1) * g
            self.second[i] = b2 * self.second[i] + (1 - b2) * g * g
            m_hat = self.first[i] / (1 - b1**t)
            v_hat = self.second[i] / (1 - b2**t)
            u = m_hat / (np.sqrt(v_hat) + eps)
            ratio = 1.0
            if not self.exempt[i]:
                u = u + decay * w
                if norm(w) > 0 and norm(u) > 0:
                    ratio = norm(w) / norm(u)
            self.weights[i] = w - lr * ratio * u


class Lars(Reference):
    def step(
        self,
        grads: list[Array | None],
        *,
        lr: float,
        momentum: float,
        decay: float,
        trust: float,
        eps: float,
        nesterov: bool,
    ) -> None:
        for i, g in enumerate(grads):
            if g is None:
                continue
            g, w, rate = np.array(g, dtype=np.float64), self.weights[i], 1.0
            d = g
            if not self.exempt[i]:
                d = g + decay * w
                if norm(w) > 0 and norm(g) > 0:
                    rate = trust * norm(w) / (norm(g) + decay * norm(w) + eps)
            d = rate * d
            self.first[i] = momentum * self.first[i] + d
            self.weights[i] = w - lr * (d + momentum * self.first[i] if nesterov else self.first[i])
