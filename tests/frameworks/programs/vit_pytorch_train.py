# framework: vit-pytorch
# vision: yes
# program: `ViT` with a warm-up and mixup, then `MAE` pre-training
import torch
import torch.nn.functional as F
from vit_pytorch.mae import MAE
from vit_pytorch.vit import ViT

torch.manual_seed(0)
images, labels = torch.randn(48, 3, 16, 16), torch.randint(0, 4, (48,))
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, labels), batch_size=12, shuffle=True)
v = ViT(image_size=16, patch_size=4, num_classes=4, dim=16, depth=2, heads=2, mlp_dim=32, dropout=0.1, emb_dropout=0.1)
optimizer = torch.optim.AdamW(v.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1, (s + 1) / 4))
for epoch in range(2):
    for x, y in loader:
        lam = float(torch.distributions.Beta(0.4, 0.4).sample())
        index = torch.randperm(x.size(0))
        mixed = lam * x + (1 - lam) * x[index]
        out = v(mixed)
        loss = lam * F.cross_entropy(out, y) + (1 - lam) * F.cross_entropy(out, y[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        print(epoch, f"{loss.item():.5f}", f"{lam:.4f}")
mae = MAE(encoder=v, masking_ratio=0.75, decoder_dim=16, decoder_depth=1)
optimizer = torch.optim.AdamW(mae.parameters(), lr=1e-3)
for x, _ in loader:
    optimizer.zero_grad()
    loss = mae(x)
    loss.backward()
    optimizer.step()
    print(f"mae {loss.item():.5f}")
