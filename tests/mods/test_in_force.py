"""Which mods say that they do nothing. What `run` makes of it: tests/acceptance/test_verbs.py."""

from __future__ import annotations

import pytest
import torch
from staged import lone_group, staged
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline.comm.group import Group
from paceline.mods import catalog
from paceline.mods.in_force import InForce


@pytest.mark.parametrize("mod", ["resident", "channels_last", "fused_optimizer", "loader=1", "compile=default"])
def test_a_mod_that_acts_is_not_reported(mod):
    class Eager(nn.Sequential):
        def compile(self, *args, **kwargs):  # the compiler itself takes long
            pass

    with staged(lone_group(), mods=(mod,)) as stage:
        (asked,) = catalog.parse([mod])
        found = catalog.load(asked)
        found.on_stage(stage)
        stage.subscribe(InForce(stage, {mod: found}))
        model = Eager(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for (x,) in DataLoader(TensorDataset(torch.randn(8, 1, 4, 4)), 4):
            model(x).square().mean().backward()
            optimizer.step()
        assert not any("not in force" in text for text in stage.notices)


def test_precision_leaves_a_call_under_the_scripts_own_autocast_alone():
    with staged(lone_group(), mods=("precision=bf16",)) as stage:
        found = catalog.load(catalog.parse(["precision=bf16"])[0])
        found.on_stage(stage)
        stage.subscribe(InForce(stage, {"precision=bf16": found}))
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with torch.autocast("cpu", torch.bfloat16):
            output = model(torch.randn(8, 4))
        assert output.dtype is torch.bfloat16
        output.float().square().mean().backward()
        optimizer.step()
        said = "--mod precision=bf16 is not in force: the script calls its models under autocast itself."
        assert said in stage.notices
        assert model(torch.randn(8, 4)).dtype is torch.float32


def of_two(group: Group, mod: str, layer: type[nn.Module]) -> list[str]:
    with staged(group, mods=(mod,)) as stage:
        found = catalog.load(catalog.parse([mod])[0])
        found.on_stage(stage)
        stage.subscribe(InForce(stage, {mod: found}))
        model = nn.Sequential(nn.Linear(4, 2), layer(2) if layer is nn.BatchNorm1d else layer())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        return [text for text in stage.notices if "not in force" in text]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("mod", "layer", "why"),
    [
        ("bn=local", nn.BatchNorm1d, ""),
        ("bn=local", nn.Tanh, "no model of the script has a batch norm."),
        ("random=own", nn.Dropout, ""),
        ("random=own", nn.Tanh, "no model of the script draws random numbers."),
    ],
)
def test_mods_of_several_workers(pool, mod, layer, why):
    for told in pool(2).run(of_two, mod, layer):
        assert told == ([f"--mod {mod} is not in force: {why}"] if why else [])
