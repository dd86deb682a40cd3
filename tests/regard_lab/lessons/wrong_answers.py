"""Three wrong answers of each exercise, by lesson and name, as a reader might type them."""

WRONG_ANSWERS = {
    "one_sentence": {
        "numbers_of_a_context": ("24", "16", "6"),
        "weights_of_life": (
            "(k @ q[1] / math.sqrt(24)).softmax(-1)",  # the second word
            "(k @ q[0]).softmax(-1)",  # not scaled
            "(q @ k[0] / math.sqrt(24)).softmax(-1)",  # queries and keys exchanged
        ),
    },
    "recurrent": {
        "layers_of_convolutions": ("64", "31", "21"),
        "layers_of_dilated_convolutions": ("3", "5", "21"),
    },
    "fixed_vector": {
        "directions_through_a_vector": ("96", "12", "1"),
        "reads_as_many_bytes": ("attention", "both", "none"),
    },
    "alignment": {
        "steps_that_change": ("4 5", "4 4", "5 5"),
        "weights_of_luong": (
            "(h[0] @ W @ s.T)[:, 0].softmax(-1)",  # W transposed
            "(s @ W @ h[0].T)[0]",  # scores
            "torch.tanh(s @ W + h[0]).sum(-1).softmax(-1)",  # additive
        ),
    },
    "scale": {
        "spread_of_1024": ("1024", "1", "16"),
        "entropy_of_equal_weights": ("3.585", "1", "12"),  # the first is in bits
        "scaled_queries": ("q", "q / q.shape[-1]", "k / math.sqrt(q.shape[-1])"),
    },
    "positions": {
        "wave_of_pair_16": ("6.28", "62.8", "100"),
        "three_words_ahead": (
            "shift_matrix(pe, 1)",
            "shift_matrix(pe, -3)",
            "shift_matrix(pe, 3).mT",
        ),
    },
    "causal": {
        "moved_positions": ("0 1 2", "2", "3 4 5"),
        "causal_mask": (
            "torch.ones(n, n, dtype=torch.bool).triu()",  # later words
            "torch.ones(n, n, dtype=torch.bool)",  # all words
            "torch.ones(n, n, dtype=torch.bool).tril(-1)",  # not the word itself
        ),
        "kept_pairs": ("10000", "5000", "4950"),
    },
    "cross": {
        "shape_of_the_weights": ("7 30", "30 30", "11 7"),
        "weights_of_the_key_projection": ("1024", "2304", "768"),
    },
    "one_head": {
        "mean_of_three": ("4", "12", "8"),
        "facts_of_eight_heads": ("32", "8", "4"),
    },
    "subwords": {
        "one_piece": ("straße", "xylophon", "tier"),
        "count_of_a_pair": ("2", "3", "8"),
    },
    "encoder": {
        "moved_by_feed_forward": ("0 1 2 3 4", "none", "5"),
        "layer_of_the_paper": (
            "block(x)",  # the norm first
            "y = block.attention_norm(block.attention(x))\n"
            "block.feed_forward_norm(block.feed_forward(y))",  # no residual connections
            "x + block.attention(x)",  # half of it
        ),
    },
    "decoder": {
        "positions_without_a_cache": ("20", "400", "190"),
        "probability_of_the_sentence": (
            "logits.softmax(-1)[range(n), wanted].sum()",
            "logits[range(n), wanted].prod()",
            "logits.softmax(-1).amax(-1).prod()",  # of the most probable words
        ),
    },
    "norms": {
        "size_after_12_layers": ("7", "12", "6"),
        "unchanged_by_a_part_of_zeros": ("post-norm", "both", "neither"),
        "rates_of_warm_up": (
            "RATE * torch.arange(1, STEPS + 1) / WARM_UP",  # rises without end
            "RATE * (torch.arange(STEPS) / WARM_UP).clamp(max=1)",  # begins with 0
            "torch.full((STEPS,), RATE)",  # no warm-up
        ),
    },
    "translation": {
        "runs_of_both_stacks": ("10 10", "1 1", "10 1"),
        "moved_by_a_source_word": ("queries", "keys", "nothing"),
    },
    "heads": {
        "heads_beyond_the_offset": ("1", "8", "16"),
        "random_choice_of_twelve": ("1/13", "0.5", "1"),
    },
    "referent": {
        "right_by_the_rule": ("0", "1", "3"),
        "pronoun_of_the_dog": ("es", "sie", "it"),
    },
    "generation": {
        "projected_words": ("17", "12", "126"),
        "bytes_of_a_word": ("65536", "4096", "32768"),
    },
    "sampling": {
        "ratio_at_a_quarter": ("1.6", "6.4", "1.12"),
        "words_of_top_p_85": ("3", "5", "7"),
        "two_words": (
            "logits.softmax(-1)",
            "logits.masked_fill(logits < logits.topk(3).values[-1], -torch.inf).softmax(-1)",
            "logits.masked_fill(logits < logits.topk(2).values[-1], 0).softmax(-1)",
        ),
    },
    "grouped": {
        "readers_of_head_1": ("1 3 5 7", "1", "0 1 2 3"),
        "means_of_groups": (
            "projections.view(4, 2, 32, 256).mean(0)",  # heads that are four apart
            "projections[::4]",  # the first of each group
            "projections.view(2, 4, 32, 256).sum(1)",
        ),
    },
    "latent": {
        "times_as_many_numbers": ("4", "8", "2.25"),
        "numbers_of_16_heads": ("288", "128", "1024"),
    },
    "windows": {
        "layers_for_22_words": ("6", "21", "5"),
        "words_of_a_dilated_window": ("8 9 10", "3 6 9 12 15", "6 9"),
    },
    "sparse": {
        "pairs_of_a_window": ("9000", "8000", "1000000"),
        "strided_mask": (
            "i = torch.arange(16)[:, None]\nj = torch.arange(16)\n(j <= i) & (i - j < 4)",
            "i = torch.arange(16)[:, None]\nj = torch.arange(16)\n(j <= i) & ((i - j) % 4 == 0)",
            "i = torch.arange(16)[:, None]\nj = torch.arange(16)\n((i - j).abs() < 4) | ((i - j) % 4 == 0)",
        ),
    },
    "choosing": {
        "farthest_move": ("0.1", "0.9", "1.8"),
        "four_keys": (
            "weights.topk(4, largest=False).indices",
            "torch.arange(4).expand(1, 1, 32, 4)",
            "weights.topk(3).indices",
        ),
    },
    "linear": {
        "length_of_equal_cost": ("128", "4096", "0"),
        "linear_attention": (
            "rg.attention(q, k, v)",  # softmax
            "phi(q) @ (phi(k).mT @ v)",  # not divided
            "phi(q) @ (phi(k).mT @ v) / q.shape[2]",
        ),
    },
    "overwriting": {
        "after_three_facts": ("0.7", "0.49", "0.24"),
        "told_twice": ("1", "0.5", "0.25"),
    },
    "approximations": {
        "features_for_a_quarter": ("64", "32", "1024"),
        "exact_in_one_chunk": ("performer", "linear transformer", "linformer"),
    },
    "complexity": {
        "growth_of_strided": ("4", "16", "2"),
        "layers_of_windows": ("4", "16", "7"),
    },
    "relations": {
        "right_by_chance": ("0", "1", "72"),
        "two_places_back": ("places", "places[word_before]", "places.roll(-2, 0)"),
    },
    "answer_head": {
        "origins_inside_of_32": (
            "(distances.abs() <= 32).double().mean()",
            "(distances.abs() > 16).double().mean()",
            "(distances.abs() <= 16).sum()",
        ),
        "heads_above_one_half": (
            "(torch.tensor(figures['shares']) < 0.5).sum()",
            "torch.tensor(figures['shares']).sum()",
            "1",
        ),
    },
    "transfer": {
        "copied_numbers": ("2000", "64", "4875"),
        "labels_beyond_the_table": ("20", "100", "500"),
    },
    "caption": {
        "shape_of_the_weights": ("8 36", "144 8", "36 36"),
        "without_words": ("1", "0.5", "-1"),
    },
    "imprecise": {
        "influencing_position_3": ("3 4 5", "3", "0 1 2"),
        "factor_of_waves": ("2", "1.1", "48"),
    },
}
