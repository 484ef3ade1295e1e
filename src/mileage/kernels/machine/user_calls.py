"""Calls of users' functions from compiled code: how they ended, and their errors once Python is back.

Compiled functions return a status beside their value. Numba's own calls pass one that is not good on to their caller,
up to Python; where the caller is a C function, that is the end of the road. These note the error and hand the caller a
flag. Functions that cannot raise cost nothing: their status is a constant, and all this goes away.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.callconv import RETCODE_EXC, RETCODE_STOPIT, RETCODE_USEREXC, Status
from numba.extending import intrinsic

# --- Errors of users' functions in compiled code: noted there, raised once Python is back ---
# Nobody asks after calls that are made for a measurement.
_MOST_NOTED = 1000


@dataclass(frozen=True)
class Failure:
    """What a user's function raised."""

    function: int
    """The number by which it was called."""
    address: int
    """Of its environment's age."""
    error: BaseException


_noted: list[Failure] = []


def note(
    function: int, address: int, kind: type[BaseException], value: object, trace: TracebackType | None = None
) -> None:
    """Take down an error; called by compiled code, on whichever thread that is."""
    arguments = value if isinstance(value, tuple) else () if value is None else (value,)
    error = value if isinstance(value, BaseException) else kind(*arguments)
    if len(_noted) < _MOST_NOTED:
        _noted.append(Failure(function, address, error.with_traceback(trace)))


def take_noted(start: int, end: int) -> list[Failure]:
    """What was noted of environments whose ages are from address `start` to `end`, which is forgotten."""
    if not _noted:
        return []
    own = [failure for failure in _noted if start <= failure.address < end]
    for failure in own:
        _noted.remove(failure)
    return own


_NOTE = "mileage_note_failure"
_I32, _I64 = ir.IntType(32), ir.IntType(64)


def _attempt(typingctx: Any, function: Any, arguments: tuple[Any, ...]) -> Any:
    """Signature and code of a call of `function`, whose own arguments follow `what`, `elapsed` and `index`."""
    called = function.get_call_type(typingctx, arguments, {})
    result = types.Tuple((types.boolean, called.return_type))

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, what, elapsed, index, *values = args
        compiled = function.dispatcher.overloads[called.args]
        context.add_linking_libs([compiled.library])
        status, value = context.call_internal_no_propagate(builder, compiled.fndesc, called, values)
        with cgutils.if_unlikely(builder, status.is_error):
            address = builder.ptrtoint(builder.gep(elapsed, [index]), _I64)
            builder.call(
                _note_function(context, builder.module, status), [status.code, status.excinfoptr, what, address]
            )
        return context.make_tuple(builder, signature.return_type, [status.is_error, value])

    return result(function, types.int64, types.CPointer(types.int64), types.int64, *called.args), codegen


@intrinsic
def attempt_2(typingctx: Any, function: Any, what: Any, elapsed: Any, index: Any, first: Any, second: Any) -> Any:
    """(whether it raised, what it returned) of `function(first, second)`, environment `index` having its age there."""
    return _attempt(typingctx, function, (first, second))


@intrinsic
def attempt_3(
    typingctx: Any, function: Any, what: Any, elapsed: Any, index: Any, first: Any, second: Any, third: Any
) -> Any:
    """As `attempt_2`, with three arguments."""
    return _attempt(typingctx, function, (first, second, third))


def _status(builder: Any, code: Any, excinfo: Any) -> Status:
    """A status that is not good, from its parts."""
    true, false = cgutils.true_bit, cgutils.false_bit
    return Status(
        code=code,
        is_ok=false,
        is_none=false,
        is_error=true,
        is_python_exc=builder.icmp_signed("==", code, RETCODE_EXC),
        is_stop_iteration=builder.icmp_signed("==", code, RETCODE_STOPIT),
        is_user_exc=builder.icmp_signed(">=", code, RETCODE_USEREXC),
        excinfoptr=excinfo,
    )


def _note_function(context: Any, module: Any, status: Any) -> Any:
    """A function of this module that hands an error to `noted.note`; out of the way of code that runs."""
    if _NOTE in module.globals:
        return module.globals[_NOTE]
    kind = ir.FunctionType(ir.VoidType(), [_I32, status.excinfoptr.type, _I64, _I64])
    function = ir.Function(module, kind, _NOTE)
    function.linkage = "internal"
    function.attributes.add("noinline")
    function.attributes.add("cold")
    code, excinfo, what, address = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    python = context.get_python_api(builder)
    state = python.gil_ensure()
    context.call_conv.raise_error(builder, python, _status(builder, code, excinfo))
    parts = [cgutils.alloca_once_value(builder, python.get_null_object()) for _ in range(3)]
    python.err_fetch(*parts)
    home = python.import_module(context.insert_const_string(module, __name__))
    numbers = [python.long_from_longlong(what), python.long_from_longlong(address)]
    # An empty part ends the list of arguments early: the traceback comes last.
    raised = [builder.load(part) for part in parts]
    none = python.borrow_none()
    value = builder.select(cgutils.is_null(builder, raised[1]), none, raised[1])
    python.call_function_objargs(python.object_getattr_string(home, "note"), [*numbers, raised[0], value, raised[2]])
    python.err_clear()
    python.gil_release(state)
    builder.ret_void()
    return function
