"""The public functions: attention, its plan, its statistics, and merging of attention over several sets of keys.

`api` holds the five functions, `kept` the plans that equal calls share, and `structures` those that calls share whose
patterns differ in their padding alone. The other modules compute a call inside torch.compile (`compiled`, with the
arguments of `operation`), in an exported program (`plain`), inside torch.func (`transforms`) and with packed and nested
tensors (`jagged`), show it to PyTorch's counters (`measured`), and warn of calls that are often meant otherwise
(`remarks`).
"""

from regard.functional.api import (
    attention,
    attention_detail,
    attention_varlen,
    merge_attention,
    plan_attention,
)

__all__ = ["attention", "attention_varlen", "plan_attention", "attention_detail", "merge_attention"]
