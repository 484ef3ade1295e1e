"""Raw pointers inside kernels: C functions by address, and array views on them.

An environment is compiled to C functions with one fixed signature each (see `mileage.envs`); kernels receive
their addresses as plain integers. Unlike Numba's first-class function type this costs nothing to pass, and a kernel
that calls through an address is compiled once and cached for every environment.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


def data_pointer(context: Any, builder: Any, array_type: Any, array: Any) -> Any:
    """LLVM value of an array's data pointer, as i8*."""
    struct = context.make_array(array_type)(context, builder, array)
    return builder.bitcast(struct.data, cgutils.voidptr_t)


@intrinsic
def call_int64(typingctx: Any, address: Any, arguments: Any) -> Any:
    """Call `int64 f(...)` at `address`.

    Of the tuple `arguments`, an array goes as its data pointer, a pair `(array, row)` as a pointer to that row of it
    (no view is made), and an integer as int64.
    """
    if not isinstance(arguments, types.BaseTuple):
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target, packed = args
        values = []
        for position, item_type in enumerate(signature.args[1].types):
            item = builder.extract_value(packed, position)
            if isinstance(item_type, types.Array):
                values.append(data_pointer(context, builder, item_type, item))
            elif isinstance(item_type, types.BaseTuple):
                values.append(_row_pointer(context, builder, item_type, item))
            else:
                values.append(context.cast(builder, item, item_type, types.int64))
        function_type = ir.FunctionType(ir.IntType(64), [value.type for value in values])
        pointer = builder.inttoptr(target, function_type.as_pointer())
        return builder.call(pointer, values)

    return types.int64(types.int64, arguments), codegen


def _row_pointer(context: Any, builder: Any, pair_type: Any, pair: Any) -> Any:
    array_type, row_type = pair_type.types
    struct = context.make_array(array_type)(context, builder, builder.extract_value(pair, 0))
    row = context.cast(builder, builder.extract_value(pair, 1), row_type, types.int64)
    stride = builder.extract_value(struct.strides, 0)
    return builder.gep(builder.bitcast(struct.data, cgutils.voidptr_t), [builder.mul(row, stride)])
