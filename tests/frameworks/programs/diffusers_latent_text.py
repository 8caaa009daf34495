# framework: diffusers
# program: a text-conditioned `UNet2DConditionModel` on latents of an `AutoencoderKL`, SNR weights, CFG dropout
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
from diffusers.training_utils import compute_snr
from torch import nn

torch.manual_seed(0)
vae = AutoencoderKL(
    3, 3, ("DownEncoderBlock2D",), ("UpDecoderBlock2D",), (8,), latent_channels=4, norm_num_groups=4, sample_size=8
)
vae.requires_grad_(False).eval()
text = nn.Sequential(nn.Embedding(30, 16), nn.LayerNorm(16)).requires_grad_(False)
unet = UNet2DConditionModel(
    sample_size=8,
    in_channels=4,
    out_channels=4,
    layers_per_block=1,
    block_out_channels=(8, 16),
    norm_num_groups=4,
    attention_head_dim=4,
    cross_attention_dim=16,
    down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
)
unet.enable_gradient_checkpointing()
unet.train()
scheduler = DDPMScheduler(num_train_timesteps=40, prediction_type="v_prediction")
optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-3, weight_decay=1e-2)
pixels, ids = torch.rand(24, 3, 8, 8) * 2 - 1, torch.randint(1, 30, (24, 6))
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(pixels, ids), batch_size=8, shuffle=True)
for epoch in range(2):
    for image, prompt in loader:
        with torch.no_grad():
            latents = vae.encode(image).latent_dist.sample() * vae.config.scaling_factor
            prompt = prompt.masked_fill(torch.rand(len(prompt), 1) < 0.1, 0)
            states = text(prompt)
        noise = torch.randn_like(latents)
        noise += 0.05 * torch.randn(latents.shape[0], latents.shape[1], 1, 1)
        timesteps = torch.randint(0, 40, (latents.shape[0],))
        noisy = scheduler.add_noise(latents, noise, timesteps)
        target = scheduler.get_velocity(latents, noise, timesteps)
        pred = unet(noisy, timesteps, states).sample
        snr = compute_snr(scheduler, timesteps)
        weights = torch.stack([snr, 5.0 * torch.ones_like(timesteps)], dim=1).min(dim=1)[0] / (snr + 1)
        loss = F.mse_loss(pred.float(), target.float(), reduction="none").mean(dim=[1, 2, 3])
        loss = (loss * weights).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(unet.parameters(), 1.0)
        optimizer.step()
        print(epoch, f"{loss.item():.5f}", f"{latents.std().item():.5f}")
