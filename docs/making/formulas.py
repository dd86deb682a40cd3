r"""The formulas of docstrings as LaTeX.

A docstring writes its formula as an indented line of plain text, so that `help()` shows it. The site shows the LaTeX
given here.
"""

from __future__ import annotations

import textwrap

# The indented text of a docstring, and its LaTeX. Several formulas become several lines.
DOCSTRINGS: dict[str, tuple[str, ...]] = {
    "softmax(cap(q kᵀ · scale) + bias, over the allowed keys and the sink) v": (
        r"\operatorname{softmax}_{\text{allowed keys, sink}}\left(\operatorname{cap}(q k^\top \cdot \text{scale})"
        r" + \text{bias}\right) v",
    ),
    "log_sum_exp = log Σ exp(lse_p),   output = Σ exp(lse_p - log_sum_exp) · output_p": (
        r"\ell = \log \sum_p \exp(\ell_p), \qquad \text{output} = \sum_p \exp(\ell_p - \ell) \, \text{output}_p",
    ),
    "paper: a_j g_j,   here: w_j = a_j g_j / Σ_i a_i g_i": (
        r"\text{paper: } a_j \, g_j, \qquad \text{here: } w_j = \frac{a_j \, g_j}{\sum_i a_i \, g_i}",
    ),
    "flops = 2 · batch · heads · (head_dim + v_dim) · pairs / seconds,   bandwidth = bytes / (seconds - latency)": (
        r"\text{flops} = \frac{2 \cdot \text{batch} \cdot \text{heads} \cdot (\text{head\_dim} + \text{v\_dim}) \cdot"
        r" \text{pairs}}{\text{seconds}}",
        r"\text{bandwidth} = \frac{\text{bytes}}{\text{seconds} - \text{latency}}",
    ),
    "S_i = S_{i-1} + φ(k_i) [v_i, 1]ᵀ,   [numerator, denominator]_i = φ(q_i) S_i": (
        r"S_i = S_{i-1} + φ(k_i) \, [v_i, 1]^\top, \qquad [\text{numerator}, \text{denominator}]_i = φ(q_i) \, S_i",
    ),
    "h(x) = argmax([x R; -x R]),   weights = softmax(q_i · k_j · scale over the allowed j),   k_j = q_j / |q_j|": (
        r"h(x) = \operatorname{argmax}\,[x R;\, -x R], \qquad k_j = \frac{q_j}{\lvert q_j \rvert}",
        r"\text{weights}_i = \operatorname{softmax}_{\text{allowed } j}(q_i \cdot k_j \cdot \text{scale})",
    ),
    "output_i = φ(q_i) Σ_j φ(k_j) v_jᵀ / φ(q_i) Σ_j φ(k_j)": (
        r"\text{output}_i = \frac{φ(q_i) \sum_j φ(k_j) \, v_j^\top}{φ(q_i) \sum_j φ(k_j)}",
    ),
    "φ(x) = exp(ω x - |x|² / 2) / sqrt(features),  of x = sqrt(scale) q and of x = sqrt(scale) k": (
        r"φ(x) = \frac{\exp(ω x - \lvert x \rvert^2 / 2)}{\sqrt{\text{features}}},"
        r" \qquad x = \sqrt{\text{scale}} \, q \text{ or } \sqrt{\text{scale}} \, k",
    ),
    "φ(x) = [sin(w_1·x), ..., sin(w_D·x), cos(w_1·x), ..., cos(w_D·x)] / sqrt(D),  w_i ~ N(0, 1 / sigma²)": (
        r"φ(x) = \frac{1}{\sqrt{D}} \, [\sin(w_1 \cdot x), \ldots, \sin(w_D \cdot x),"
        r" \cos(w_1 \cdot x), \ldots, \cos(w_D \cdot x)], \qquad w_i \sim N(0, 1 / σ^2)",
    ),
    "S_t = g_t S_(t-1) + (1 - g_t) φ(k_t) v_tᵀ,  z_t = g_t z_(t-1) + (1 - g_t) φ(k_t),  "
    "output φ(q_t) S_t / φ(q_t)z_t": (
        r"S_t = g_t S_{t-1} + (1 - g_t) \, φ(k_t) \, v_t^\top, \qquad z_t = g_t z_{t-1} + (1 - g_t) \, φ(k_t)",
        r"\text{output}_t = \frac{φ(q_t) \, S_t}{φ(q_t) \, z_t}",
    ),
    "p = S · sigmoid(v_p · tanh(W_p q)),   scores = score(q, k) - (j - p)² / (2 σ²) where |j - p| <= D,   σ = D / 2": (
        r"p = S \cdot \operatorname{sigmoid}(v_p \cdot \tanh(W_p q)), \qquad σ = D / 2",
        r"\text{scores} = \operatorname{score}(q, k) - \frac{(j - p)^2}{2 σ^2}"
        r" \quad \text{where } \lvert j - p \rvert \le D",
    ),
    "softmax(q (E k)ᵀ · scale) (F v)": (
        r"\operatorname{softmax}\left(q \, (E k)^\top \cdot \text{scale}\right) (F v)",
    ),
    "bias = -slope[head] · |k_pos - q_pos|": (
        r"\text{bias} = -\text{slope}_{\text{head}} \cdot \lvert k_{\text{pos}} - q_{\text{pos}} \rvert",
    ),
    "bias = weight[bucket(k_pos - q_pos), head]": (
        r"\text{bias} = \text{weight}_{\operatorname{bucket}(k_{\text{pos}} - q_{\text{pos}}),\, \text{head}}",
    ),
    "act(x W1 + b1) W2 + b2,   gated: (act(x G + g) · (x W1 + b1)) W2 + b2": (
        r"\operatorname{act}(x W_1 + b_1) \, W_2 + b_2",
        r"\text{gated: } \left(\operatorname{act}(x G + g) \odot (x W_1 + b_1)\right) W_2 + b_2",
    ),
    "a_i = v · tanh(W_h h_i + W_x x_t + W_h~ h~_{t-1}),   s = softmax(a) over i < t\n"
    "[h~_t; c~_t] = Σ_i s_i [h_i; c_i]\n"
    "i, f, o = σ(W [h~_t; x_t] + b),   ĉ = tanh(W [h~_t; x_t] + b),   each with rows of its own\n"
    "c_t = f ∘ c~_t + i ∘ ĉ,   h_t = o ∘ tanh(c_t)": (
        r"a_i = v \cdot \tanh(W_h h_i + W_x x_t + W_{\tilde h} \tilde h_{t-1}),"
        r" \qquad s = \operatorname{softmax}(a) \text{ over } i < t",
        r"[\tilde h_t;\, \tilde c_t] = \sum_i s_i \, [h_i;\, c_i]",
        r"i, f, o = σ(W [\tilde h_t;\, x_t] + b), \qquad \hat c = \tanh(W [\tilde h_t;\, x_t] + b)"
        r" \quad \text{each with its own rows}",
        r"c_t = f \circ \tilde c_t + i \circ \hat c, \qquad h_t = o \circ \tanh(c_t)",
    ),
    "p = softmax(logits / temperature); each filter removes ids and renormalises the others": (
        r"p = \operatorname{softmax}(\text{logits} / \text{temperature})"
        r" \quad \text{each filter removes ids and renormalises the others}",
    ),
    "weight = (weight_1 + ... + weight_count) / count": (
        r"\text{weight} = \frac{\text{weight}_1 + \ldots + \text{weight}_{\text{count}}}{\text{count}}",
    ),
    "merged[I, J] = mean over i in I of sum over j in J of weights[i, j]": (
        r"\text{merged}_{I J} = \frac{1}{\lvert I \rvert} \sum_{i \in I} \sum_{j \in J} \text{weights}_{i j}",
    ),
    "log odds = logit(of) - log(sum over instead_of of exp(logit)),   where `of` was written": (
        r"\text{log odds} = \operatorname{logit}(\text{of})"
        r" - \log \sum_{w \in \text{instead of}} \exp(\operatorname{logit}(w)) \quad \text{where “of” was written}",
    ),
    "error = |estimate - exact| / |exact|,   mass = Σ of the exact weights on the kept pairs": (
        r"\text{error} = \frac{\lvert \text{estimate} - \text{exact} \rvert}{\lvert \text{exact} \rvert},"
        r" \qquad \text{mass} = \sum_{\text{kept pairs}} \text{exact weights}",
    ),
    "s = cap(scale q·k) + bias,   w = exp(s) / (exp(sink) + Σ exp(s)) over the allowed keys,   output = Σ w factor v": (
        r"s = \operatorname{cap}(\text{scale} \; q \cdot k) + \text{bias},"
        r" \qquad w = \frac{e^s}{e^{\text{sink}} + \sum_{\text{allowed keys}} e^s},"
        r" \qquad \text{output} = \sum w \cdot \text{factor} \cdot v",
    ),
    "w = softmax(q k^T · scale) over the keys that the pattern allows": (
        r"w = \operatorname{softmax}_{\text{allowed keys}}\left(q k^\top \cdot \text{scale}\right)",
    ),
}

# Indented text of docstrings that stays text: conditions in words, and small tables.
PLAIN = (
    "i may look at j  if",
    "bfloat16  |x| / 256",
    "decode(encode(text))",
    "warm-up (step <= w)",
    "fewer   new head j",
    "output  L max|v|",
)


def as_latex(paragraph: str) -> str | None:
    """The display formulas for an indented paragraph of a docstring; None if it is not a formula.

    >>> print(as_latex("    softmax(q (E k)ᵀ · scale) (F v)"))
    <BLANKLINE>
    $$
    \\operatorname{softmax}\\left(q \\, (E k)^\\top \\cdot \\text{scale}\\right) (F v)
    $$
    <BLANKLINE>
    """
    formulas = DOCSTRINGS.get(textwrap.dedent(paragraph).strip())
    return None if formulas is None else displayed(formulas)


def displayed(formulas: tuple[str, ...]) -> str:
    """Formulas as blocks of Markdown."""
    return "".join(f"\n$$\n{formula}\n$$\n" for formula in formulas)
