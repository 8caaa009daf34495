# framework: monai
# program: a 3-D `UNet` with `DiceCELoss`, dictionary transforms, `sliding_window_inference`, `DiceMetric`
import torch
from monai.data import CacheDataset, DataLoader, decollate_batch
from monai.inferers import sliding_window_inference
from monai.losses import DiceCELoss
from monai.metrics import DiceMetric
from monai.networks.nets import UNet
from monai.transforms import AsDiscrete, Compose, EnsureTyped, RandFlipd, RandGaussianNoised, ScaleIntensityd
from monai.utils import set_determinism

set_determinism(seed=0)
data = []
for i in range(12):
    label = torch.zeros(1, 16, 16, 16)
    label[:, 4 : 8 + i % 4, 4:10, 3:9] = 1
    data.append({"image": label * 2 + torch.randn(1, 16, 16, 16), "label": label})
train_tf = Compose(
    [
        ScaleIntensityd("image"),
        RandFlipd(["image", "label"], prob=0.5, spatial_axis=0),
        RandGaussianNoised("image", prob=0.3, std=0.05),
        EnsureTyped(["image", "label"]),
    ]
)
val_tf = Compose([ScaleIntensityd("image"), EnsureTyped(["image", "label"])])
train_ds = CacheDataset(data[:8], train_tf, cache_rate=1.0, num_workers=0, progress=False)
val_ds = CacheDataset(data[8:], val_tf, cache_rate=1.0, num_workers=0, progress=False)
train_loader = DataLoader(train_ds, batch_size=4, shuffle=True)
val_loader = DataLoader(val_ds, batch_size=1)
model = UNet(
    spatial_dims=3, in_channels=1, out_channels=2, channels=(4, 8, 16), strides=(2, 2), num_res_units=1, dropout=0.1
)
loss_fn = DiceCELoss(to_onehot_y=True, softmax=True)
optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
metric = DiceMetric(include_background=False, reduction="mean")
post_pred = Compose([AsDiscrete(argmax=True, to_onehot=2)])
post_label = Compose([AsDiscrete(to_onehot=2)])
for epoch in range(2):
    model.train()
    total = 0.0
    for batch in train_loader:
        optimizer.zero_grad()
        loss = loss_fn(model(batch["image"]), batch["label"])
        loss.backward()
        optimizer.step()
        total += loss.item()
    model.eval()
    with torch.no_grad():
        for batch in val_loader:
            out = sliding_window_inference(batch["image"], (8, 8, 8), 4, model)
            out = [post_pred(i) for i in decollate_batch(out)]
            labels = [post_label(i) for i in decollate_batch(batch["label"])]
            metric(y_pred=out, y=labels)
    print(f"epoch {epoch} loss {total / len(train_loader):.5f} dice {metric.aggregate().item():.5f}")
    metric.reset()
