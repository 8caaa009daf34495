"""Ways to cut the arguments that another one's failure rules out."""

from __future__ import annotations

import torch
from torch import nn

from paceline.script import tree
from paceline.script.draws.rows import Draws
from paceline.script.proof.conflicts import Conflicts
from paceline.script.proof.proof import Part, Proof

STEPS = 6  # as many as samples: every argument fits in two ways


class TimeFirst(nn.Module):
    """Tokens and their mask, which must be cut alike, and five arguments that are used afterwards."""

    calls: list[int] = []  # noqa: RUF012

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(STEPS, STEPS))

    def forward(self, tokens, hides, *others):
        self.calls.append(len(others))
        assert tokens.shape[1] == hides.shape[0]
        assert tokens.shape[0] == hides.shape[1] == STEPS
        y = tokens.sum(0) * hides.sum(1) * self.weight.sum()
        for other in others:
            assert len(other) == len(y)
            y = y * other.sum(1).tanh()
        return y


def call(plain_module, *args, **kwargs):
    return nn.Module.__call__(plain_module, *args, **kwargs)


def arguments():
    torch.manual_seed(0)
    return (torch.rand(STEPS, STEPS), *(torch.rand(STEPS, STEPS) for _ in range(6))), {}


def test_ways_that_cut_alike_what_the_module_had_looked_at_are_not_tried():
    net, given, conflicts = TimeFirst(), arguments(), Conflicts()
    few = (given[0][0][:4], *given[0][1:]), {}
    conflicts.learn(call, net, few, {0: 0}, Draws())
    assert conflicts.rule_out({0: 0})
    assert conflicts.rule_out({0: 0, 3: 1})  # the call had not come to argument 3
    assert not conflicts.rule_out({0: 0, 1: 1})
    assert not conflicts.rule_out({0: 1})


def test_a_proof_of_many_square_arguments_tries_few_ways():
    net, given = TimeFirst(), arguments()
    plan = Proof(Part(0), 0, Draws(), 2)(call, net, given, tree.leaves(given))
    assert plan.cuts == {0: 1, **dict.fromkeys(range(1, 7), 0)}
    assert len(TimeFirst.calls) < 30
