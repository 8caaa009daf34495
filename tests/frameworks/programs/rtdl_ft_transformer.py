# framework: rtdl_revisiting_models
# package: rtdl_revisiting_models
# program: `FTTransformer` on numbers and categories, its optimizer's groups, early stopping on the validation set
import torch
import torch.nn.functional as F
from rtdl_revisiting_models import FTTransformer

torch.manual_seed(0)
num, cat = torch.randn(240, 5), torch.stack([torch.randint(0, k, (240,)) for k in (3, 4)], 1)
target = num[:, 0] * 2 + cat[:, 0].float() + torch.randn(240) * 0.1
mean, std = target[:160].mean(), target[:160].std()
target = (target - mean) / std
model = FTTransformer(
    n_cont_features=5,
    cat_cardinalities=[3, 4],
    d_out=1,
    n_blocks=2,
    d_block=16,
    attention_n_heads=2,
    attention_dropout=0.2,
    ffn_d_hidden=None,
    ffn_d_hidden_multiplier=4 / 3,
    ffn_dropout=0.1,
    residual_dropout=0.0,
)
optimizer = model.make_default_optimizer()
best, patience = float("inf"), 2
for epoch in range(4):
    model.train()
    for batch in torch.randperm(160).split(32):
        optimizer.zero_grad()
        loss = F.mse_loss(model(num[batch], cat[batch]).squeeze(-1), target[batch])
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.inference_mode():
        pred = torch.cat([model(num[i], cat[i]).squeeze(-1) for i in torch.arange(160, 200).split(16)])
        rmse = (F.mse_loss(pred, target[160:200]).sqrt() * std).item()
    print(epoch, f"train {loss.item():.5f} val {rmse:.5f}")
    if rmse < best:
        best, patience = rmse, 2
    elif (patience := patience - 1) < 0:
        break
