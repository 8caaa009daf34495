"""A model rewritten by torch.fx."""

import torch
from torch import fx, nn

torch.manual_seed(112)
model = fx.symbolic_trace(nn.Sequential(nn.Linear(5, 9), nn.ReLU(), nn.Linear(9, 1)))
for node in model.graph.nodes:
    if node.op == "call_module" and isinstance(model.get_submodule(node.target), nn.ReLU):
        with model.graph.inserting_after(node):
            new = model.graph.call_function(torch.nn.functional.gelu, node.args)
        node.replace_all_uses_with(new)
        model.graph.erase_node(node)
        break
model.recompile()
x = torch.randn(22, 5)
y = x.norm(dim=1, keepdim=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f}")
