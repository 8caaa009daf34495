# framework: x-transformers
# program: an autoregressive decoder with rotary positions, accumulation, validation and `generate`, as in its enwik8 script
import torch
from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

torch.manual_seed(0)
model = AutoregressiveWrapper(
    TransformerWrapper(
        num_tokens=32,
        max_seq_len=24,
        attn_layers=Decoder(dim=24, depth=2, heads=2, rotary_pos_emb=True, attn_dropout=0.1, ff_dropout=0.1),
    )
)
data = torch.randint(0, 32, (4000,))


class TextSamplerDataset(torch.utils.data.Dataset):
    def __init__(self, data, length):
        self.data, self.length = data, length

    def __getitem__(self, index):
        start = torch.randint(0, self.data.size(0) - self.length - 1, (1,))
        return self.data[start : start + self.length + 1].long()

    def __len__(self):
        return self.data.size(0) // self.length


def cycle(loader):
    while True:
        yield from loader


train_loader = cycle(torch.utils.data.DataLoader(TextSamplerDataset(data[:3500], 16), batch_size=6, drop_last=True))
val_loader = cycle(torch.utils.data.DataLoader(TextSamplerDataset(data[3500:], 16), batch_size=6, drop_last=True))
optim = torch.optim.Adam(model.parameters(), lr=1e-3)
for i in range(6):
    model.train()
    for _ in range(2):
        loss = model(next(train_loader))
        (loss / 2).backward()
    print(f"training loss: {loss.item():.5f}")
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optim.step()
    optim.zero_grad()
    if i % 3 == 0:
        model.eval()
        with torch.no_grad():
            print(f"validation loss: {model(next(val_loader)).item():.5f}")
model.eval()
print(model.generate(prompts=torch.tensor([[1, 2, 3]]), seq_len=8, temperature=0.0).tolist())
