# framework: stable-baselines3
# program: DQN on CartPole, and SAC on Pendulum
import gymnasium as gym
from stable_baselines3 import DQN, SAC

model = DQN(
    "MlpPolicy",
    "CartPole-v1",
    learning_starts=64,
    train_freq=8,
    batch_size=32,
    seed=1,
    device="cpu",
    target_update_interval=100,
)
model.learn(300)
print(f"dqn {model.logger.name_to_value.get('train/loss', float('nan')):.6f}")
print(f"dqn {sum(p.abs().sum().item() for p in model.q_net.parameters()):.5f}")
model = SAC(
    "MlpPolicy",
    gym.make("Pendulum-v1"),
    learning_starts=50,
    train_freq=10,
    batch_size=32,
    seed=2,
    device="cpu",
    policy_kwargs=dict(net_arch=[32, 32]),
)
model.learn(150)
print(f"sac {model.logger.name_to_value['train/critic_loss']:.6f} {model.logger.name_to_value['train/ent_coef']:.6f}")
print(f"sac {sum(p.abs().sum().item() for p in model.policy.parameters()):.5f}")
