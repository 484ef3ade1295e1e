"""How kernels are compiled and where compiled kernels are kept.

Numba's own cache is keyed by the file a function stands in: a kernel that calls a helper from another file
goes stale when only the helper changes, and functions made at run time are not cached at all. Ours is keyed by
the content of all compiled mileage source plus whatever the caller adds (a user's environment source), so that a hit
is always right, and it lives in one directory per version that can be warmed, moved or deleted as a whole.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import os
import pickle
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numba
import platformdirs
from numba.core import typed_passes, untyped_passes
from numba.core.caching import _Cache
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, CompileResult, Flags, compile_extra
from numba.core.compiler_machinery import PassManager
from numba.core.dispatcher import _FunctionCompiler  # type: ignore[attr-defined]
from numba.core.runtime import rtsys
from numba.core.serialize import dumps

CACHE_ENV = "MILEAGE_CACHE_DIR"
# Packages whose source ends up in compiled code.
_COMPILED_PACKAGES = ("kernels", "envs", "buffers", "algorithms")
# A file is the SHA-256 of what follows it.
_STAMP_BYTES = 32


@functools.cache
def source_stamp() -> str:
    """Digest of every mileage source file that compiled code can come from."""
    # Compiled code carries a wrapper for one version of CPython.
    digest = hashlib.sha256(f"{numba.__version__} {sys.implementation.cache_tag}".encode())
    root = Path(__file__).resolve().parents[2]
    for package in _COMPILED_PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            digest.update(path.name.encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def cache_root() -> Path:
    """Directory of all compiled kernels, `MILEAGE_CACHE_DIR` or the user's cache directory."""
    return Path(os.environ.get(CACHE_ENV) or platformdirs.user_cache_dir("mileage")) / "kernels"


def cache_dir() -> Path:
    """Directory of the kernels compiled from this very source."""
    return cache_root() / source_stamp()


def cache_is_writable() -> bool:
    """Whether compiled kernels can be kept on disk."""
    try:
        cache_dir().mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=cache_dir()).close()
    except OSError:
        return False
    return True


compiled_here: list[str] = []
"""What this process has compiled rather than loaded, in order: module and name of each function."""


class KernelCache(_Cache):  # type: ignore[misc]
    """One file per compiled signature; unreadable or unwritable files mean compiling again, never an error."""

    def __init__(self, function: Callable[..., Any], extra_key: str = "") -> None:
        self._name = f"{function.__module__}.{function.__qualname__}".replace("<", "").replace(">", "")
        self._extra_key = extra_key
        self._enabled = True

    @property
    def cache_path(self) -> str:
        """The directory as text, as Numba expects it."""
        return str(cache_dir())

    def enable(self) -> None:
        """Use the cache."""
        self._enabled = True

    def disable(self) -> None:
        """Neither read nor write."""
        self._enabled = False

    def flush(self) -> None:
        """Forget nothing: files are keyed by content, so none can be stale."""

    def _path(self, sig: Any, codegen: Any) -> Path:
        digest = hashlib.sha256(repr((str(sig), codegen.magic_tuple(), self._extra_key)).encode())
        return cache_dir() / f"{self._name[-80:]}-{digest.hexdigest()[:16]}.nbc"

    def holds(self, sig: Any, codegen: Any) -> bool:
        """Whether the compiled function for the argument types `sig` is on disk."""
        return self._enabled and self._path(sig, codegen).is_file()

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled function for `sig`, or None."""
        if not self._enabled:
            return None
        try:
            content = self._path(sig, target_context.codegen()).read_bytes()
        except OSError:
            return None
        stamp, data = content[:_STAMP_BYTES], content[_STAMP_BYTES:]
        # Machine code with a flipped bit would not fail to load, it would crash.
        if stamp != hashlib.sha256(data).digest():
            return None
        try:
            payload = pickle.loads(data)
        except (ImportError, AttributeError):
            # The same code compiled from a module that this process does not have (a user's file that was renamed).
            return None
        # Numba would refresh the whole target here (200 ms of registries that only compiling needs);
        # running loaded code needs no more than the reference-counting runtime.
        rtsys.initialize(target_context)
        return CompileResult._rebuild(target_context, *payload)

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep `data` for other processes; a directory that cannot be written is not an error."""
        compiled_here.append(self._name)
        if not self._enabled:
            return
        path = self._path(sig, data.codegen if hasattr(data, "codegen") else data.library.codegen)
        content = dumps(data._reduce())
        temporary = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
                temporary = Path(file.name)
                file.write(hashlib.sha256(content).digest() + content)
            temporary.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                if temporary is not None:
                    temporary.unlink()


def kept_on_disk(compiled: Any, cache: KernelCache) -> Any:
    """Let what Numba has compiled, or will compile, be kept in `cache`."""
    compiled._cache = cache
    return compiled


def cache_of(dispatcher: Any) -> KernelCache:
    """Where a kernel is kept."""
    found: KernelCache = dispatcher._cache
    return found


def kernel(function: Callable[..., Any] | None = None, *, key: str = "", **options: Any) -> Any:
    """Compile `function` with Numba on first call: GIL released, division as in NumPy, kept on disk.

    Used bare (`@kernel`) or with Numba options (`@kernel(fastmath=True)`). `key` distinguishes functions made at run
    time whose name and signature are the same.
    """
    if function is None:
        return functools.partial(kernel, key=key, **options)
    settings: dict[str, Any] = {"nogil": True, "error_model": "numpy"} | options
    dispatcher = numba.njit(**settings)(function)
    _compiled_by(_KernelCompiler, dispatcher)
    return kept_on_disk(dispatcher, KernelCache(function, key))


def named_for(function: Any, args: Any) -> Any:
    """The same function under a name that says which argument types it is compiled for, if a frame is among them.

    Numba numbers records, and versions of a function, as they come up in a process. Two that were compiled in two
    processes can so get one name, and whoever loads both from disk runs the first in place of the second.
    """
    if not any(isinstance(arg, numba.types.Record | numba.types.Array) for arg in args):
        return function
    digest = hashlib.sha256(str(args).encode()).hexdigest()[:12]
    found = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    found.__module__, found.__qualname__ = function.__module__, f"{function.__qualname__}_{digest}"
    return found


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Garbage waits while Numba compiles: of its millions of objects few die before the end; an eighth of the time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


class _KernelCompiler(_FunctionCompiler):  # type: ignore[misc]
    """Compiles each signature under a name of its own."""

    @uncollected()
    def _compile_core(self, args: Any, return_type: Any) -> Any:
        return super()._compile_core(args, return_type)

    def _get_implementation(self, args: Any, kws: Any) -> Any:
        return named_for(self.py_func, args)


def _compiled_by(kind: Any, dispatcher: Any) -> Any:
    """Let a compiler of this kind compile what Numba would compile by its own."""
    usual = dispatcher._compiler
    own = kind(usual.py_func, usual.targetdescr, usual.targetoptions, usual.locals, usual.pipeline_class)
    dispatcher._compiler = own
    return own


class _Lean(CompilerBase):  # type: ignore[misc]
    """The passes that our own code needs, of the thirty that Numba runs over everybody's.

    Left out: closures, `with` blocks, literal unrolling, array expressions, dynamic exceptions, annotated source.
    """

    def define_pipelines(self) -> list[Any]:
        """One list of passes, from bytecode to LLVM."""
        passes = PassManager("lean")
        first = (untyped_passes.TranslateByteCode, untyped_passes.FixupArgs, untyped_passes.IRProcessing)
        typing = (untyped_passes.ReconstructSSA, typed_passes.NopythonTypeInference, typed_passes.PreLowerStripPhis)
        lowering = (typed_passes.IRLegalization, typed_passes.NativeLowering, typed_passes.NoPythonBackend)
        for step in (*first, *typing, *lowering):
            passes.add_pass(step, step.__name__)
        passes.finalize()
        return [passes]


class _InnerLibrary(JITCodeLibrary):  # type: ignore[misc]
    """Unoptimised LLVM code: a kernel that links it optimises everything at once and makes the machine code."""

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalized = True


class OptimisedLibrary(_InnerLibrary):
    """LLVM code that is optimised before it is linked: loops around it vectorise only if it is simple by then."""

    def _optimize_final_module(self) -> None:
        JITCodeLibrary._optimize_final_module(self)


class InnerCompiler(_FunctionCompiler):  # type: ignore[misc]
    """Stops at LLVM code: an inner function lives inside its callers, machine code of its own would be waste."""

    library_class: type[_InnerLibrary] = _InnerLibrary
    masked: Callable[..., Any] | None = None
    """What is compiled in place of the function where the first argument is a frame with `masks`."""

    def _compile_core(self, args: Any, return_type: Any) -> Any:
        has_masks = bool(args) and isinstance(args[0], numba.types.Record) and "masks" in args[0].fields
        function = named_for(self.masked if self.masked is not None and has_masks else self.py_func, args)
        flags = Flags()
        self.targetdescr.options.parse_as_flags(flags, self.targetoptions)
        flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
        typing, target = self.targetdescr.typing_context, self.targetdescr.target_context
        library = self.library_class(target.codegen(), function.__qualname__)
        result = compile_extra(
            typing, target, function, args, return_type, flags, self.locals, library, self.pipeline_class
        )
        if result.typing_error is not None:
            raise result.typing_error
        # Callers find a compiled function by its entry point; any object of its own will do.
        result = result._replace(entry_point=object())
        target.insert_user_function(result.entry_point, result.fndesc, [result.library])
        return result


def inner(
    function: Callable[..., Any] | None = None,
    *,
    compiler: type[InnerCompiler] = InnerCompiler,
    masked: Any = None,
    **options: Any,
) -> Any:
    """Compile `function` as a piece of kernels: kernels and other inner functions can call it, Python cannot.

    It costs a fraction of a kernel to compile, as it gets no machine code and no Python wrapper of its own, and one
    version serves literal and computed integer arguments alike (Numba would compile one for each).

    `masked`, an inner function of the same arguments, takes its place in kernels whose frame has `masks`: these are
    compiled for themselves, and those without are what they would be if there were no masks.
    """
    if function is None:
        return functools.partial(inner, compiler=compiler, masked=masked, **options)
    settings: dict[str, Any] = {"error_model": "numpy", "pipeline_class": _Lean} | options
    dispatcher = numba.njit(**settings)(function)
    _compiled_by(compiler, dispatcher).masked = None if masked is None else masked.py_func

    def keep(result: Any) -> None:
        dispatcher.overloads[tuple(result.signature.args)] = result

    find_template = dispatcher.get_call_template

    def without_literals(args: Any, kws: Any) -> Any:
        return find_template([numba.types.unliteral(arg) for arg in args], kws)

    # Numba's own `add_overload` would make it callable from Python, which needs machine code.
    dispatcher.add_overload = keep
    dispatcher.get_call_template = without_literals
    return dispatcher
