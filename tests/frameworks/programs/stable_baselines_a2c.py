# framework: stable-baselines3
# program: A2C on four environments with a CNN policy's feature extractor, TD3, `VecNormalize`
import gymnasium as gym
import torch
from stable_baselines3 import A2C, TD3
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecNormalize


class Features(BaseFeaturesExtractor):
    def __init__(self, space, features_dim=16):
        super().__init__(space, features_dim)
        self.net = torch.nn.Sequential(
            torch.nn.Linear(space.shape[0], features_dim), torch.nn.LayerNorm(features_dim), torch.nn.ReLU()
        )

    def forward(self, observations):
        return self.net(observations)


env = VecNormalize(make_vec_env("CartPole-v1", n_envs=4, seed=0))
model = A2C("MlpPolicy", env, n_steps=8, seed=0, device="cpu", policy_kwargs=dict(features_extractor_class=Features))
model.learn(320)
values = model.logger.name_to_value
print(
    {
        k: round(float(values[k]), 5)
        for k in ("train/value_loss", "train/policy_loss", "train/entropy_loss")
        if k in values
    }
)
print(f"a2c {sum(p.abs().sum().item() for p in model.policy.parameters()):.5f} {env.obs_rms.mean.sum():.6f}")
model = TD3(
    "MlpPolicy",
    gym.make("Pendulum-v1"),
    learning_starts=40,
    train_freq=(10, "step"),
    gradient_steps=3,
    batch_size=24,
    seed=2,
    device="cpu",
    policy_kwargs=dict(net_arch=[24, 24]),
)
model.learn(100)
print(f"td3 {sum(p.abs().sum().item() for p in model.policy.parameters()):.5f}")
