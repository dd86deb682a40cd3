"""torch.func differentiates and batches attention as it does PyTorch's own, or a sentence says what to write."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, linearize, vmap

import regard as rg
from regard.testing import make_qkv

SIZES = {"batch": 2, "heads": 4, "kv_heads": 2, "q_len": 5, "k_len": 7, "head_dim": 3, "v_dim": 2}
CALLS = {
    "plain": {},
    "tiled": {"pattern": "strided(2)", "backend": "tiled"},
    "streamed": {"softcap": 2.0, "backend": "streamed"},
    "sink": {"sink": torch.tensor([0.4, -1.0, 2.0, 0.0], dtype=torch.float64), "pattern": "causal"},
    "dropout": {"dropout": 0.3, "dropout_seed": 5},
    "by row": {"pattern": rg.patterns.KeySpan(0, torch.tensor([3, 7]))},
    "linear": {
        "mechanism": rg.mechanisms.LinearTransformer(),
        "pattern": "causal",
        "backend": "linear",
    },
}


def qkv() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return make_qkv(**SIZES, dtype=torch.float64)


def first_gradients(options, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    leaves = [x.detach().requires_grad_() for x in tensors]
    return torch.autograd.grad(rg.attention(*leaves, **options).square().sum(), leaves)


@pytest.mark.parametrize("name", CALLS)
def test_vmap_is_a_loop_of_outputs_and_gradients(name):
    options = CALLS[name]

    def attend(q, k, v):
        return rg.attention(q, k, v, **options)

    def loss(q, k, v):
        return attend(q, k, v).square().sum()

    stacked = [torch.stack([x, 2 * x, x - 1], 1) for x in qkv()]  # vmap's axis may stand anywhere
    outputs = vmap(attend, in_dims=1, out_dims=1)(*stacked)
    gradients = vmap(grad(loss, argnums=(0, 1, 2)), in_dims=1, out_dims=1)(*stacked)
    for member in range(3):
        tensors = [x[:, member] for x in stacked]
        torch.testing.assert_close(outputs[:, member], attend(*tensors))
        expected = first_gradients(options, *tensors)
        for gradient, expected_gradient in zip(gradients, expected, strict=True):
            torch.testing.assert_close(gradient[:, member], expected_gradient)


def formula(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention in PyTorch's operations, in the dtype of q; q_len and k_len are equal, and so are the heads."""
    masked = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).triu(1)
    scores = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).masked_fill(masked, -torch.inf)
    return torch.softmax(scores, -1) @ v


def regards(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return rg.attention(q, k, v, pattern="causal")


Q, K, V = make_qkv(
    batch=1, heads=2, kv_heads=2, q_len=3, k_len=3, head_dim=5, v_dim=5, dtype=torch.float64
)
MANY = torch.stack([Q, K, V - 1])


def loss_of(attend):
    return lambda q: attend(q, K, V).square().sum()


def dual(function, x):
    """The tangent of a function of x, by the contexts that torch.func's transforms are made of."""
    with forward_ad.dual_level():
        output = function(forward_ad.make_dual(x, torch.ones_like(x)))
        return forward_ad.unpack_dual(output).tangent


def third_derivatives(attend):
    def loss(x):
        return attend(Q + x, K, V).square().sum()

    return jacfwd(jacrev(jacrev(loss)))(Q[..., :1, :1])


MIXED = {
    "hessian": lambda f: hessian(loss_of(f))(Q),
    "jvp of grad": lambda f: jvp(grad(loss_of(f)), (Q,), (V,))[1],
    "jvp of grad of the values": lambda f: jvp(
        grad(lambda v: f(Q, K, v).square().sum()), (V,), (K,)
    )[1],
    "grad of jvp": lambda f: grad(lambda q: jvp(loss_of(f), (q,), (V,))[1])(Q),
    "vmap of jvp": lambda f: vmap(lambda q: jvp(loss_of(f), (q,), (V,))[1])(MANY),
    "jvp of vmap": lambda f: jvp(vmap(lambda q: f(q, K, V)), (MANY,), (MANY.flip(0),))[1],
    "vmap of hessian": lambda f: vmap(hessian(loss_of(f)))(MANY),
    "linearize": lambda f: linearize(lambda q: f(q, K, V), Q)[1](V),
    "third derivatives": third_derivatives,
    "a dual level around grad": lambda f: dual(grad(loss_of(f)), Q),
}


# The warning is torch's own, of linearize.
@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node")
@pytest.mark.parametrize("name", MIXED)
def test_forward_mode_derivatives_mix_with_every_transform(name):
    torch.testing.assert_close(MIXED[name](regards), MIXED[name](formula), atol=1e-13, rtol=1e-13)


@pytest.mark.parametrize(
    "transform",
    [lambda f: jvp(f, (W,), (W.flip(0),))[1], lambda f: hessian(f)(W)],
    ids=["jvp", "hessian"],
)
def test_a_bias_that_computes_its_numbers_may_hide_a_tangent(transform):
    class ByDistance(rg.bias.Bias):
        learns = True

        def __init__(self, weights):
            self.weights = weights

        def by_distance(self, distances, heads):
            return self.weights[distances + 2].expand(heads, -1)

    def loss(weights):
        return rg.attention(Q, K, V, bias=ByDistance(weights)).square().sum()

    def expected_loss(weights):
        positions = torch.arange(3)
        bias = weights[positions - positions[:, None] + 2]
        attention = torch.softmax(Q @ K.mT / 5**0.5 + bias, -1)
        return (attention @ V).square().sum()

    torch.testing.assert_close(transform(loss), transform(expected_loss))


W = torch.tensor([0.3, -1.1, 0.7, 2.0, 0.1], dtype=torch.float64)


def test_a_tangent_keeps_nan_within_the_queries_that_may_look_at_it():
    k = K.clone()
    k[:, :, 2] = torch.nan  # only the last query may look at it
    output_and_tangent = jvp(lambda q: regards(q, k, V), (Q,), (V,))
    expected_ones = jvp(lambda q: formula(q, K, V), (Q,), (V,))
    for x, expected in zip(output_and_tangent, expected_ones, strict=True):
        torch.testing.assert_close(x[:, :, :2], expected[:, :, :2])
        assert x[:, :, 2].isnan().all()


def test_per_sample_gradients_of_a_layer_are_those_of_each_sample():
    layer = rg.MultiHeadAttention(
        dim=8, heads=4, kv_heads=2, pattern="causal", positions=rg.positions.Rotary()
    ).double()
    parameters = {name: x.detach() for name, x in layer.named_parameters()}
    x = torch.randn(6, 5, 8, dtype=torch.float64)

    def loss(parameters, sample):
        return functional_call(layer, parameters, (sample[None],)).square().sum()

    gradients = vmap(grad(loss), in_dims=(None, 0))(parameters, x)
    for number, sample in enumerate(x):
        loss_of_sample = layer(sample[None]).square().sum()
        of_sample = torch.autograd.grad(loss_of_sample, tuple(layer.parameters()))
        for name, expected in zip(parameters, of_sample, strict=True):
            torch.testing.assert_close(gradients[name][number], expected)


def test_statistics_come_out_of_vmap_too():
    q, k, v = qkv()
    stacked = torch.stack([q, -q])
    want = ["entropy", "received", "log_sum_exp", rg.top_keys(2)]

    def statistics(q):
        detail = rg.attention_detail(q, k, v, pattern="causal", want=want)
        top = detail.top_keys
        by_key = detail.received, top.weights, top.indices
        return detail.output, detail.entropy, detail.log_sum_exp, *by_key

    of_vmap = vmap(statistics)(stacked)
    for member, q_of_member in enumerate(stacked):
        for statistic, expected in zip(of_vmap, statistics(q_of_member), strict=True):
            torch.testing.assert_close(statistic[member], expected)


def test_what_torch_func_does_not_pass_on_is_refused_in_words():
    q, k, v = qkv()
    stacked = torch.stack([q, q])
    with pytest.raises(rg.UnsupportedError, match="dropout_seed"):
        vmap(lambda q: rg.attention(q, k, v, dropout=0.5))(stacked)
    ids = torch.zeros(2, 1, 7, dtype=torch.int64)
    with pytest.raises(rg.RegardError, match="torch"):
        vmap(lambda q, ids: rg.attention(q, q, q, pattern=rg.patterns.SameDocument(ids)))(
            stacked[..., :7, :], ids
        )
