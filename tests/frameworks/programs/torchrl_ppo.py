# framework: torchrl
# mask: \d+-\d+-\d+ [\d:,]+
# program: PPO by `GAE` and `ClipPPOLoss` on a pendulum written in tensors
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from tensordict.nn.distributions import NormalParamExtractor
from torch import nn
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement
from torchrl.modules import ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

torch.manual_seed(0)
actor_net = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 2), NormalParamExtractor())
policy = ProbabilisticActor(
    TensorDictModule(actor_net, ["observation"], ["loc", "scale"]),
    in_keys=["loc", "scale"],
    out_keys=["action"],
    distribution_class=TanhNormal,
    return_log_prob=True,
)
value = ValueOperator(nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 1)), in_keys=["observation"])
gae = GAE(gamma=0.99, lmbda=0.95, value_network=value, average_gae=True)
loss_module = ClipPPOLoss(policy, value, clip_epsilon=0.2, entropy_bonus=True)
optimizer = torch.optim.Adam(loss_module.parameters(), 3e-3)
buffer = ReplayBuffer(storage=LazyTensorStorage(64), sampler=SamplerWithoutReplacement(), batch_size=16)


def rollout(steps=64):
    th, thd, out = torch.rand(1) * 2 - 1, torch.zeros(1), []
    for i in range(steps):
        td = TensorDict({"observation": torch.cat([th.cos(), th.sin(), thd])}, [])
        with torch.no_grad():
            td = policy(td)
        u = td["action"] * 2
        reward = -(th**2 + 0.1 * thd**2 + 0.001 * u**2)
        thd = (thd + (15 * th.sin() + 3 * u) * 0.05).clamp(-8, 8)
        th = th + thd * 0.05
        done = torch.tensor([i == steps - 1])
        td["next"] = TensorDict(
            {
                "observation": torch.cat([th.cos(), th.sin(), thd]),
                "reward": reward,
                "done": done,
                "terminated": torch.tensor([False]),
            },
            [],
        )
        out.append(td)
    return torch.stack(out)


for it in range(2):
    data = rollout()
    print("reward", f"{data['next', 'reward'].mean().item():.5f}")
    for epoch in range(2):
        gae(data)
        buffer.extend(data.reshape(-1))
        for _ in range(4):
            losses = loss_module(buffer.sample())
            total = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
            total.backward()
            nn.utils.clip_grad_norm_(loss_module.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        print(it, epoch, f"{total.item():.5f} {losses['loss_critic'].item():.5f}")
