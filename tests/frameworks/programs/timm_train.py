# framework: timm
# program: `create_model` (ResNet with drop path, ViT), timm's optimizer, scheduler, mixup and `ModelEmaV2`
# vision: yes
import torch

# A torchvision that was built for another torch lacks its C++ functions: declaring two lets it be imported.
if torch.version.cuda is None:
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

import timm
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import AverageMeter, ModelEmaV3, accuracy, random_seed

random_seed(42, 0)
images, labels = torch.randn(48, 3, 32, 32), torch.randint(0, 5, (48,))
for name, kwargs in (
    ("resnet10t", dict(drop_path_rate=0.1)),
    ("vit_tiny_patch16_224", dict(img_size=32, patch_size=8, depth=2, drop_rate=0.1)),
):
    model = timm.create_model(name, num_classes=5, **kwargs)
    ema = ModelEmaV3(model, decay=0.9)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
    scheduler = CosineLRScheduler(optimizer, t_initial=3, warmup_t=1, warmup_lr_init=1e-5)
    mixup = Mixup(mixup_alpha=0.2, cutmix_alpha=1.0, num_classes=5)
    criterion = SoftTargetCrossEntropy()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, labels), batch_size=12, shuffle=True)
    for epoch in range(2):
        model.train()
        meter = AverageMeter()
        for x, y in loader:
            x, y = mixup(x, y)
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ema.update(model)
            meter.update(loss.item(), x.size(0))
        scheduler.step(epoch + 1)
        print(f"{name} epoch {epoch} loss {meter.avg:.6f}")
    ema.eval()
    with torch.no_grad():
        top1, top2 = accuracy(ema(images), labels, topk=(1, 2))
    print(f"{name} ema {top1.item():.4f} {top2.item():.4f}")
