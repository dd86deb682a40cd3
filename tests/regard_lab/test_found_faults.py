"""Faults that users found, put back one at a time: each makes a test fail by name.

`python tests/regard_lab/test_found_faults.py` plants each of them and runs its test, which has to fail.
"""

import contextlib
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from regard.functional.kept import PLANS

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("", "tests", "tests/regard", "tests/regard_lab")]


class Fault(NamedTuple):
    """What was wrong, how it is put back, and the test that then fails."""

    plant: Callable[[pytest.MonkeyPatch], None]
    test: str


def keep_half_written_structs(patch: pytest.MonkeyPatch) -> None:
    """A plan keeps its struct after an exception and while a call computes with it."""
    from regard.backends.native import kernel
    from regard.backends.native.filling import KernelCall

    structs: dict[int, KernelCall] = {}
    patch.setattr(
        kernel, "KernelCall", lambda problem: structs.setdefault(id(problem), KernelCall(problem))
    )


def look_at_the_output_alone(patch: pytest.MonkeyPatch) -> None:
    """Keys that a bias hides are looked for only if the output is not finite."""
    patch.setattr("regard.core.hidden.without_masked", lambda problem, operands: operands)


def read_memory_as_it_is(patch: pytest.MonkeyPatch) -> None:
    """The numbers of every tensor are taken for those in its memory."""
    patch.setattr("regard.core.call.in_memory", lambda name, x: x)
    patch.setattr("regard.backends.second_order.in_memory", lambda name, x: x)


def read_causal_objects_as_numbers(patch: pytest.MonkeyPatch) -> None:
    """The memory of PyTorch's causal objects is read, which nobody wrote."""
    patch.setattr("regard.core.tensors.refuse_wrapper", lambda name, x: None)


def read_float64_beside_other_queries(patch: pytest.MonkeyPatch) -> None:
    """Stored float64 reaches the kernel whatever the dtype of the queries is."""
    patch.setattr("regard.backends.native.backend._reads_stored", lambda problem: True)


def let_every_layer_append(patch: pytest.MonkeyPatch) -> None:
    """A cache has no owner."""
    patch.setattr("regard.layers.caches.base.Owned.refuse_other", lambda self, layer: None)


def make_masks_of_booleans(patch: pytest.MonkeyPatch) -> None:
    """A model that computes with its mask gets True and False instead of eager attention's numbers."""
    from regard.integrations.transformers import masks

    def made(
        cls: Any, pattern: Any, q_start: int, shape: Any, device: Any, *others: Any, **options: Any
    ) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bool, device=device)

    patch.setattr(masks.PatternMask, "__new__", staticmethod(made))
    patch.setattr(masks.PatternMask, "numbers", lambda self: self.pairs())


def attach_without_a_look(patch: pytest.MonkeyPatch) -> None:
    """No module is outside, and nothing is compared with eager attention."""
    from regard.integrations.transformers import attaching

    nothing = attaching.Checked((), {})
    patch.setattr(attaching, "check_equal", lambda model, callers, exchanged: nothing)
    patch.setattr(attaching, "outside_of", lambda model, exchanged=None: {})


def draw_a_compiled_seed_again(patch: pytest.MonkeyPatch) -> None:
    """A graph may draw the seed of dropout again in its backward pass."""
    from regard.functional import compiled

    patch.setattr(
        compiled, "CheckpointPolicy", SimpleNamespace(MUST_SAVE=None, MUST_RECOMPUTE=None)
    )


def agree_on_types_alone(patch: pytest.MonkeyPatch) -> None:
    """Processes compare the texts of patterns and the types of other options."""
    from regard.distributed import api
    from regard.patterns import Pattern

    patch.setattr(api, "contents", lambda x: str(x) if isinstance(x, Pattern) else type(x).__name__)


def normalise_targets(patch: pytest.MonkeyPatch) -> None:
    """Targets lose their typography before they are learned."""
    from regard_lab.text import Tokeniser

    patch.setattr(Tokeniser, "encode_target", Tokeniser.encode)


def keep_halves_of_rows(patch: pytest.MonkeyPatch) -> None:
    """Rows with an unpaired quote at an edge are pairs."""
    from regard_lab.text.tables import Quotes

    patch.setattr(Quotes, "has_half", lambda quotes, number, cells: False)


FAULTS = {
    "1 a call that stops half way poisons the next": Fault(
        keep_half_written_structs,
        "tests/regard/native/test_native_interrupted.py::"
        "test_calls_after_an_interrupted_one_return_the_same_bits[window with ALiBi]",
    ),
    "2 a call inside a call": Fault(
        keep_half_written_structs,
        "tests/regard/native/test_native_interrupted.py::test_a_call_inside_a_call_changes_neither[window with ALiBi]",
    ),
    "3 NaN gradients through a key that a bias masks": Fault(
        look_at_the_output_alone,
        "tests/regard/contracts/test_hidden_by_bias.py::"
        "test_a_key_hidden_by_a_bias_changes_no_bit_of_output_statistic_or_gradient[bias by key-plain-True-want2]",
    ),
    "4 negated views are read without their sign": Fault(
        read_memory_as_it_is,
        "tests/regard/test_values_in_memory.py::"
        "test_negated_views_have_their_sign_in_the_first_and_later_calls[native-negated]",
    ),
    "4 incoming gradients are read without their sign": Fault(
        read_memory_as_it_is,
        "tests/regard/test_values_in_memory.py::"
        "test_incoming_gradients_may_be_negated_views_or_zeros_without_memory[None-native]",
    ),
    "5 the memory of a causal object is read": Fault(
        read_causal_objects_as_numbers,
        "tests/regard/test_values_in_memory.py::"
        "test_the_causal_objects_of_pytorch_are_refused_as_a_bias_with_the_pattern_to_give",
    ),
    "6 a float64 cache under a layer of another dtype": Fault(
        read_float64_beside_other_queries,
        "tests/regard/test_values_in_memory.py::test_a_float64_cache_continues_a_layer_of_another_dtype",
    ),
    "7 one cache for several layers": Fault(
        let_every_layer_append,
        "tests/regard/layers/test_cache_owners.py::test_a_second_layer_is_refused_with_the_way_and_changes_nothing",
    ),
    "8 a model's arithmetic on a mask": Fault(
        make_masks_of_booleans,
        "tests/regard/integrations/test_transformers_attaching.py::"
        "test_an_architecture_gives_the_numbers_of_eager_attention[deepseek_v4]",
    ),
    "9 other numbers than eager attention's": Fault(
        attach_without_a_look,
        "tests/regard/integrations/test_transformers_attaching.py::"
        "test_a_model_that_would_give_other_numbers_is_refused_and_stays_as_it_was[attention_mask]",
    ),
    "9 a model without attention is attached": Fault(
        attach_without_a_look,
        "tests/regard/integrations/test_transformers_attaching.py::test_a_model_without_attention_is_refused[mamba]",
    ),
    "10 processes that differ in a number pass the agreement": Fault(
        agree_on_types_alone,
        "tests/regard/several_processes/test_agreement.py::"
        "test_what_processes_compare_depends_on_every_number_of_an_option",
    ),
    "11 targets are normalised and references are not": Fault(
        normalise_targets,
        "tests/regard_lab/text/test_typography.py::test_every_target_comes_back_as_it_is",
    ),
    "12 a quoted line end makes a pair of two halves": Fault(
        keep_halves_of_rows,
        "tests/regard_lab/text/test_readers.py::test_no_pair_is_made_from_halves_of_a_quoted_row",
    ),
    "13 compiled dropout draws another mask in the backward pass": Fault(
        draw_a_compiled_seed_again,
        "tests/regard/test_compiled.py::"
        "test_a_backward_pass_that_computes_again_has_the_dropout_of_the_forward_pass"
        "[no budget-aot_eager_decomp_partition]",
    ),
}


def outcome(fault: Fault) -> str:
    """How its test ends with a fault: "failed", or with which code. Without it the test is one of the suite."""
    PLANS.forget()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()):
        fault.plant(patch)
        code = int(
            pytest.main(
                ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", str(ROOT / fault.test)]
            )
        )
    return {1: "failed"}.get(code, f"ended with {code}")


def test_a_test_fails_for_every_fault_that_is_put_back():
    done = subprocess.run(
        [sys.executable, __file__], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == dict.fromkeys(FAULTS, "failed")


if __name__ == "__main__":
    print(json.dumps({name: outcome(fault) for name, fault in FAULTS.items()}))
