"""A loader's batches as sharded tensors: what stays on own rows, what makes them whole without a message, and in which
loops they are handed out.

That numbers are right is shown by tests/acceptance, with tests/scripts/augmented_input.py and input_in_odd_places.py.
"""

from __future__ import annotations

from collections.abc import Callable

START = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from paceline.script.rows.tensor import Rows

gathered = []
plain_gather = Rows.wholes
def wholes(self, alive):
    gathered.extend(member for member in alive if member.at_hand is None)
    return plain_gather(self, alive)
Rows.wholes = wholes
torch.manual_seed(0)
images, labels = torch.rand(48, 3, 8, 8), torch.randint(0, 4, (48,))
model = nn.Sequential(nn.Flatten(), nn.Linear(192, 4))
loader = DataLoader(TensorDataset(images, labels), batch_size=8)
def kinds():
    found = []
    for x, y in loader:
        found.append(type(x).__name__)
        yield x, y
    print(*found)
"""


def test_augmented_rows_stay_with_their_workers(play: Callable[..., object]) -> None:
    text = """
    for x, y in kinds():
        x = x.clone()
        x[:, :, 2:4] = x[torch.randperm(8), :, 2:4]
        for augment in (
            lambda x: x.flip(-1), lambda x: x.flip(0), lambda x: x.roll(1, 0), lambda x: x[torch.randperm(8)],
            lambda x: x.index_select(0, torch.randperm(8)), lambda x: torch.where(torch.rand(8, 1, 1, 1) < 0.5, x, -x),
            lambda x: x + torch.randn_like(x), lambda x: (x - x.mean((1, 2, 3), keepdim=True)).div_(2),
            lambda x: nn.functional.pad(x, (1, 1, 1, 1), mode="reflect")[:, :, 1:9, :8],
        ):
            x = augment(x)
            if not isinstance(x, Rows):
                print("whole after", augment.__code__.co_firstlineno)
                break
        model(x).sum().backward()
    print("gathered", len(gathered))
    """
    printed = play(START + _lines(text), gather_below=0).well.printed.splitlines()
    assert printed == [" ".join(["Rows"] * 6), "gathered 0"]


def test_what_needs_all_rows_of_a_batch_asks_no_other_worker(play: Callable[..., object]) -> None:
    text = """
    uses = (
        lambda x: x.numpy(), lambda x: x.std(0), lambda x: x[torch.rand(8) < 0.5], lambda x: x.mul_(2), lambda x: x[0],
        lambda x: nn.functional.relu(x, True), lambda x: x.view(8, -1).__setitem__(0, 0.0), lambda x: x.unique(),
    )
    from paceline.script.rows.layout import Layout
    Layout.gather = None
    for use in uses:
        x, y = next(iter(DataLoader(TensorDataset(images, labels), batch_size=8)))
        view = x.transpose(1, 2)
        print(type(x).__name__)
        use(x)
        print(type(x).__name__, type(view).__name__, torch.equal(x.transpose(1, 2), view))
    """
    printed = play(START + _lines(text), gather_below=0).well.printed.splitlines()
    assert printed == ["Rows", "Tensor Tensor True"] * 8


def test_batches_are_plain_where_nothing_is_computed_of_them(play: Callable[..., object]) -> None:
    text = """
    for epoch in range(2):
        for x, y in kinds():
            model(x).sum().backward()
    """
    printed = play(START + _lines(text), gather_below=0).well.printed.splitlines()
    assert printed == ["Rows Rows Rows Tensor Tensor Tensor", " ".join(["Tensor"] * 6)]


def test_batches_are_plain_where_what_is_computed_of_them_must_be_gathered(play: Callable[..., object]) -> None:
    text = """
    for epoch in range(2):
        for x, y in kinds():
            x = x * 2
            x = x - x.std(0)
            model(x).sum().backward()
    """
    printed = play(START + _lines(text), gather_below=0).well.printed.splitlines()
    assert printed == ["Rows Rows Tensor Tensor Tensor Tensor", " ".join(["Tensor"] * 6)]


def test_small_batches_are_plain(play: Callable[..., object]) -> None:
    text = """
    for x, y in kinds():
        model(x * 2).sum().backward()
    """
    assert play(START + _lines(text)).well.printed.splitlines() == [" ".join(["Tensor"] * 6)]


def _lines(text: str) -> str:
    """Without the indentation of the test."""
    return "\n".join(line[4:] for line in text.splitlines())
