"""Other mechanisms than softmax are judged by the formulas of their papers; whoever computes another is found out."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from regard.errors import ArgumentError
from regard.mechanisms import LSH, Additive, LinearTransformer, Linformer, Mechanism, Performer, RandomFeature, Softmax
from regard_lab.bench.cases import REGARD
from regard_lab.bench.judging import FORMULAS, Bound, hashed_pairs, judge, own_last, places
from regard_lab.bench.peers import PEERS
from regard_lab.bench.work import CAUSAL, FULL, Contender, Contest, Work, make_tensors

ADDITIVE = Softmax(Additive(query_dim=8, key_dim=8, hidden=5))
SUBJECTS = {
    "linear": (LinearTransformer(), FULL),
    "causal linear": (LinearTransformer(), CAUSAL),
    "performer": (Performer(features=24), CAUSAL),
    "random features": (RandomFeature(features=24), CAUSAL),
    "linformer": (Linformer(700, rank=6), FULL),
    "hashed": (LSH(chunk=16, buckets=8, rounds=3), FULL),
    "hashed, causal": (LSH(chunk=16, buckets=8, rounds=3), CAUSAL),
    "hashed, one chunk": (LSH(chunk=1000, buckets=8, rounds=3), FULL),
    "additive": (ADDITIVE, CAUSAL),
}


def work_of(name, length=130, **options):
    mechanism, pattern = SUBJECTS[name]
    return Work(length, heads=2, head_dim=8, v_dim=11, pattern=pattern, mechanism=mechanism, backward=True, **options)


def verdict(work, contender=REGARD):
    return judge(Contest("here", work, (REGARD,)), contender)


@pytest.mark.parametrize("name", SUBJECTS)
@pytest.mark.parametrize("length", [130, 600])  # every row, and some rows
def test_regard_is_right(name, length):
    found = verdict(work_of(name, length))
    assert found.right, found
    gradients = {"dq", "dv"} if "hashed" in name else {"dq", "dk", "dv"}
    assert set(found.errors) == {"output"} | gradients | {f"d{one}" for one in make_tensors(work_of(name)).parameters}


def spoiled(change):
    def prepare(work, tensors):
        attend = REGARD.prepare(work, tensors)
        return lambda: change(attend(), tensors)

    return Contender("spoiled", prepare)


@pytest.mark.parametrize("name", SUBJECTS)
def test_wrong_values_and_gradients_are_found(name):
    def one_number(output, tensors):
        output = output.clone()
        output[0, 1, 129, 3] += 1e-3
        return output

    assert verdict(work_of(name), spoiled(one_number)).errors["output"] > 1
    pulled = verdict(work_of(name), spoiled(lambda output, tensors: output + 1e-2 * (tensors.v - tensors.v.detach())))
    assert pulled.errors["output"] <= 1 < pulled.errors["dv"]
    assert not verdict(work_of(name), spoiled(lambda output, tensors: output * torch.nan)).right


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("causal linear", LinearTransformer()),
        ("performer", Performer(features=24, seed=1)),
        ("random features", RandomFeature(features=24, sigma=1.1)),
        ("hashed", LSH(chunk=16, buckets=8, rounds=2)),
        ("hashed", LSH(chunk=17, buckets=8, rounds=3)),
    ],
)
def test_another_mechanism_is_found_out(name, other):
    change = {"pattern": FULL} if "causal" in name else {}
    found = verdict(
        work_of(name), replace(REGARD, prepare=lambda w, t: REGARD.prepare(replace(w, mechanism=other, **change), t))
    )
    assert found.errors["output"] > 1


def test_parameters_get_their_gradients_checked():
    def pull(output, tensors):
        energy = tensors.parameters["energy"]
        return output + 1e-2 * (energy.sum() - energy.sum().detach())

    found = verdict(work_of("additive"), spoiled(pull))
    assert found.errors["output"] <= 1 < found.errors["denergy"]


def test_the_bound_leaves_room_for_what_peers_add_and_not_for_more():
    expected = torch.tensor([1.0, 2.0], dtype=torch.float64)
    bound = Bound.of(expected, expected.float())
    assert bound.share(expected * (1 + 0.9e-5)) < 1 < bound.share(expected * (1 + 1.1e-5))
    assert bound.share(expected * torch.inf) == float("inf")


def test_a_mechanism_without_formula_is_refused():
    class Other(Mechanism):
        pass

    with pytest.raises(ArgumentError, match="no formula is known for"):
        verdict(replace(work_of("additive"), mechanism=Softmax(), pattern=FULL))
    assert Other not in FORMULAS


def test_pairs_of_hashing_follow_the_definition():
    work = Work(40, heads=1, head_dim=8, mechanism=LSH(chunk=4, buckets=4, rounds=2))
    tensors = make_tensors(work)
    buckets = work.mechanism.bucket(tensors.k)[0, 0].tolist()
    expected = np.zeros((40, 40), dtype=bool)
    for bucket in buckets:
        order = sorted(range(40), key=lambda j: (bucket[j], j))
        chunk = {j: at // 4 for at, j in enumerate(order)}
        for i in range(40):
            for j in range(40):
                expected[i, j] |= bucket[i] == bucket[j] and chunk[i] - chunk[j] in (0, 1) and i != j
    expected[np.arange(40), np.arange(40)] = ~expected.any(1)
    assert (hashed_pairs(work, tensors, list(range(40)))[0, 0].numpy() == expected).all()
    assert places(np.array([2, 0, 2, 1])).tolist() == [2, 0, 3, 1]
    assert own_last(np.array([[3, 0], [0, 2]]), [0, 1]).tolist() == [[1, 0], [0, 1]]


def test_the_broadcast_form_is_right_and_refuses_what_it_does_not_compute():
    peer = PEERS["tanh of a broadcast sum"]
    assert verdict(replace(work_of("additive"), pattern=FULL), peer).right
    with pytest.raises(NotImplementedError, match="full additive attention without groups"):
        verdict(work_of("additive"), peer)


def test_softmax_beside_the_linear_transformer_is_judged_as_softmax():
    assert verdict(work_of("causal linear"), PEERS["SDPA, softmax"]).right
    unchanged = replace(PEERS["SDPA, softmax"], works_on=lambda work: work)
    assert not verdict(work_of("causal linear"), unchanged).right
