"""The deliberate breaks of `mechanisms`."""

from __future__ import annotations

from mutants.breaks.base import Break

MECHANISMS = "mechanisms/test_mechanisms.py::"

BREAKS = [
    Break(
        "tree sensitivity a level short",
        "lemma 9: s^2 = ceil(log2 T)",
        "mechanisms/tree.py",
        "math.sqrt(self.state_size))",
        "math.sqrt(max(1, self.state_size - 1)))",
        MECHANISMS + "test_tree_nodes",
    ),
    Break(
        "tree variance wrong at T = 2^k",
        "lemma 9: prefix 2^h is the sum of its two children, and b^2 must say so",
        "mechanisms/tree.py",
        "nodes = step >> height if last else step >> height & 1",
        "nodes = step >> height & 1",
        MECHANISMS + "test_tree_nodes",
    ),
    Break(
        "tree weighs the nodes alike",
        "lemma 9: a node of kappa levels has variance 1 / (2 (1 - 2^-kappa))",
        "mechanisms/tree.py",
        "own[height] = 2.0**height / (2.0 ** (height + 1) - 1)",
        "own[height] = 0.5",
        MECHANISMS + "test_factorisation[tree-5]",
    ),
    Break(
        "tree goes past T",
        "lemma 9: more triggers than T must be refused",
        "mechanisms/tree.py",
        "if not 0 <= start[row] <= stop <= triggers:",
        "if not 0 <= start[row] <= stop:",
        MECHANISMS + "test_misfits_are_refused",
    ),
    Break(
        "blt sensitivity without its last coefficient",
        "lemma 9: s is the longest column of E",
        "mechanisms/blt.py",
        "math.sqrt(np.sum(column**2))",
        "math.sqrt(np.sum(column[: max(1, self.triggers - 1)] ** 2))",
        MECHANISMS + "test_factorisation[blt-5]",
    ),
    Break(
        "blt goes past T",
        "lemma 9: more triggers than T must be refused",
        "mechanisms/blt.py",
        "if not 0 <= start[row] <= start[row] + length <= triggers:",
        "if not 0 <= start[row] <= start[row] + length:",
        MECHANISMS + "test_misfits_are_refused",
    ),
    Break(
        "four rows of blt share the first one's noise",
        "lemma 21: the same noise for two keys",
        "mechanisms/blt.py",
        "z_0, z_1, z_2, z_3 = z_at[0], z_at[1], z_at[2], z_at[3]",
        "z_0, z_1, z_2, z_3 = z_at[0], z_at[0], z_at[0], z_at[0]",
        MECHANISMS + "test_rows_are_independent[blt-4-7]",
    ),
]
