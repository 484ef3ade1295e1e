"""A short CPU run of every framework through its adapter: `python drivers.py NAME` prints what was seen as JSON.

Every driver trains for a few seconds in the ledger that it is told, and returns what the framework's own counters say.
"""

from __future__ import annotations

import copy
import functools
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

Driver = Callable[[str], dict[str, Any]]
"""Trains in the ledger of that path; what the framework counted: `steps`, `version`."""


def version(package: str) -> str:
    from importlib import metadata

    return metadata.version(package)


def stable_baselines3(db: str) -> dict[str, Any]:
    from stable_baselines3 import PPO

    from mileage.external.adapters import stable_baselines3 as adapter

    model = PPO("MlpPolicy", "CartPole-v1", n_steps=256, seed=1, device="cpu")
    with adapter.recorded(
        model, panel="CartPole-v1", target="mean_return>=475", eval_every=1024, ledger=db
    ) as callback:
        model.learn(2048, callback=callback)
    return {"steps": model.num_timesteps, "version": version("stable-baselines3")}


def sb3_contrib(db: str) -> dict[str, Any]:
    from sb3_contrib import RecurrentPPO

    from mileage.external.adapters import stable_baselines3 as adapter

    model = RecurrentPPO("MlpLstmPolicy", "CartPole-v1", n_steps=128, seed=1, device="cpu")
    with adapter.recorded(model, panel="CartPole-v1", target="mean_return>=475", ledger=db) as callback:
        model.learn(512, callback=callback)
    return {"steps": model.num_timesteps, "version": version("sb3-contrib")}


def sbx(db: str) -> dict[str, Any]:
    from sbx import PPO

    from mileage.external.adapters import stable_baselines3 as adapter

    model = PPO("MlpPolicy", "CartPole-v1", n_steps=256, seed=1)
    with adapter.recorded(
        model, panel="CartPole-v1", target="mean_return>=475", eval_every=1024, ledger=db
    ) as callback:
        model.learn(2048, callback=callback)
    return {"steps": model.num_timesteps, "version": version("sbx-rl")}


def skrl(db: str) -> dict[str, Any]:
    import gymnasium
    import torch
    from skrl.agents.torch.ppo import PPO, PPO_CFG
    from skrl.envs.wrappers.torch import wrap_env
    from skrl.memories.torch import RandomMemory
    from skrl.models.torch import DeterministicMixin, GaussianMixin, Model
    from skrl.trainers.torch import SequentialTrainer

    from mileage.external.adapters import skrl as adapter

    class Policy(GaussianMixin, Model):  # type: ignore[misc]
        def __init__(self, observation_space: Any, action_space: Any, device: Any) -> None:
            Model.__init__(self, observation_space=observation_space, action_space=action_space, device=device)
            GaussianMixin.__init__(self)
            self.net = torch.nn.Sequential(torch.nn.Linear(3, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
            self.log_std = torch.nn.Parameter(torch.zeros(1))

        def compute(self, inputs: Any, role: str) -> Any:
            return 2 * torch.tanh(self.net(inputs["observations"])), {"log_std": self.log_std}

    class Value(DeterministicMixin, Model):  # type: ignore[misc]
        def __init__(self, observation_space: Any, action_space: Any, device: Any) -> None:
            Model.__init__(self, observation_space=observation_space, action_space=action_space, device=device)
            DeterministicMixin.__init__(self)
            self.net = torch.nn.Sequential(torch.nn.Linear(3, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))

        def compute(self, inputs: Any, role: str) -> Any:
            return self.net(inputs["observations"]), {}

    env = wrap_env(gymnasium.make_vec("Pendulum-v1", num_envs=4, vectorization_mode="sync"))
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space, "device": env.device}
    memory = RandomMemory(memory_size=128, num_envs=env.num_envs, device=env.device)
    config = PPO_CFG(rollouts=128)
    config.experiment.write_interval = config.experiment.checkpoint_interval = 0
    agent = PPO(models={"policy": Policy(**spaces), "value": Value(**spaces)}, memory=memory, cfg=config, **spaces)
    trainer = SequentialTrainer(cfg={"timesteps": 512, "disable_progressbar": True}, env=env, agents=agent)
    with adapter.recorded(trainer, panel="Pendulum-v1", target="mean_return>=-200", eval_every=1024, ledger=db):
        trainer.train()
    return {"steps": trainer.cfg.timesteps * env.num_envs, "version": version("skrl")}


def rsl_rl(db: str) -> dict[str, Any]:
    import gymnasium
    import torch
    from rsl_rl.env import VecEnv
    from rsl_rl.runners import OnPolicyRunner
    from tensordict import TensorDict

    from mileage.external.adapters import rsl_rl as adapter

    class Pendulums(VecEnv):  # type: ignore[misc]
        def __init__(self, n: int) -> None:
            self.num_envs, self.num_actions, self.device, self.cfg = n, 1, "cpu", {}
            self.max_episode_length = 200
            self.episode_length_buf = torch.zeros(n, dtype=torch.long)
            self._env = gymnasium.make_vec("Pendulum-v1", num_envs=n, vectorization_mode="sync")
            self._obs = torch.as_tensor(self._env.reset(seed=0)[0])

        def get_observations(self) -> TensorDict:
            return TensorDict({"policy": self._obs}, batch_size=[self.num_envs])

        def step(self, actions: torch.Tensor) -> Any:
            obs, reward, terminated, truncated, _ = self._env.step(2 * actions.numpy())
            self._obs = torch.as_tensor(obs)
            dones = torch.as_tensor(terminated | truncated)
            extras = {"time_outs": torch.as_tensor(truncated)}
            return self.get_observations(), torch.as_tensor(reward, dtype=torch.float32), dones, extras

    config = {
        "num_steps_per_env": 64, "save_interval": 1000, "seed": 1,
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "algorithm": {"class_name": "PPO", "num_learning_epochs": 4, "num_mini_batches": 4},
        "actor": {"class_name": "MLPModel", "hidden_dims": [32], "activation": "tanh",
                  "distribution_cfg": {"class_name": "GaussianDistribution", "init_std": 1.0}},
        "critic": {"class_name": "MLPModel", "hidden_dims": [32], "activation": "tanh"},
    }  # fmt: skip
    runner = OnPolicyRunner(Pendulums(4), config, log_dir=tempfile.mkdtemp(), device="cpu")
    with adapter.recorded(runner, panel="Pendulum-v1", target="mean_return>=-200", eval_every=1024, ledger=db):
        runner.learn(8)
    return {"steps": runner.logger.tot_timesteps, "version": version("rsl-rl-lib")}


def brax(db: str) -> dict[str, Any]:
    from brax import envs
    from brax.training.agents.ppo import train as ppo

    from mileage.external.adapters import brax as adapter

    seen = []
    with adapter.recorded(ledger=db) as hooks:
        told = hooks.ppo
        progress = told["progress_fn"]
        told["progress_fn"] = lambda steps, metrics: (seen.append(steps), progress(steps, metrics))
        ppo.train(
            environment=envs.get_environment("fast"), num_timesteps=4096, episode_length=100, num_envs=16, num_evals=3,
            unroll_length=16, batch_size=16, num_minibatches=4, num_updates_per_batch=2, seed=1, num_eval_envs=8,
            **told,
        )  # fmt: skip
    return {"steps": seen[-1], "version": version("brax")}


def brax_sac(db: str) -> dict[str, Any]:
    from brax import envs
    from brax.training.agents.sac import train as sac

    from mileage.external.adapters import brax as adapter

    seen = []
    with adapter.recorded(algorithm="sac", ledger=db) as hooks:
        progress = hooks.sac["progress_fn"]
        sac.train(
            environment=envs.get_environment("fast"), num_timesteps=2048, episode_length=100, num_envs=16, num_evals=3,
            min_replay_size=256, max_replay_size=4096, batch_size=32, seed=1, num_eval_envs=8,
            progress_fn=lambda steps, metrics: (seen.append(steps), progress(steps, metrics)),
        )  # fmt: skip
    return {"steps": seen[-1], "version": version("brax")}


def tianshou(db: str) -> dict[str, Any]:
    import gymnasium
    from tianshou.algorithm import DQN
    from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv
    from tianshou.trainer import OffPolicyTrainerParams
    from tianshou.utils.net.common import Net

    from mileage.external.adapters import tianshou as adapter

    envs = DummyVectorEnv([lambda: gymnasium.make("CartPole-v1") for _ in range(4)])
    test = DummyVectorEnv([lambda: gymnasium.make("CartPole-v1")])
    single = gymnasium.make("CartPole-v1")
    policy = DiscreteQLearningPolicy(
        model=Net(state_shape=(4,), action_shape=2, hidden_sizes=[32]),
        action_space=single.action_space,
        eps_training=0.1,
    )
    algorithm = DQN(policy=policy, optim=AdamOptimizerFactory(lr=1e-3), target_update_freq=100)
    collector = Collector(algorithm, envs, VectorReplayBuffer(5000, 4), exploration_noise=True)
    params = OffPolicyTrainerParams(
        training_collector=collector, test_collector=Collector(algorithm, test), max_epochs=2, epoch_num_steps=512,
        collection_step_num_env_steps=64, test_step_num_episodes=1, batch_size=32,
        update_step_num_gradient_steps_per_sample=0.1,
    )  # fmt: skip
    with adapter.recorded(
        algorithm, collector, panel="CartPole-v1", target="mean_return>=475", eval_every=512, ledger=db
    ):
        stats = algorithm.run_training(params)
    return {"steps": stats.train_step, "version": version("tianshou")}


def torchrl(db: str) -> dict[str, Any]:
    import torch
    from tensordict.nn import TensorDictModule
    from torchrl.collectors import Collector
    from torchrl.envs import GymEnv
    from torchrl.modules import ProbabilisticActor, TanhNormal, ValueOperator
    from torchrl.modules.distributions import NormalParamExtractor
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE
    from torchrl.trainers import Trainer

    from mileage.external.adapters import torchrl as adapter

    env = GymEnv("Pendulum-v1")
    net = torch.nn.Sequential(torch.nn.Linear(3, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2), NormalParamExtractor())
    actor = ProbabilisticActor(
        TensorDictModule(net, in_keys=["observation"], out_keys=["loc", "scale"]), in_keys=["loc", "scale"],
        distribution_class=TanhNormal, distribution_kwargs={"low": -2.0, "high": 2.0}, return_log_prob=True,
    )  # fmt: skip
    value = ValueOperator(
        torch.nn.Sequential(torch.nn.Linear(3, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)), in_keys=["observation"]
    )
    collector = Collector(env, actor, frames_per_batch=256, total_frames=1024)
    loss = ClipPPOLoss(actor, value)
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=value)
    trainer = Trainer(
        collector=collector, total_frames=1024, frame_skip=1, optim_steps_per_batch=4, loss_module=loss,
        optimizer=torch.optim.Adam(loss.parameters(), 3e-4), progress_bar=False,
    )  # fmt: skip
    trainer.register_op("pre_optim_steps", lambda: None)
    trainer.register_op("batch_process", advantage)
    trainer.register_op("process_optim_batch", lambda batch: batch.reshape(-1))
    with adapter.recorded(trainer, panel="Pendulum-v1", target="mean_return>=-200", eval_every=512, ledger=db):
        trainer.train()
    return {"steps": trainer.collected_frames, "version": version("torchrl")}


def rl_games(db: str, env_id: str = "CartPole-v1") -> dict[str, Any]:
    import gymnasium
    import numpy as np
    import torch
    from rl_games.common import env_configurations, vecenv
    from rl_games.torch_runner import Runner

    import mileage.external.exam
    from mileage.external.adapters import rl_games as adapter

    class Several(vecenv.IVecEnv):  # type: ignore[misc]
        def __init__(self, config_name: str, num_actors: int, **_: Any) -> None:
            self._env = gymnasium.make_vec(env_id, num_envs=num_actors, vectorization_mode="sync")
            self.observation_space = self._env.single_observation_space
            self.action_space = self._env.single_action_space

        def step(self, actions: Any) -> Any:
            obs, reward, terminated, truncated, _ = self._env.step(np.asarray(actions))
            return obs.astype(np.float32), reward.astype(np.float32), terminated | truncated, {}

        def reset(self) -> Any:
            return self._env.reset(seed=0)[0].astype(np.float32)

        def get_number_of_agents(self) -> int:
            return 1

        def get_env_info(self) -> dict[str, Any]:
            return {"observation_space": self.observation_space, "action_space": self.action_space}

    vecenv.register("SEVERAL", lambda name, n, **kwargs: Several(name, n, **kwargs))
    env_configurations.register("several", {"env_creator": lambda **_: None, "vecenv_type": "SEVERAL"})
    spaces = {
        "discrete": None,
        "continuous": {"mu_activation": "None", "sigma_activation": "None", "mu_init": {"name": "default"},
                       "sigma_init": {"name": "const_initializer", "val": 0}, "fixed_sigma": True},
    }  # fmt: skip
    kind, model = ("discrete", "discrete_a2c") if env_id == "CartPole-v1" else ("continuous", "continuous_a2c_logstd")
    config = {"params": {
        "seed": 1, "algo": {"name": f"a2c_{kind}"}, "model": {"name": model},
        "network": {"name": "actor_critic", "separate": False, "space": {kind: spaces[kind]},
                    "mlp": {"units": [32], "activation": "tanh", "initializer": {"name": "default"}}},
        "config": {
            "name": "several", "env_name": "several", "device": "cpu", "device_name": "cpu", "num_actors": 8,
            "reward_shaper": {"scale_value": 1.0}, "normalize_advantage": True, "gamma": 0.99, "tau": 0.95,
            "learning_rate": 1e-3, "score_to_win": 1e9, "grad_norm": 1.0, "entropy_coef": 0.0, "truncate_grads": True,
            "e_clip": 0.2, "clip_value": True, "horizon_length": 64, "minibatch_size": 128, "mini_epochs": 2,
            "critic_coef": 1, "lr_schedule": "None", "kl_threshold": 0.008, "normalize_input": True,
            "normalize_value": True, "max_epochs": 6, "ppo": True, "save_frequency": 0, "print_stats": False,
            "train_dir": tempfile.mkdtemp(), "torch_compile": False, "bounds_loss_coef": 0.0,
        },
    }}  # fmt: skip
    panel, own = mileage.Panel.default(env_id, 8), copy.deepcopy(config)
    with adapter.recorded(panel=panel, eval_every=1024, ledger=db) as observer:
        runner = Runner(observer)
        runner.load(config)
        runner.run({"train": True, "play": False})
    # The policy as the framework plays it, on the same episodes.
    own["params"]["config"]["env_info"] = {**observer.algo.vec_env.get_env_info(), "agents": 1}
    runner.load(own)
    player = runner.create_player()
    player.model.load_state_dict(observer.algo.model.state_dict())
    player.has_batch_dimension, player.is_rnn, player.states = True, False, None
    shape = observer.algo.vec_env.action_space.shape

    def act(observations: Any) -> Any:
        found = player.get_action(torch.as_tensor(observations).float(), True)
        return found.cpu().numpy().reshape(len(observations), *shape)

    with mileage.external.exam.Examiner(panel) as examiner:
        played = examiner.examine(act)
    return {"steps": observer.algo.frame, "version": version("rl-games"), "own_return": played.mean_return}


def rllib(db: str) -> dict[str, Any]:
    from ray.rllib.algorithms.ppo import PPOConfig

    from mileage.external.adapters import rllib as adapter

    config = (
        PPOConfig().environment("CartPole-v1").env_runners(num_env_runners=0).learners(num_learners=0)
        .training(train_batch_size=512, minibatch_size=128, num_epochs=2).debugging(seed=1)
    )  # fmt: skip
    algorithm = config.build_algo()
    with adapter.recorded(algorithm, panel="CartPole-v1", target="mean_return>=475", eval_every=1024, ledger=db):
        for _ in range(3):
            result = algorithm.train()
    algorithm.stop()
    return {"steps": result["env_runners"]["num_env_steps_sampled_lifetime"], "version": version("ray")}


def trl(db: str) -> dict[str, Any]:
    import torch
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    from mileage.external.adapters import trl as adapter

    vocabulary = {word: i for i, word in enumerate(["<pad>", "<eos>", *"abcdefgh"])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>")
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=16, n_embd=16, n_layer=1, n_head=2, n_positions=32))
    data = Dataset.from_dict({"text": ["a b c d"] * 32})
    config = SFTConfig(
        output_dir=tempfile.mkdtemp(), max_steps=6, per_device_train_batch_size=2, report_to="none", use_cpu=True,
        logging_steps=2, save_strategy="no", disable_tqdm=True, max_length=16, bf16=False,
    )  # fmt: skip
    trainer = SFTTrainer(model=model, args=config, train_dataset=data, processing_class=tokenizer)
    with adapter.recorded(trainer, ledger=db):
        trainer.train()
    return {"steps": trainer.state.global_step, "version": version("trl")}


def pufferlib(db: str) -> dict[str, Any]:
    import gymnasium
    import pufferlib.emulation
    import pufferlib.vector
    from pufferlib import pufferl

    from mileage.external.adapters import pufferlib as adapter

    def make(**kwargs: Any) -> Any:
        return pufferlib.emulation.GymnasiumPufferEnv(env_creator=lambda: gymnasium.make("CartPole-v1"), **kwargs)

    from pufferlib.models import Default

    vector = pufferlib.vector.make(make, num_envs=4, backend=pufferlib.vector.Serial)
    policy = Default(vector.driver_env)
    args = pufferl.load_config("default")
    args["train"].update(
        device="cpu", total_timesteps=2048, batch_size=512, bptt_horizon=16, minibatch_size=128, env="cartpole",
        compile=False, data_dir=tempfile.mkdtemp(), use_rnn=False,
    )  # fmt: skip
    trainer = pufferl.PuffeRL(args["train"], vector, policy)
    with adapter.recorded(trainer, ledger=db):
        while trainer.global_step < 2048:
            trainer.evaluate()
            trainer.train()
    return {"steps": trainer.global_step, "version": version("pufferlib")}


def rltools(db: str) -> dict[str, Any]:
    import gymnasium
    import rltools as package

    from mileage.external.adapters import rltools as adapter

    class Counted(gymnasium.wrappers.RescaleAction):  # type: ignore[type-arg]
        """Actions from -1 to 1, as RLtools wants them."""

        taken = 0

        def action(self, action: Any) -> Any:
            Counted.taken += 1
            return super().action(action)

    module = package.SAC(
        lambda: Counted(gymnasium.make("Pendulum-v1"), -1.0, 1.0), STEP_LIMIT=600, enable_evaluation=False
    )
    with adapter.recorded(
        module.State(1), algorithm="sac", panel="Pendulum-v1", target="mean_return>=-200", ledger=db
    ) as loop:
        while not loop.step():
            pass
    return {"steps": Counted.taken, "version": version("rltools")}


def cleanrl(db: str) -> dict[str, Any]:
    return _script(
        db, os.environ.get("CLEANRL_PPO", "ppo.py"), "CartPole-v1", ["--total-timesteps", "2048", "--no-cuda"]
    )


def leanrl(db: str) -> dict[str, Any]:
    os.environ["WANDB_MODE"] = "offline"
    script = os.environ.get("LEANRL_PPO", "leanrl_ppo_continuous_action.py")
    return _script(db, script, "Pendulum-v1", ["--env-id", "Pendulum-v1", "--total-timesteps", "4096", "--no-cuda"])


def _script(db: str, script: str, env: str, arguments: list[str]) -> dict[str, Any]:
    from mileage.external.adapters import cleanrl as adapter

    here = Path.cwd()
    os.chdir(tempfile.mkdtemp())
    try:
        adapter.main(["--panel", env, "--db", db, str(here / script), *arguments])
    finally:
        os.chdir(here)
    return {"steps": int(arguments[arguments.index("--total-timesteps") + 1]), "version": "script of its repository"}


DRIVERS: dict[str, tuple[str, Driver]] = {
    name: (module, driver)
    for name, module, driver in (
        ("stable_baselines3", "stable_baselines3", stable_baselines3), ("sb3_contrib", "sb3_contrib", sb3_contrib),
        ("sbx", "sbx", sbx), ("cleanrl", "tyro", cleanrl), ("leanrl", "tyro", leanrl), ("rsl_rl", "rsl_rl", rsl_rl),
        ("rl_games", "rl_games", rl_games), ("skrl", "skrl", skrl), ("brax", "brax", brax),
        ("rl_games_continuous", "rl_games", functools.partial(rl_games, env_id="Pendulum-v1")),
        ("brax_sac", "brax", brax_sac), ("rllib", "ray", rllib), ("torchrl", "torchrl", torchrl),
        ("tianshou", "tianshou", tianshou), ("trl", "trl", trl), ("pufferlib", "pufferlib", pufferlib),
        ("rltools", "rltools", rltools),
    )
}  # fmt: skip
"""By name: the module that must be there, and the run."""


def complete(db: str | Path) -> list[Any]:
    """The runs of a ledger with all their rows, oldest first."""
    from mileage.ledger import queries
    from mileage.ledger.address import database_url
    from mileage.ledger.store import Store

    with Store(database_url(db), create=False) as store:
        return list(store.read(queries.complete_runs, None))


def seen(name: str, db: str) -> dict[str, Any]:
    """Run one driver; our rows beside the framework's counters and the time that this process took."""
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        told = DRIVERS[name][1](db)
    took = time.perf_counter() - began
    run = complete(db)[-1]
    phases = {phase: round(seconds, 3) for phase, seconds in run.phases.items()}
    last = [each.step for each in run.checkpoints]
    differences = [
        str(each.message) for each in said if " says " in str(each.message) or "began in" in str(each.message)
    ]
    return {
        "framework": name, **told, "ours_steps": max(last, default=0), "wall_seconds": run.wall_seconds,
        "driver_seconds": took,
        "state": str(run.state), "phases": phases, "evaluations": len(run.evaluations), "differences": differences,
        "claimed": sorted({key for each in run.checkpoints if each.claimed for key in json.loads(each.claimed)}),
        "mean_return": run.evaluations[-1].evaluation.mean_return if run.evaluations else None,
    }  # fmt: skip


if __name__ == "__main__":
    place = sys.argv[2] if len(sys.argv) > 2 else str(Path(tempfile.mkdtemp()) / "ledger.db")
    print("\n" + json.dumps(seen(sys.argv[1], place)))
