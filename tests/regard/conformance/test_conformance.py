"""The conformance suite: regard answers every clause rightly, and a clause finds each planted fault and names it."""

import ast
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard.testing.conformance import (
    CLAUSES,
    GROUPS,
    IMPLEMENTATIONS,
    STATUSES,
    CannotAskError,
    NeutralCall,
    Torch,
    attend_with_numpy,
    judge,
)
from regard.testing.conformance.call import allowed_pairs, empty_rows_are, right_results
from regard.testing.conformance.clause import Reply, Results
from regard.testing.conformance.drawing import in_dtype
from regard.testing.conformance.report import markdown_lines, summary_lines, to_json
from regard.testing.conformance.running import ANSWER, ask_library
from regard.testing.oracle import answer

WITHOUT_ORACLE = ("dropout", "determinism", "refusals")  # groups that the oracle cannot answer
# The oracle has neither the range of float32 nor numbers of bfloat16.
WIDER_IN_FLOAT64 = ("scores-above-range", "scores-below-range", "bfloat16-output")
# Bits that only the native backend promises; the others are equal within rounding.
WITHIN_ROUNDING = ("query-invariance", "padding-invariance")


def agrees(reply: Reply) -> bool:
    if reply.clause in WITHIN_ROUNDING:
        return reply.status == "agrees" or reply.detail == "equal within rounding"
    return reply.status == "agrees"


@pytest.mark.parametrize("library", ["regard", "regard:reference"])
def test_regard_answers_every_clause_as_the_contract(library: str) -> None:
    attend = IMPLEMENTATIONS[library].new()
    for clause in CLAUSES.values():
        reply = judge(clause, attend)
        assert agrees(reply), reply


@pytest.mark.parametrize(
    "library", [name for name in IMPLEMENTATIONS if name.startswith("regard:")]
)
def test_a_backend_answers_rightly_or_refuses_by_a_sentence(library: str) -> None:
    attend = IMPLEMENTATIONS[library].new()
    agreed = 0
    for clause in CLAUSES.values():
        reply = judge(clause, attend)
        refuses = reply.status == "refused" and "does not compute this call" in reply.detail
        assert agrees(reply) or refuses, reply
        agreed += reply.status == "agrees"
    assert agreed > 40 or library == "regard:native"  # where there is no kernel, it refuses all


def test_the_oracle_itself_agrees_in_all_that_it_can_be_asked() -> None:
    asked = [clause for clause in CLAUSES.values() if clause.group not in WITHOUT_ORACLE]
    assert len(asked) > 130
    for clause in asked:
        if clause.name in WIDER_IN_FLOAT64:
            continue
        reply = judge(clause, attend_with_numpy)
        assert reply.status in ("agrees", "no word"), reply


def test_clauses_have_sentences_of_their_own_and_tolerances_with_reasons() -> None:
    sentences = [clause.sentence for clause in CLAUSES.values()]
    assert len(set(sentences)) == len(sentences) >= 170
    assert {clause.group for clause in CLAUSES.values()} == set(GROUPS)
    for clause in CLAUSES.values():
        assert clause.reason
        assert clause.tolerance < 0.1


def test_the_right_answers_share_no_code_with_regard() -> None:
    """Only the adapter of regard itself imports it."""
    folder = Path(regard.testing.conformance.__file__).parent
    for path in [*folder.rglob("*.py"), folder.parent / "oracle.py"]:
        if path.name == "of_regard.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            for name in names:
                allowed = ("regard.testing", "regard.reprs")  # the second one shortens reprs
                assert not str(name).startswith("regard") or str(name).startswith(allowed)


# Planted faults


@dataclass(frozen=True)
class PlantedFault:
    """An implementation with a fault, the clause that finds it, and how it calls it."""

    attend: Callable[[NeutralCall], Results]
    clause: str
    status: str
    detail: str = ""


def changed(**options: Any) -> Callable[[NeutralCall], Results]:
    """An implementation that gets some options wrong."""
    return lambda call: right_results(replace(call, **options))


def pairs(**how: Any) -> Callable[[NeutralCall], Results]:
    return lambda call: right_results(call, allowed_pairs(call, **how))


def rounded_to(dtype: str) -> Callable[[NeutralCall], Results]:
    """An implementation that rounds its inputs."""

    def attend(call: NeutralCall) -> Results:
        inputs = {name: in_dtype(getattr(call, name), dtype) for name in "qkv"}
        return right_results(replace(call, **inputs))

    return attend


def opposite_mask(call: NeutralCall) -> Results:
    return right_results(call if call.mask is None else replace(call, mask=~call.mask))


def scaled_bias(call: NeutralCall) -> Results:
    return right_results(call if call.bias is None else replace(call, bias=call.bias / 5))


def interleaved_heads(call: NeutralCall) -> Results:
    if call.k.shape[1] == call.sizes[1]:
        return right_results(call)
    order = np.argsort(np.arange(call.k.shape[1]) % 2, kind="stable")
    return right_results(replace(call, k=call.k[:, order], v=call.v[:, order]))


def leaking(call: NeutralCall) -> Results:
    """Masked weights are 0, and 0 · NaN is NaN."""
    found = dict(right_results(call))
    if np.isnan(call.v).any() or np.isnan(call.k).any():
        found["output"] = np.full_like(found["output"], np.nan)
    return found


def half_gradients(call: NeutralCall) -> Results:
    return {name: x / 2 if name == "dk" else x for name, x in right_results(call).items()}


def unsummed_gradient(call: NeutralCall) -> Results:
    found = dict(right_results(call))
    if "dbias" in found:
        found["dbias"] = found["dbias"] / call.sizes[0]
    return found


def base_two(call: NeutralCall) -> Results:
    found = dict(right_results(call))
    if "log_sum_exp" in found:
        found["log_sum_exp"] = found["log_sum_exp"] / np.log(2)
    return found


def overflowing(call: NeutralCall) -> Results:
    found = dict(right_results(call))
    if np.abs(call.q).max(initial=0) > 60:
        found["output"] = np.full_like(found["output"], np.nan)
    return found


def scaled_queries(call: NeutralCall) -> Results:
    """Queries are multiplied by the scale first, and overflow."""
    scale = call.q.shape[3] ** -0.5 if call.scale is None else call.scale
    with np.errstate(all="ignore"):
        return right_results(replace(call, q=in_dtype(call.q * scale, "float32"), scale=1.0))


def capped_by_exponentials(call: NeutralCall) -> Results:
    """tanh x as 1 - 2 / (1 + exp 2x), which is 0 for small x."""
    if call.softcap is None:
        return right_results(call)
    scores = call.q @ np.swapaxes(call.k, 2, 3) * call.q.shape[3] ** -0.5 / call.softcap
    capped = call.softcap * (1 - 2 / (1 + np.exp(2 * scores)))
    return right_results(replace(call, scale=0.0, softcap=None, bias=capped))


def refusing(call: NeutralCall) -> Results:
    if call.bias is not None:
        raise ValueError("no bias\nin two lines")
    return right_results(call)


def without_word(call: NeutralCall) -> Results:
    call.refuse_words("mask")
    return right_results(call)


def drops_nothing(call: NeutralCall) -> Results:
    return right_results(replace(call, dropout=0.0))


def other_each_time(call: NeutralCall) -> Results:
    noise = np.random.default_rng().standard_normal()
    return {name: x + 1e-9 * noise for name, x in right_results(call).items()}


def depends_on_the_batch(call: NeutralCall) -> Results:
    return {name: x + 1e-9 * call.sizes[0] for name, x in right_results(call).items()}


def depends_on_the_queries(call: NeutralCall) -> Results:
    return {name: x + 1e-9 * call.sizes[2] for name, x in right_results(call).items()}


def depends_on_the_keys(call: NeutralCall) -> Results:
    return {name: x + 1e-9 * call.sizes[3] for name, x in right_results(call).items()}


def halved(result: str) -> Callable[[NeutralCall], Results]:
    """An implementation that computes half of one result."""
    return lambda call: {
        name: x / 2 if name == result else x for name, x in right_results(call).items()
    }


def mixed_by_vmap(call: NeutralCall) -> Results:
    """Inside of vmap, the second entry gets what the first one gets."""
    found = right_results(call)
    if call.transform != "vmap":
        return found
    return {name: np.stack([x[0], x[0]]) for name, x in found.items()}


def dropping(
    call: NeutralCall, *, keeps: bool = False, divides: bool = True, again: bool = False
) -> Results:
    """Attention that drops weights, with faults of dropout."""
    if not call.dropout:
        return right_results(call)
    drawn = np.random.default_rng(call.seed).random((*call.sizes[:3], call.sizes[3]))
    kept = drawn < call.dropout if keeps else drawn >= call.dropout
    factors = kept / (1 - call.dropout if divides and call.dropout < 1 else 1)
    scale = call.q.shape[3] ** -0.5 if call.scale is None else call.scale
    found = answer(call.q, call.k, call.v, True, scale=scale, factors=factors)
    results: dict[str, Any] = {"output": found.output}
    if call.gradients:
        backward = factors[..., ::-1] if again else factors
        learned = answer(
            call.q,
            call.k,
            call.v,
            True,
            scale=scale,
            factors=backward,
            grad_output=call.grad_output,
        )
        results["dv"] = learned.dv
    return results


def writes_to_inputs(call: NeutralCall, tensors: Any) -> torch.Tensor:
    scores = tensors["q"] @ tensors["k"].mT / call.q.shape[3] ** 0.5
    if tensors["mask"] is not None:
        scores = scores.masked_fill(~tensors["mask"], -torch.inf)
    output = torch.softmax(scores, -1) @ tensors["v"]
    with torch.no_grad():
        tensors["q"].data.mul_(call.q.shape[3] ** -0.5)
    return output


def breaks_the_graph(call: NeutralCall, tensors: Any) -> torch.Tensor:
    if float(tensors["q"].sum()) > 1e30:
        raise ValueError("too large")
    allowed = torch.ones(call.q.shape[2], call.k.shape[2], dtype=torch.bool).tril()
    scores = tensors["q"] @ tensors["k"].mT / call.q.shape[3] ** 0.5
    if call.causal:
        scores = scores.masked_fill(~allowed, -torch.inf)
    return torch.softmax(scores, -1) @ tensors["v"]


def flushes_to_zero(call: NeutralCall) -> Results:
    return right_results(replace(call, v=np.where(np.abs(call.v) < 1e-38, 0.0, call.v)))


def takes_fewer_values(call: NeutralCall) -> Results:
    return right_results(replace(call, k=call.k[:, :, : call.v.shape[2]]))


FAULTS = {
    "causal ignored": PlantedFault(
        changed(causal=False), "causal-square", "alternative", "causal ignored"
    ),
    "aligned at the beginning": PlantedFault(
        pairs(aligned="first"),
        "causal-fewer-queries",
        "alternative",
        "aligned first with first",
    ),
    "a window of one key more": PlantedFault(
        pairs(wider=1), "window-causal", "alternative", "one key more"
    ),
    "a window of one key less": PlantedFault(
        pairs(wider=-1), "window-both-sides", "alternative", "one key less"
    ),
    "window ignored": PlantedFault(
        changed(window=None), "window-zero", "alternative", "window ignored"
    ),
    "True means masked": PlantedFault(
        opposite_mask, "mask-true-looks", "alternative", "True = masked"
    ),
    "mask ignored": PlantedFault(
        changed(mask=None), "mask-and-bias", "alternative", "mask ignored"
    ),
    "key lengths ignored": PlantedFault(
        changed(key_lengths=None),
        "causal-key-lengths",
        "alternative",
        "key lengths ignored",
    ),
    "first positions ignored": PlantedFault(
        changed(first_positions=None), "causal-first-positions", "differs"
    ),
    "scale ignored": PlantedFault(
        changed(scale=None), "scale-given", "alternative", "scale ignored"
    ),
    "bias scaled": PlantedFault(scaled_bias, "bias-full", "differs"),
    "softcap ignored": PlantedFault(changed(softcap=None), "softcap", "alternative", "ignored"),
    "sink ignored": PlantedFault(changed(sink=None), "sink", "alternative", "ignored"),
    "heads interleaved": PlantedFault(interleaved_heads, "grouped", "differs"),
    "empty rows NaN": PlantedFault(empty_rows_are("NaN"), "empty-row-mask", "alternative", "NaN"),
    "empty rows the mean": PlantedFault(
        empty_rows_are("mean"), "empty-batch-row", "alternative", "the mean of all values"
    ),
    "hidden NaN leaks": PlantedFault(leaking, "hidden-nan-value", "not finite"),
    "float64 in float32": PlantedFault(rounded_to("float32"), "float64", "differs"),
    "float32 in bfloat16": PlantedFault(rounded_to("bfloat16"), "float32", "differs"),
    "gradient of k halved": PlantedFault(half_gradients, "gradients", "differs"),
    "gradient of a bias not summed": PlantedFault(
        unsummed_gradient, "bias-broadcast-gradient", "differs"
    ),
    "log-sum-exp in base 2": PlantedFault(base_two, "log-sum-exp", "alternative", "base 2"),
    "large scores overflow": PlantedFault(overflowing, "large-scores", "not finite"),
    "queries overflow": PlantedFault(scaled_queries, "scale-large", "not finite"),
    "queries overflow under a softcap": PlantedFault(
        scaled_queries, "softcap-large-scale", "differs"
    ),
    "queries overflow in gradients": PlantedFault(
        scaled_queries, "softcap-large-scale-gradient", "not finite"
    ),
    "a softcap by exponentials": PlantedFault(
        capped_by_exponentials, "softcap-far-above", "alternative", "scores become 0"
    ),
    "dropout ignored": PlantedFault(
        drops_nothing, "dropout-drops", "alternative", "dropout ignored"
    ),
    "dropped weights not made up for": PlantedFault(
        partial(dropping, divides=False), "dropout-kept", "alternative", "not divided by 1 - p"
    ),
    "as many kept as should be dropped": PlantedFault(
        partial(dropping, keeps=True), "dropout-share", "alternative", "a quarter is kept"
    ),
    "other weights dropped backward": PlantedFault(
        partial(dropping, again=True), "dropout-gradient", "differs"
    ),
    "bits change": PlantedFault(
        other_each_time, "same-bits-twice", "alternative", "equal within rounding"
    ),
    "bits depend on the batch": PlantedFault(
        depends_on_the_batch, "batch-invariance", "alternative", "equal within rounding"
    ),
    "bits depend on the queries": PlantedFault(
        depends_on_the_queries, "query-invariance", "alternative", "equal within rounding"
    ),
    "bits depend on padding": PlantedFault(
        depends_on_the_keys, "padding-invariance", "alternative", "equal within rounding"
    ),
    "second derivatives halved": PlantedFault(halved("ddv"), "second", "differs"),
    "tangent halved": PlantedFault(halved("tangent"), "jvp", "differs"),
    "vmap mixes entries": PlantedFault(mixed_by_vmap, "vmap", "differs"),
    "inputs written to": PlantedFault(
        Torch(writes_to_inputs, ("mask", "gradients")), "inputs-unchanged", "differs"
    ),
    "graph broken": PlantedFault(
        Torch(breaks_the_graph, ("causal", "gradients", "compile")), "compile", "refused"
    ),
    "subnormal numbers flushed": PlantedFault(
        flushes_to_zero, "subnormal-values", "alternative", "lost"
    ),
    "fewer values accepted": PlantedFault(
        takes_fewer_values,
        "fewer-values",
        "accepted",
        "keys without a value are ignored",
    ),
    "an option refused": PlantedFault(refusing, "bias-full", "refused", "ValueError: no bias"),
    "an option without a word": PlantedFault(without_word, "sink", "no word", "sink"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_by_a_clause_that_names_it(name: str) -> None:
    fault = FAULTS[name]
    found = judge(CLAUSES[fault.clause], fault.attend)
    detail = fault.detail if fault.detail or fault.status != "refused" else found.detail
    assert (found.status, found.detail) == (fault.status, detail)
    sound = judge(CLAUSES["heads-and-batch"], fault.attend)
    assert (sound.status == "agrees") == (name != "float32 in bfloat16")


# One's own function, and processes that end


def test_a_function_of_ones_own_is_asked_in_a_few_lines() -> None:
    def attend(call: NeutralCall, tensors: Any) -> torch.Tensor:
        return (
            torch.softmax(tensors["q"] @ tensors["k"].mT / call.q.shape[3] ** 0.5, -1)
            @ tensors["v"]
        )

    mine = Torch(attend, words=("layout", "gradients"))
    assert judge(CLAUSES["layout-sliced"], mine).status == "agrees"
    assert judge(CLAUSES["gradients"], mine).status == "agrees"
    assert judge(CLAUSES["scale-given"], mine).detail == "scale"
    with pytest.raises(CannotAskError, match="mask"):
        mine(CLAUSES["mask-by-batch"].call)


DYING = f"""
import json, os, sys
for name in sys.stdin.read().split():
    if name == "one-key":
        os.abort()
    print("a line of the library")
    print({ANSWER!r} + json.dumps({{"clause": name, "status": "agrees", "detail": "", "error": None}}), flush=True)
"""


def test_a_process_that_ends_costs_one_cell() -> None:
    done = []
    column = ask_library(
        "sdpa",
        ("one-head", "one-key", "more-queries"),
        done.append,
        command=(sys.executable, "-c", DYING),
    )
    statuses = {name: reply.status for name, reply in column.replies.items()}
    assert statuses == {"one-head": "agrees", "one-key": "crashed", "more-queries": "agrees"}
    assert sum(done) == 3


def test_a_report_has_a_cell_for_every_clause_and_explains_what_differs() -> None:
    causal = ["causal-square", "causal-fewer-queries", "causal-one-query"]
    asked = ask_library("sdpa", causal)
    assert list(asked.replies) == causal
    column = replace(
        asked, replies={name: Reply(name, "agrees") for name in CLAUSES} | asked.replies
    )
    counts = summary_lines([column])[-1].split(" | ")[2:]
    assert sum(int(count.strip(" |")) for count in counts) == len(CLAUSES)
    report = "\n".join(markdown_lines([column], "a system"))
    for name, clause in CLAUSES.items():
        assert f"\n| {name} | " in report
        assert f"- **{name}**: {clause.sentence}" in report
    assert "sdpa: another reading, which has a name: aligned first with first" in report
    answers = to_json([column], "a system")["libraries"]["sdpa"]["answers"]
    assert {answer["status"] for answer in answers} <= set(STATUSES)
