"""How numba kernels are compiled."""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

# Without numba's runtime a kernel cannot allocate, and the references to its arrays are not counted
# at each call, which would take longer than the call itself.
kernel: Any = numba.njit(nogil=True, cache=True, _nrt=False)  # type: ignore[call-overload]
# For functions that a kernel calls for each record: an array argument is seven machine words.
inlined: Any = numba.njit(nogil=True, cache=True, _nrt=False, forceinline=True)  # type: ignore[call-overload]


def _prefetch(_, array, row):  # type: ignore[no-untyped-def]
    """Start fetching a row of an array into the cache. This changes no result."""

    def emit(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        kind = signature.args[0]
        view = context.make_array(kind)(context, builder, arguments[0])
        indices = [arguments[1], *[ir.Constant(ir.IntType(64), 0)] * (kind.ndim - 1)]
        pointer = cgutils.get_item_pointer(context, builder, kind, view, indices)  # type: ignore[no-untyped-call]
        byte = builder.bitcast(pointer, ir.IntType(8).as_pointer())
        kinds = [byte.type, *[ir.IntType(32)] * 3]
        fetch = builder.module.declare_intrinsic(
            "llvm.prefetch", [byte.type], ir.FunctionType(ir.VoidType(), kinds)
        )
        hints = [ir.Constant(ir.IntType(32), hint) for hint in (0, 3, 1)]  # read, keep, data
        builder.call(fetch, [byte, *hints])
        return context.get_dummy_value()

    return types.void(array, types.int64), emit


prefetch: Any = intrinsic(_prefetch)
