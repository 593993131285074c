"""The deliberate breaks of `mechanisms`."""

from __future__ import annotations

from mutants.breaks.base import Break

MECHANISMS = "mechanisms/test_mechanisms.py::"
FINAL_ROW = "mechanisms/test_final_row.py::"

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
        "if not 0 <= start[row] <= stop <= triggers:",
        "if not 0 <= start[row] <= stop:",
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
    Break(
        "the final row is s everywhere",
        "lemma 28: with the final row every column of E is as long as the first, none longer",
        "mechanisms/blt.py",
        "row[j] = math.sqrt(missing)",
        "row[j] = math.sqrt(np.sum(column * column))",
        FINAL_ROW + "test_the_last_release_follows_from_columns_of_length_s",
    ),
    Break(
        "the final row uses the last normal again",
        "lemma 28: row T + 1 of E has a normal of its own",
        "mechanisms/blt.py",
        "last = normals[normal_offsets[row + 1] - 1]",
        "last = normals[normal_offsets[row + 1] - 2]",
        FINAL_ROW + "test_the_last_release_follows_from_columns_of_length_s",
    ),
    Break(
        "the final rows of all keys share a normal",
        "lemma 21: the same noise for two keys",
        "mechanisms/blt.py",
        "last = normals[normal_offsets[row + 1] - 1]",
        "last = normals[normal_offsets[rows] - 1]",
        MECHANISMS + "test_rows_are_independent[blt-50-7]",
    ),
    Break(
        "b' in the threshold, xi in the noise",
        "lemma 13: thr(T) is for noise of deviation b'(T)",
        "mechanisms/blt.py",
        "out[end - 1] -= state[row, theta.size + 1] - final[triggers] * last",
        "out[end - 1] -= 0 * last",
        FINAL_ROW + "test_no_shorter_combination_is_the_sum",
    ),
    Break(
        "the final row saves twice as much",
        "lemma 28: b'^2(T) = b^2(T) - <beta, v>^2 / (1 + |v|^2)",
        "mechanisms/blt.py",
        "variance[-1] -= saved",
        "variance[-1] -= 2 * saved",
        FINAL_ROW + "test_no_shorter_combination_is_the_sum",
    ),
    Break(
        "the final row counts the normals since the last trigger",
        "lemma 28: <v, z> is over all normals of the path",
        "mechanisms/blt.py",
        "part = s[theta.size + 1]",
        "part = 0.0",
        MECHANISMS + "test_split_anywhere[blt-7]",
    ),
    Break(
        "the final row begins where a path goes on",
        "lemma 28: v_j goes with the normal of trigger j",
        "mechanisms/blt.py",
        "part += final[step + i] * w",
        "part += final[i] * w",
        MECHANISMS + "test_split_anywhere[blt-7]",
    ),
    Break(
        "float error of the final row not charged",
        "lemma 19: a path is off by what it adds up, not by what it releases",
        "mechanisms/blt.py",
        '"path_deviation_max", worst + math.sqrt(saved))',
        '"path_deviation_max", math.sqrt(variance[-1]))',
        FINAL_ROW + "test_no_shorter_combination_is_the_sum",
    ),
]
