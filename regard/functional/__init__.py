"""The public functions: attention, its plan, its statistics, and merging of attention over several sets of keys.

`api` holds the four functions, `kept` the plans that equal calls share. The other modules compute a call inside
torch.compile (`compiled`), inside torch.func (`transforms`) and with nested tensors (`jagged`).
"""

from regard.functional.api import attention, attention_detail, merge_attention, plan_attention

__all__ = ["attention", "plan_attention", "attention_detail", "merge_attention"]
