# framework: diffusers
# program: training of an unconditional `UNet2DModel` with `DDPMScheduler`, `EMAModel`, a warm-up, then sampling with DDIM
import torch
import torch.nn.functional as F
from diffusers import DDIMScheduler, DDPMScheduler, UNet2DModel
from diffusers.optimization import get_cosine_schedule_with_warmup
from diffusers.training_utils import EMAModel

torch.manual_seed(0)
model = UNet2DModel(
    sample_size=8,
    in_channels=1,
    out_channels=1,
    layers_per_block=1,
    block_out_channels=(8, 16),
    norm_num_groups=4,
    attention_head_dim=4,
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    dropout=0.1,
)
ema = EMAModel(model.parameters(), decay=0.95, use_ema_warmup=True)
scheduler = DDPMScheduler(num_train_timesteps=50)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
lr_scheduler = get_cosine_schedule_with_warmup(optimizer, num_warmup_steps=2, num_training_steps=10)
images = torch.randn(64, 1, 8, 8).clamp(-1, 1)
loader = torch.utils.data.DataLoader(images, batch_size=16, shuffle=True)
for epoch in range(2):
    for step, clean in enumerate(loader):
        noise = torch.randn_like(clean)
        timesteps = torch.randint(0, scheduler.config.num_train_timesteps, (clean.shape[0],)).long()
        noisy = scheduler.add_noise(clean, noise, timesteps)
        pred = model(noisy, timesteps, return_dict=False)[0]
        loss = F.mse_loss(pred, noise)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        lr_scheduler.step()
        optimizer.zero_grad()
        ema.step(model.parameters())
        print(f"{epoch}/{step} loss {loss.item():.5f} norm {norm.item():.5f} lr {lr_scheduler.get_last_lr()[0]:.6f}")
ema.store(model.parameters())
ema.copy_to(model.parameters())
model.eval()
ddim = DDIMScheduler.from_config(scheduler.config)
ddim.set_timesteps(5)
x = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(3))
with torch.no_grad():
    for t in ddim.timesteps:
        x = ddim.step(model(x, t).sample, t, x).prev_sample
print("sample", [round(v, 4) for v in x.flatten()[:6].tolist()])
ema.restore(model.parameters())
