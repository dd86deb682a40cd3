"""The clauses: what a call of attention returns, case by case, with other readings that have a name.

`GROUPS` has a function for each group, which makes its clauses; `CLAUSES` has all of them by name.
"""

from dataclasses import replace

from regard.testing.conformance.clause import Clause
from regard.testing.conformance.clauses import derivatives, numbers, repeated, tensors, visibility

GROUPS = {
    "shapes": tensors.shapes_clauses,
    "zero sizes": tensors.zero_sizes_clauses,
    "scale": numbers.scale_clauses,
    "masks": visibility.masks_clauses,
    "causal": visibility.causal_clauses,
    "windows": visibility.windows_clauses,
    "empty rows": visibility.empty_rows_clauses,
    "hidden keys": visibility.hidden_keys_clauses,
    "grouped heads": tensors.grouped_heads_clauses,
    "bias": numbers.bias_clauses,
    "softcap": numbers.softcap_clauses,
    "sinks": numbers.sinks_clauses,
    "numbers": numbers.numbers_clauses,
    "gradients": derivatives.gradients_clauses,
    "second derivatives": derivatives.second_derivatives_clauses,
    "transforms": derivatives.transforms_clauses,
    "layouts": tensors.layouts_clauses,
    "dropout": repeated.dropout_clauses,
    "determinism": repeated.determinism_clauses,
    "decoding": repeated.decoding_clauses,
    "statistics": numbers.statistics_clauses,
    "refusals": tensors.refusals_clauses,
}


def _all() -> dict[str, Clause]:
    clauses: dict[str, Clause] = {}
    for group, make in GROUPS.items():
        for made in make():
            assert made.name not in clauses, made.name
            clauses[made.name] = replace(made, group=group)
    return clauses


CLAUSES = _all()
