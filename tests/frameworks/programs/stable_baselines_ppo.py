# framework: stable-baselines3
# program: PPO on CartPole, evaluation, saved and loaded
import gymnasium as gym
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy


class Print(BaseCallback):
    def _on_step(self):
        return True

    def _on_rollout_end(self):
        values = self.logger.name_to_value
        for key in ("train/loss", "train/value_loss", "train/approx_kl"):
            if key in values:
                print(key, f"{values[key]:.6f}")


env = gym.make("CartPole-v1")
model = PPO("MlpPolicy", env, n_steps=128, batch_size=32, n_epochs=3, seed=0, device="cpu", verbose=0)
model.learn(total_timesteps=384, callback=Print())
mean, std = evaluate_policy(model, env, n_eval_episodes=3, deterministic=True)
print(f"reward {mean:.4f} {std:.4f}")
model.save("ppo")
again = PPO.load("ppo", device="cpu")
obs, _ = gym.make("CartPole-v1").reset(seed=1)
print(again.predict(obs, deterministic=True)[0], f"{sum(p.abs().sum().item() for p in again.policy.parameters()):.5f}")
