# framework: conformer
# program: speech recognition with `CTCLoss`, masked features, a warm-up, greedy decoding
import torch
import torch.nn as nn
from conformer import Conformer

torch.manual_seed(0)


class ASR(nn.Module):
    def __init__(self, vocab=12, dim=32):
        super().__init__()
        self.sub = nn.Sequential(nn.Conv1d(20, dim, 3, 2, 1), nn.GELU())
        self.enc = Conformer(
            dim=dim,
            depth=2,
            dim_head=16,
            heads=2,
            ff_mult=2,
            conv_expansion_factor=2,
            conv_kernel_size=7,
            attn_dropout=0.1,
            ff_dropout=0.1,
            conv_dropout=0.1,
        )
        self.out = nn.Linear(dim, vocab)

    def forward(self, feats, lens):
        x = self.sub(feats.transpose(1, 2)).transpose(1, 2)
        return self.out(self.enc(x)).log_softmax(-1), (lens + 1) // 2


def spec_augment(x):
    x = x.clone()
    for b in range(x.shape[0]):
        f = torch.randint(0, 15, (1,)).item()
        x[b, :, f : f + 4] = 0
        t = torch.randint(0, x.shape[1] - 5, (1,)).item()
        x[b, t : t + 5] = 0
    return x


net = ASR()
opt = torch.optim.AdamW(net.parameters(), 3e-3)
ctc = nn.CTCLoss(zero_infinity=True)
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min((s + 1) ** -0.5, (s + 1) * 3**-1.5))
for i in range(6):
    lens = torch.randint(30, 41, (10,))
    feats = torch.randn(10, int(lens.max()), 20)
    tl = torch.randint(3, 7, (10,))
    targets = torch.randint(1, 12, (int(tl.sum()),))
    net.train()
    logp, ol = net(spec_augment(feats), lens)
    loss = ctc(logp.transpose(0, 1), targets, ol, tl)
    opt.zero_grad()
    loss.backward()
    g = nn.utils.clip_grad_norm_(net.parameters(), 5.0)
    opt.step()
    sched.step()
    print(i, f"{loss.item():.5f} {g.item():.4f}")
net.eval()
with torch.no_grad():
    hyp = net(feats, lens)[0].argmax(-1)
    print([h.unique_consecutive().tolist()[:5] for h in hyp[:2]])
