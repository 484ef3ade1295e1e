"""Names of environments: built in, defined by users, in a user's file, or known to Gymnasium."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mileage._errors import UnknownNameError, UsageError
from mileage.envs import mujoco
from mileage.envs.native.env import NativeEnv

if TYPE_CHECKING:
    from mileage.envs.gymnasium.bridge import GymnasiumEnv
    from mileage.envs.mujoco import MujocoEnv

# Loaded when asked for, so that listing names costs nothing.
_BUILT_IN = {
    "Acrobot-v1": "mileage.envs.classic.acrobot",
    "CartPole-v1": "mileage.envs.classic.cartpole",
    "MountainCar-v0": "mileage.envs.classic.mountain_car",
    "MountainCarContinuous-v0": "mileage.envs.classic.mountain_car_continuous",
    "Pendulum-v1": "mileage.envs.classic.pendulum",
}
_loaded: dict[str, NativeEnv] = {}


def register(spec: NativeEnv) -> NativeEnv:
    """Make `spec` known by its id; a user's environment may replace its own earlier definition."""
    built_in = _BUILT_IN.get(spec.id)
    if built_in is not None and spec.functions[1].__module__ != built_in:
        raise UsageError(f"environment id {spec.id!r} is built in: choose another id")
    _loaded[spec.id] = spec
    return spec


def registered() -> tuple[str, ...]:
    """Ids of all native environments, sorted."""
    return tuple(sorted(_BUILT_IN.keys() | _loaded.keys()))


def is_native(name: str) -> bool:
    """Whether `name` is the id of a native environment."""
    return name in _BUILT_IN or name in _loaded


def native(name: str) -> NativeEnv:
    """Return the native environment called `name`: an id, "path/to/file.py:Name" or "package.module:Name"."""
    if name not in _loaded:
        if ":" in name:
            found = resolve(name)
            if isinstance(found, NativeEnv):
                return found
        if name not in _BUILT_IN:
            raise UnknownNameError("native environment", name, registered())
        importlib.import_module(_BUILT_IN[name])
    return _loaded[name]


def resolve(name: NativeEnv | GymnasiumEnv | MujocoEnv | str, **kwargs: Any) -> NativeEnv | GymnasiumEnv | MujocoEnv:
    """Find an environment by id, by "path/to/file.py:Name" or by "package.module:Name".

    Ids that are not native are looked up in Gymnasium, with `kwargs` for its constructor; with `kwargs` a native id
    goes to Gymnasium too, because native environments have no options. Gymnasium's MuJoCo environments are stepped
    natively, with its options, where MuJoCo 4.0 is installed.
    """
    if not isinstance(name, str):
        return name
    module, separator, attribute = name.rpartition(":")
    if separator and (module.endswith(".py") or "/" not in module):
        return _attribute(module, attribute, kwargs)
    if is_native(name) and not kwargs:
        return native(name)
    found = mujoco.find(name, kwargs)
    if found is not None:
        return found
    from mileage.envs.gymnasium.bridge import GymnasiumEnv

    return GymnasiumEnv(name, kwargs)


def _attribute(place: str, name: str, kwargs: dict[str, Any]) -> NativeEnv | GymnasiumEnv:
    module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    found = getattr(module, name, None)
    if isinstance(found, NativeEnv):
        return found
    if callable(found):
        from mileage.envs.gymnasium.bridge import GymnasiumEnv

        return GymnasiumEnv(f"{place}:{name}", kwargs, make=found)
    names = [key for key, value in vars(module).items() if isinstance(value, NativeEnv)]
    if found is not None or not names:
        raise UsageError(f"{place!r} has no environment {name!r}: define one there with @mileage.env")
    raise UnknownNameError(f"environment in {place!r}", name, names)


def _load_module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise
        raise UsageError(f"module {name!r} cannot be found: check its spelling and the Python path") from error


def _load_file(path: Path) -> Any:
    path = path.resolve()
    if not path.is_file():
        raise UsageError(
            f"file {str(path)!r} does not exist: give the path of a Python file that defines the environment"
        )
    name = path.stem
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return loaded
    if loaded is not None:
        # Another module has that name already; both must stay importable.
        name = f"{path.stem}_{abs(hash(str(path))):x}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
