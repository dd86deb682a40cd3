"""A recurrence inside torch.compile is that outside, for every length and number of documents, in one graph."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from regard.backends.native.recurrence import engine_on
from regard.backends.recurrence import PLAIN, RecurrenceInputs, Rule, scan, scan_texts
from regard.functional.compiled_recurrence import traced_recurrence

RULE = Rule(corrects=True, scale=0.4)


def drawn(n: int, dtype: torch.dtype = torch.float32) -> tuple[RecurrenceInputs, torch.Tensor]:
    """Inputs of two rows and three heads over n positions, and where documents begin; the first row goes on."""
    generator = torch.Generator().manual_seed(n)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype)

    k = torch.nn.functional.normalize(normal(2, 3, n, 5), dim=-1)
    log_decay = torch.nn.functional.logsigmoid(normal(2, 3, n))
    strength = normal(2, 3, n).sigmoid()
    memory = normal(2, 3, 5, 7)
    inputs = RecurrenceInputs(
        normal(2, 3, n, 5), k, normal(2, 3, n, 7), log_decay, strength, memory
    )
    begins = torch.rand(2, n, generator=generator) < 0.2
    begins[:, 0] = torch.tensor([False, True])
    return inputs, begins


def answers(function, inputs: RecurrenceInputs, begins: torch.Tensor) -> list[torch.Tensor]:
    """The output, the memory after it, and the gradients of all inputs."""
    leaves = RecurrenceInputs(*(x.detach().clone().requires_grad_() for x in inputs))
    output, after = function(leaves, begins)
    loss = output.square().sum() + after.sin().sum()
    return [output, after, *torch.autograd.grad(loss, leaves)]


def step_by_step(inputs: RecurrenceInputs, begins: torch.Tensor):
    """The formula, one position after the other."""
    q, k, v, log_decay, strength, memory = inputs
    outputs = []
    for t in range(v.shape[2]):
        memory = memory * log_decay[:, :, t, None, None].exp()
        memory = torch.where(begins[:, t, None, None, None], 0.0, memory)
        key = k[:, :, t, :, None]
        update = strength[:, :, t, None, None] * (v[:, :, t, None] - key.mT @ memory)
        memory = memory + key * update
        outputs.append(RULE.scale * q[:, :, t, None] @ memory)
    return torch.cat(outputs, 2), memory


@pytest.mark.parametrize("engine", ["plain", "of the device"])
def test_texts_of_batch_rows_begin_without_a_memory_and_the_first_goes_on(engine):
    inputs, begins = drawn(71, torch.float64)

    def by_engine(inputs, begins):
        chosen = PLAIN if engine == "plain" else engine_on(inputs.v)
        return scan_texts(chosen, RULE, inputs, begins)

    ours = answers(by_engine, inputs, begins)
    for mine, theirs in zip(ours, answers(step_by_step, inputs, begins), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-9)


def test_a_nan_of_one_text_stays_in_it():
    inputs, begins = drawn(23)
    begins[:] = False
    begins[:, 9] = True
    inputs.v[:, :, 4] = torch.nan
    output, after = scan_texts(engine_on(inputs.v), RULE, inputs, begins)
    assert output[:, :, 4:9].isnan().all()
    assert output[:, :, 9:].isfinite().all()
    assert after.isfinite().all()


def test_one_graph_serves_every_length_and_every_number_of_documents():
    def inside(inputs, begins):
        return traced_recurrence(RULE, RecurrenceInputs(*inputs), begins)

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(inside, fullgraph=True, backend=counter, dynamic=True)
    counts = []
    for n in (33, 5, 70, 2, 41, 18):
        inputs, begins = drawn(n)

        def outside(inputs, begins):
            return scan_texts(engine_on(inputs.v), RULE, inputs, begins)

        expected = answers(outside, inputs, begins)
        for mine, theirs in zip(answers(compiled, inputs, begins), expected, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-5)
        counts.append(counter.frame_count)
    # With `dynamic=True` PyTorch first takes the numbers of the rule for symbols, and begins once more with constants.
    assert counts == [counts[0]] * 6
    assert counts[0] <= 2
    entries = torch._dynamo.eval_frame._debug_get_cache_entry_list(inside)
    assert len(entries) == 1


@pytest.mark.parametrize("packed", [True, False])
def test_the_operation_keeps_every_promise_to_the_compiler(packed):
    inputs, begins = drawn(9)
    leaves = [x.detach().requires_grad_() for x in inputs]
    options = {"corrects": True, "scale": 0.4, "unit": 0.0, "learns": [True] * 6}
    arguments = (*leaves, begins if packed else None)
    torch.library.opcheck(torch.ops.regard.recurrence, arguments, options)


def test_without_documents_it_is_the_scan():
    inputs, _ = drawn(40)
    expected = scan(engine_on(inputs.v), RULE, inputs)
    for mine, theirs in zip(traced_recurrence(RULE, inputs, None), expected, strict=True):
        assert torch.equal(mine, theirs)
