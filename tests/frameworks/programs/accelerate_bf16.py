# framework: accelerate
# tolerance: 1e-2 (bfloat16)
# program: `mixed_precision="bf16"`, `tqdm` over the loader, tracker in TensorBoard
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from tqdm.auto import tqdm

torch.manual_seed(0)
accelerator = Accelerator(cpu=True, mixed_precision="bf16", log_with="tensorboard", project_dir="logs")
accelerator.init_trackers("demo", config={"lr": 0.05})
net = torch.nn.Sequential(torch.nn.Conv2d(1, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 4))
data = torch.utils.data.TensorDataset(torch.randn(64, 1, 8, 8), torch.randint(0, 4, (64,)))
loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
optim = torch.optim.SGD(net.parameters(), lr=0.05)
net, optim, loader = accelerator.prepare(net, optim, loader)
step = 0
for epoch in range(2):
    for x, y in tqdm(loader, disable=not accelerator.is_local_main_process):
        out = net(x)
        loss = F.cross_entropy(out, y)
        accelerator.backward(loss)
        optim.step()
        optim.zero_grad()
        accelerator.log({"loss": loss.item()}, step=step)
        step += 1
    print(f"epoch {epoch} {loss.item():.3f} {out.dtype}")
accelerator.end_training()
