"""A hand-written PyTorch loop, recorded: REINFORCE on CartPole, nothing of mileage but its ledger.

python examples/plain_pytorch_loop.py
mileage ledger list
"""

from __future__ import annotations

import sys

import gymnasium as gym
import numpy as np
import torch

import mileage
import mileage.ledger as ledger


def play(env: gym.Env, policy: torch.nn.Module, seed: int, *, greedy: bool) -> tuple[list, list, list]:
    """Play one episode; return observations, actions and rewards."""
    observation, _ = env.reset(seed=seed)
    observations, actions, rewards, done = [], [], [], False
    while not done:
        observations.append(observation)
        with torch.no_grad():
            logits = policy(torch.as_tensor(observation))
        action = int(logits.argmax()) if greedy else int(torch.distributions.Categorical(logits=logits).sample())
        observation, reward, terminated, truncated, _ = env.step(action)
        actions.append(action)
        rewards.append(float(reward))
        done = terminated or truncated
    return observations, actions, rewards


def train(db: str | None = None, episodes: int = 600, panel_size: int = 20, seed: int = 0) -> str:
    """Train until the target is met or the episodes are used up; return the run's id."""
    torch.manual_seed(seed)
    env = gym.make("CartPole-v1")
    policy = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    panel = ledger.Panel.default("CartPole-v1", panel_size, success="return>=195")
    steps = 0
    with mileage.Ledger(db).run(
        "plain pytorch", panel=panel, target="mean_return>=195", price_usd_per_hour=2.20, seed=seed
    ) as run:
        for episode in range(episodes):
            with run.phase("env_step"):
                observations, actions, rewards = play(env, policy, episode, greedy=False)
            steps += len(rewards)
            with run.phase("learn"):
                returns = np.cumsum(rewards[::-1])[::-1].astype(np.float32)
                advantages = torch.as_tensor((returns - returns.mean()) / (returns.std() + 1e-6))
                logits = policy(torch.as_tensor(np.array(observations)))
                chosen = torch.distributions.Categorical(logits=logits).log_prob(torch.as_tensor(actions))
                loss = -(chosen * advantages).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            if episode % 25 == 24:
                with run.phase("eval"):
                    held_out = [sum(play(env, policy, s, greedy=True)[2]) for s in panel.seeds]
                success = [value >= 195 for value in held_out]
                run.checkpoint(steps, ledger.Evaluation.of(panel.seeds, held_out, held_out, success))
                if run.reached:
                    break
    env.close()
    return run.run_id


if __name__ == "__main__":
    print(train(sys.argv[1] if len(sys.argv) > 1 else None))
