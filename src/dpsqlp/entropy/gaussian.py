"""Normals from uniform 128-bit blocks, bit for bit the same on every machine.

The first word of a block, signed, is the probability p = (w + 1/2) / 2^64 + 1/2; the normal is its
quantile, by Wichura's AS241 (PPND16, relative error below 1e-15). In the tails the second word
supplies the lower digits: with 64 bits alone, neighbouring quantiles at 6 sigma would be 2^-38
apart, coarser than a fine quantum, which could reveal a sum of small values. So tail probabilities
have 53 good bits down to 2^-128 (13 sigma; docs/proof.md, Lemma 20).
The logarithm is implemented here (after fdlibm) because libraries differ in the last bit. The other
operations are +, -, *, / and sqrt, which IEEE 754 rounds exactly. No fastmath.
"""

from __future__ import annotations

import math

import numba
import numpy as np
from numpy.typing import NDArray

from dpsqlp.entropy.prf import Array128

_STEP = 2.0**-64
_CENTRE = np.int64(0.425 * 2.0**64)  # AS241 switches formula at |p - 1/2| = 0.425


def normals(blocks: Array128) -> NDArray[np.float64]:
    """The normal of every block."""
    out = np.empty(len(blocks), np.float64)
    _quantiles(blocks, out)
    return out


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _log(x):  # type: ignore[no-untyped-def]
    """ln x for a positive, normal x."""
    bits = np.float64(x).view(np.int64)
    # x = 2^exponent * mantissa, the mantissa between sqrt(1/2) and sqrt(2)
    exponent = (bits + (0x3FF0000000000000 - 0x3FE6A09E667F3BCD) >> 52) - 1023
    mantissa = np.int64(bits - (exponent << 52)).view(np.float64)
    f = mantissa - 1.0
    s = f / (2.0 + f)
    z = s * s
    r = z * (
        6.666666666666735130e-01
        + z
        * (
            3.999999999940941908e-01
            + z
            * (
                2.857142874366239149e-01
                + z
                * (
                    2.222219843214978396e-01
                    + z
                    * (
                        1.818357216161805012e-01
                        + z * (1.531383769920937332e-01 + z * 1.479819860511658591e-01)
                    )
                )
            )
        )
    )
    half = 0.5 * f * f
    low = s * (half + r) + exponent * 1.90821492927058770002e-10
    return exponent * 6.93147180369123816490e-01 - ((half - low) - f)


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _quantiles(blocks, out):  # type: ignore[no-untyped-def]
    """The centre for all, then the tails (15 %) gathered and scattered: loops without branches."""
    words = np.empty(len(blocks), np.int64)
    for k in range(len(blocks)):
        words[k] = np.int64(blocks[k, 0])
    tail = np.empty(len(words), np.int32)
    tails = 0
    for k in range(len(words)):
        word = words[k]
        q = (word + 0.5) * _STEP
        r = 0.180625 - q * q
        out[k] = (
            q
            * (((((((2509.0809287301226727 * r + 33430.575583588128105) * r
                    + 67265.770927008700853) * r + 45921.953931549871457) * r
                  + 13731.693765509461125) * r + 1971.5909503065514427) * r
                + 133.14166789178437745) * r + 3.387132872796366608)
            / (((((((5226.495278852854561 * r + 28729.085735721942674) * r
                    + 39307.89580009271061) * r + 21213.794301586595867) * r
                  + 5394.1960214247511077) * r + 687.1870074920579083) * r
                + 42.313330701600911252) * r + 1.0)
        )  # fmt: skip
    for k in range(len(words)):
        tail[tails] = k
        tails += (words[k] ^ (words[k] >> 63)) > _CENTRE
    chance = np.empty(tails, np.float64)
    for t in range(tails):
        # one's complement of a negative word: the distance from the nearer end, exactly
        word = words[tail[t]]
        size = word ^ (word >> 63)
        below = (blocks[tail[t], 1] + 0.5) * _STEP
        chance[t] = ((0x7FFFFFFFFFFFFFFF - size) + below) * _STEP
    root = np.empty(tails, np.float64)
    for t in range(tails):
        root[t] = math.sqrt(-_log(chance[t]))
    value = chance
    for t in range(tails):
        r = root[t] - 1.6
        value[t] = (
            (((((((7.7454501427834140764e-4 * r + 0.0227238449892691845833) * r
                  + 0.24178072517745061177) * r + 1.27045825245236838258) * r
                + 3.64784832476320460504) * r + 5.7694972214606914055) * r
              + 4.6303378461565452959) * r + 1.42343711074968357734)
            / (((((((1.05075007164441684324e-9 * r + 5.475938084995344946e-4) * r
                    + 0.0151986665636164571966) * r + 0.14810397642748007459) * r
                  + 0.68976733498510000455) * r + 1.6763848301838038494) * r
                + 2.05319162663775882187) * r + 1.0)
        )  # fmt: skip
    for t in range(tails):
        if root[t] > 5.0:
            r = root[t] - 5.0
            value[t] = (
                (((((((2.01033439929228813265e-7 * r + 2.71155556874348757815e-5) * r
                      + 0.0012426609473880784386) * r + 0.026532189526576123093) * r
                    + 0.29656057182850489123) * r + 1.7848265399172913358) * r
                  + 5.4637849111641143699) * r + 6.6579046435011037772)
                / (((((((2.04426310338993978564e-15 * r + 1.4215117583164458887e-7) * r
                        + 1.8463183175100546818e-5) * r + 7.868691311456132591e-4) * r
                      + 0.0148753612908506148525) * r + 0.13692988092273580531) * r
                    + 0.59983220655588793769) * r + 1.0)
            )  # fmt: skip
        out[tail[t]] = value[t] if words[tail[t]] >= 0 else -value[t]
