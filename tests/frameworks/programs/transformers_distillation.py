# framework: transformers
# program: distillation of BERT by hidden states, attentions and similarities of a batch, in a module around both models
import torch
import torch.nn.functional as F
from torch import nn
from transformers import BertConfig, BertModel

torch.manual_seed(0)


def bert(layers, width):
    config = BertConfig(
        vocab_size=50,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=2 * width,
        max_position_embeddings=20,
        attn_implementation="eager",
    )
    return BertModel(config)


class Distiller(nn.Module):
    def __init__(self):
        super().__init__()
        self.teacher, self.student = bert(4, 24).eval().requires_grad_(False), bert(2, 12)
        self.widen = nn.ModuleList([nn.Linear(12, 24) for _ in range(3)])

    def forward(self, ids, mask):
        asked = {"output_hidden_states": True, "output_attentions": True}
        with torch.no_grad():
            t = self.teacher(ids, mask, **asked)
        s = self.student(ids, mask, **asked)
        pairs = zip(self.widen, s.hidden_states, t.hidden_states[::2], strict=True)
        hidden = sum(F.mse_loss(widen(a) * mask[..., None], b * mask[..., None]) for widen, a, b in pairs)
        attention = sum(F.mse_loss(a, b) for a, b in zip(s.attentions, t.attentions[1::2], strict=True))
        z, w = F.normalize(s.pooler_output, dim=-1), F.normalize(t.pooler_output, dim=-1)
        return hidden, attention, F.smooth_l1_loss(z @ z.T, w @ w.T)


net = Distiller()
optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=2e-3)
for step in range(4):
    lengths = torch.randint(4, 11, (8,))
    mask = (torch.arange(10) < lengths[:, None]).long()
    ids = torch.randint(1, 50, (8, 10)) * mask
    losses = net(ids, mask)
    optimizer.zero_grad()
    sum(losses).backward()
    optimizer.step()
    print(step, " ".join(f"{loss.item():.5f}" for loss in losses))
