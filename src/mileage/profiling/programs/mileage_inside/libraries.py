"""Which calls of which library are timed, and which settings are noted, once the library has been imported."""

from __future__ import annotations

import contextlib
from types import ModuleType
from typing import Callable  # noqa: UP035  # 3.8 has no other

from .imports import After
from .lanes import FILE, KINDS, closed, opened, time_family, time_function, time_methods
from .settings import NOTES

_KIND = {name: number for number, name in enumerate(KINDS)}
_DENORMALS_FROM, _MOST_NUMBERS = 256, 4_000_000
_STEPPED = {"step": _KIND["env.step"], "reset": _KIND["env.reset"]}


def _family(name: str, **kinds: str) -> After:
    numbers = {method: _KIND[kind] for method, kind in kinds.items()}

    def after(module: ModuleType) -> None:
        time_family(vars(module)[name], numbers)

    return after


def _methods(name: str, **kinds: str) -> After:
    """Methods of one class alone."""

    def after(module: ModuleType) -> None:
        time_methods(vars(module)[name], {method: _KIND[kind] for method, kind in kinds.items()})

    return after


def _stepped(*names: str) -> After:
    def after(module: ModuleType) -> None:
        for name in names:
            if name in vars(module):
                time_family(vars(module)[name], _STEPPED)

    return after


def _functions(**kinds: str) -> After:
    def after(module: ModuleType) -> None:
        for name, kind in kinds.items():
            time_function(module, name, _KIND[kind])

    return after


def _writers(name: str) -> After:
    """A class whose methods add_… and log… write figures."""

    def after(module: ModuleType) -> None:
        owner = vars(module)[name]
        logging = {each: _KIND["logging"] for each in vars(owner) if each.startswith(("add_", "log", "flush"))}
        time_family(owner, logging)

    return after


def _noted(owner: type, method: str, note: Callable[..., None]) -> None:
    """Call `note` with what a method is given, before it is called."""
    function = vars(owner)[method]

    def call(self: object, *args: object, **kwargs: object) -> object:
        with contextlib.suppress(Exception):
            note(self, *args, **kwargs)
        return function(self, *args, **kwargs)

    call.__code__ = call.__code__.replace(co_filename=FILE)
    call.__name__, call.__qualname__, call.__doc__ = function.__name__, function.__qualname__, function.__doc__
    call.__module__ = function.__module__
    call.__wrapped__ = function  # type: ignore[attr-defined]
    setattr(owner, method, call)


def _torch_steppers(module: ModuleType) -> None:
    """Optimizers have hooks of their own for this."""
    kind = _KIND["optimizer.step"]
    tokens: list[tuple[int, int, int] | None] = []

    def before(optimizer: object, *_: object) -> None:
        tokens.append(opened(kind))

    def after(optimizer: object, *_: object) -> None:
        if tokens:
            closed(kind, tokens.pop())
        steps[id(optimizer)] = number = steps.get(id(optimizer), 0) + 1
        if number == 1:
            _note_stepper(optimizer)
        # Seldom, and when moments have had the time to decay.
        if number >= _DENORMALS_FROM and number & (number - 1) == 0:
            with contextlib.suppress(Exception):
                _note_denormals(optimizer)

    steps: dict[int, int] = {}
    module.register_optimizer_step_pre_hook(before)
    module.register_optimizer_step_post_hook(after)


def _note_stepper(optimizer: object) -> None:
    import sys

    groups = getattr(optimizer, "param_groups", ())
    weights = [weight for group in groups for weight in group["params"]]
    device = str(weights[0].device) if weights else ""
    threads = sys.modules["torch"].get_num_threads()
    flat = all(weight.dim() <= 2 for weight in weights)
    count = sum(weight.numel() for weight in weights)
    NOTES.fact("optimizer", id(optimizer), type(optimizer).__name__, count, device, threads, flat)


def _note_denormals(optimizer: object) -> None:
    """How many numbers of the optimizer's state are denormal, of the first few million."""
    import sys

    torch = sys.modules["torch"]
    found = looked_at = 0
    for state in vars(optimizer)["state"].values():
        for value in state.values():
            if not torch.is_tensor(value) or not value.is_floating_point() or value.device.type != "cpu":
                continue
            if looked_at + value.numel() > _MOST_NUMBERS:
                break
            looked_at += value.numel()
            found += int(((value != 0) & (value.abs() < torch.finfo(value.dtype).tiny)).sum())
    NOTES.fact("denormals", id(optimizer), found, looked_at)


def _sb3_algorithms(module: ModuleType) -> None:
    owner = vars(module)["BaseAlgorithm"]
    time_family(owner, {"save": _KIND["checkpoint"]})
    _noted(owner, "_setup_learn", lambda model, *_, **__: NOTES.note(type(model).__name__, vars(model)))


def _rsl_rl_runner(module: ModuleType) -> None:
    owner = next(each for name, each in vars(module).items() if name.endswith("Runner"))
    time_methods(owner, {"save": _KIND["checkpoint"], "log": _KIND["logging"]})

    def note(_: object, env: object, train_cfg: dict[str, object], *__: object, **___: object) -> None:
        NOTES.note("train_cfg", train_cfg)
        for name, part in train_cfg.items():
            if isinstance(part, dict):
                NOTES.note(f"train_cfg[{name!r}]", part)
        NOTES.note("env", {"num_envs": getattr(env, "num_envs", None)})  # foreign: an environment of rsl_rl

    _noted(owner, "__init__", note)


def _transformers_trainer(module: ModuleType) -> None:
    owner = vars(module)["Trainer"]
    kinds = {"evaluate": "evaluation", "log": "logging", "_save_checkpoint": "checkpoint"}
    time_family(owner, {method: _KIND[kind] for method, kind in kinds.items()})
    _noted(owner, "train", lambda trainer, *_, **__: NOTES.note("args", vars(trainer)["args"]))


def _argparse(module: ModuleType) -> None:
    owner = vars(module)["ArgumentParser"]
    function = owner.parse_known_args

    def parse_known_args(self: object, *args: object, **kwargs: object) -> object:
        found = function(self, *args, **kwargs)
        try:
            actions = vars(self).get("_actions", ())
            NOTES.note("args", found[0], {each.dest: list(each.option_strings) for each in actions})
        except Exception:
            pass
        return found

    parse_known_args.__code__ = parse_known_args.__code__.replace(co_filename=FILE)
    parse_known_args.__qualname__, parse_known_args.__doc__ = function.__qualname__, function.__doc__
    parse_known_args.__module__ = function.__module__
    owner.parse_known_args = parse_known_args


def _tyro(module: ModuleType) -> None:
    function = vars(module)["cli"]

    def cli(*args: object, **kwargs: object) -> object:
        found = function(*args, **kwargs)
        NOTES.note("args", found)
        return found

    cli.__code__ = cli.__code__.replace(co_filename=FILE)
    cli.__module__, cli.__doc__ = function.__module__, function.__doc__
    cli.__wrapped__ = function  # type: ignore[attr-defined]
    vars(module)["cli"] = cli


def _mileage_clock(module: ModuleType) -> None:
    owner = vars(module)["PhaseClock"]
    function = owner.__init__

    def __init__(self: object, *args: object, **kwargs: object) -> None:  # noqa: N807
        function(self, *args, **kwargs)
        NOTES.clock = self  # type: ignore[assignment]

    owner.__init__ = __init__


_SB3 = "stable_baselines3.common."
AFTER: dict[str, After] = {
    "argparse": _argparse,
    "tyro._cli": _tyro,
    "gymnasium.core": _stepped("Env"),
    "gymnasium.vector.vector_env": _stepped("VectorEnv"),
    "gym.core": _stepped("Env"),
    "gym.vector.vector_env": _stepped("VectorEnv"),
    "envpool.python.envpool": _stepped("EnvPoolMixin"),
    "pettingzoo.utils.env": _stepped("AECEnv", "ParallelEnv"),
    "dm_env._environment": _stepped("Environment"),
    "rsl_rl.env.vec_env": _stepped("VecEnv"),
    "rsl_rl.runners.on_policy_runner": _rsl_rl_runner,
    "rsl_rl.utils.logger": _family("Logger", log="logging", save_model="checkpoint"),
    "torch._tensor": _methods("Tensor", backward="backward"),
    "torch.autograd": _functions(grad="backward"),
    "torch.optim.optimizer": _torch_steppers,
    "torch.serialization": _functions(save="checkpoint"),
    "torch.utils.tensorboard.writer": _writers("SummaryWriter"),
    "tensorboardX.writer": _writers("SummaryWriter"),
    "wandb.sdk.wandb_run": _methods("Run", log="logging"),
    "trackio": _functions(log="logging"),
    "mlflow.tracking.fluent": _functions(log_metric="logging", log_metrics="logging", log_artifact="logging"),
    "safetensors.torch": _functions(save_file="checkpoint"),
    "flax.training.checkpoints": _functions(save_checkpoint="checkpoint"),
    "cleanrl_utils.buffers": _family("BaseBuffer", add="replay buffer", sample="replay buffer"),
    _SB3 + "vec_env.base_vec_env": _stepped("VecEnv"),
    _SB3 + "base_class": _sb3_algorithms,
    _SB3 + "buffers": _family("BaseBuffer", add="replay buffer", sample="replay buffer"),
    _SB3 + "callbacks": _family("BaseCallback", on_step="callback", on_rollout_start="callback",
                                on_rollout_end="callback", on_training_start="callback", on_training_end="callback"),
    _SB3 + "evaluation": _functions(evaluate_policy="evaluation"),
    _SB3 + "logger": _family("Logger", dump="logging"),
    "transformers.trainer": _transformers_trainer,
    "transformers.generation.utils": _family("GenerationMixin", generate="generate"),
    "mileage.measure.clock": _mileage_clock,
}  # fmt: skip
AFTER.update({f"cleanrl_utils.evals.{name}_eval": _functions(evaluate="evaluation")
              for name in ("c51", "ddpg", "dqn", "ppo", "ppo_envpool", "rpo", "td3")})  # fmt: skip
