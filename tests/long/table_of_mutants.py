"""The table of `named_mutants`: a file, what stands there exactly once, what stands there in the mutant, and the tests
that must fail. Files are below `regard` or `regard_lab`, tests below the folder of that name in `tests`.
"""

LAWS = "patterns/test_pattern_laws.py::test_"
SINES = "test_positions.py::test_sinusoidal_is_its_formula_far_out_whatever_the_dtype_of_the_module"
LIBRARY = (
    (
        "patterns/bands.py",
        "return k_pos <= q_pos",
        "return k_pos < q_pos",
        f"{LAWS}segments_are_sound",
    ),
    (
        "patterns/bands.py",
        "(q_pos - k_pos < self.size)",
        "(q_pos - k_pos <= self.size)",
        "patterns/test_pattern_leaves.py::test_a_pattern_is_its_formula",
    ),
    (
        "patterns/algebra.py",
        "return ~truth_of(self.part, q_pos, k_pos)",
        "return truth_of(self.part, q_pos, k_pos)",
        f"{LAWS}the_algebra_is_that_of_booleans",
    ),
    (
        "positions.py",
        "torch.stack([angles.sin(), angles.cos()], -1)",
        "torch.stack([angles.cos(), angles.sin()], -1)",
        SINES,
    ),
    ("positions.py", "dim, 2, dtype=torch.float64", "dim, 2, dtype=torch.float32", SINES),
)

SAMPLING = "decoding/test_sampling.py::test_"
SEARCH = "decoding/test_search.py::test_"
SPECULATING = "decoding/test_speculating.py::test_"
STREAMS = "decoding/test_generator.py::test_"
RATES = "training/test_training_config.py::test_"
ENGINE = "training/test_engine.py::test_"
BATCHES = "text/test_batches.py::test_"
SEEN = "text/test_seen_words.py::test_"
ENCODERS = "models/test_text_encoder.py::test_"
HEADS = "conversion/test_own_models.py::test_"
ALIGNMENT = "conversion/test_alignment.py::test_"
LAB = (
    # decoding
    (
        "decoding/sampling.py",
        "scores < least, -torch.inf",
        "scores <= least, -torch.inf",
        f"{SAMPLING}a_filter_met_exactly_keeps_what_its_definition_keeps",
    ),
    (
        "decoding/sampling.py",
        "more_likely < top_p)",
        "more_likely <= top_p)",
        f"{SAMPLING}a_filter_met_exactly_keeps_what_its_definition_keeps",
    ),
    (
        "decoding/sampling.py",
        "(high * 2**21 + low)",
        "(high * 2**21)",
        f"{SAMPLING}the_draws_are_frozen",
    ),
    (
        "decoding/sampling.py",
        "draw(seed, rows, 2 * place + 1,",
        "draw(seed, rows, 2 * place + 2,",
        f"{SAMPLING}no_bits_of_one_place_are_bits_of_another",
    ),
    (
        "decoding/sampling.py",
        "drawn, right=True)",
        "drawn, right=False)",
        f"{SAMPLING}what_has_no_probability_is_never_drawn_even_at_the_edges",
    ),
    (
        "decoding/beams.py",
        "if rank < beam:",
        "if rank <= beam:",
        f"{SEARCH}a_beam_is_its_definition_and_stops_no_search_too_early",
    ),
    (
        "decoding/beams.py",
        "bound = max(options.score(most_likely, 1)",
        "bound = min(options.score(most_likely, 1)",
        f"{SEARCH}a_beam_is_its_definition_and_stops_no_search_too_early",
    ),
    (
        "decoding/beams.py",
        "if len(self.ended) < options.count:",
        "if len(self.ended) <= options.count:",
        f"{SEARCH}a_search_ends_with_the_step_after_which_no_text_can_become_better",
    ),
    (
        "decoding/options.py",
        "2 * length + 16",
        "2 * length + 15",
        f"{SEARCH}the_limit_is_twice_a_rows_own_source_and_16_more",
    ),
    (
        "decoding/constraints.py",
        "before = self.no_repeat - 1",
        "before = self.no_repeat",
        f"{SEARCH}the_best_texts_under_constraints_are_those_of_an_exhaustive_search",
    ),
    (
        "decoding/constraints.py",
        "len(ids) < self.min_length",
        "len(ids) <= self.min_length",
        f"{SEARCH}the_best_texts_under_constraints_are_those_of_an_exhaustive_search",
    ),
    (
        "decoding/speculating.py",
        "range(len(ids) - length - 1, -1, -1)",
        "range(len(ids) - length - 1, 0, -1)",
        f"{SPECULATING}lookup_takes_the_longest_match_and_the_latest_place",
    ),
    (
        "decoding/speculating.py",
        "(shared == len(read) or state.goes_back)",
        "(shared == len(read) and state.goes_back)",
        f"{SPECULATING}a_draft_reads_on_where_the_text_went_another_way",
    ),
    (
        "decoding/streaming.py",
        "longest = min(len(stop) - 1, len(text))",
        "longest = min(len(stop) - 2, len(text))",
        f"{STREAMS}a_text_ends_before_the_stop_that_is_complete_first_however_it_is_cut",
    ),
    (
        "decoding/streaming.py",
        "(begin + len(stop), begin) < first",
        "(begin, begin + len(stop)) < first",
        f"{STREAMS}a_text_ends_before_the_stop_that_is_complete_first_however_it_is_cut",
    ),
    (
        "decoding/compiled.py",
        "LARGEST_WIDTH = 2**20",
        "LARGEST_WIDTH = 2**11",
        "cli/test_using.py::test_the_graph_of_a_step_multiplies_one_row_by_sums",
    ),
    # training
    (
        "training/config.py",
        "return math.sqrt(max(warmup, 1) / step)",
        "return max(warmup, 1) / step",
        f"{RATES}the_default_is_the_formula_of_the_transformer_paper",
    ),
    (
        "training/config.py",
        "done = (step - warmup) / max(last - warmup, 1)",
        "done = step / max(last, 1)",
        f"{RATES}the_cosine_is_at_half_its_peak_half_way_and_at_zero_at_the_end",
    ),
    (
        "training/config.py",
        "(config.cooldown * last))",
        "config.cooldown)",
        f"{RATES}a_cooldown_is_a_line_to_zero_over_the_last_steps",
    ),
    (
        "training/engine.py",
        "gradient.mul_(self._workers.count / tokens)",
        "gradient.mul_(1 / tokens)",
        f"{ENGINE}two_processes_with_a_share_each_step_to_the_weights_of_one_with_the_whole",
    ),
    (
        "training/engine.py",
        '{"params": vectors, "weight_decay": 0.0}',
        '{"params": vectors, "weight_decay": config.weight_decay}',
        f"{ENGINE}only_matrices_decay",
    ),
    (
        "training/engine.py",
        "rate = learning_rate_at(self._config, index + 1, last)",
        "rate = learning_rate_at(self._config, index + 2, last)",
        f"{ENGINE}a_step_has_the_learning_rate_of_its_number_counted_from_1",
    ),
    (
        "training/engine.py",
        'group["lr"] = rate',
        "pass",
        f"{ENGINE}a_step_has_the_learning_rate_of_its_number_counted_from_1",
    ),
    (
        "training/engine.py",
        "if not (math.isfinite(norm) and math.isfinite(loss)):",
        "if not math.isfinite(loss):",
        f"{ENGINE}a_fault_tells_gradients_from_losses_and_names_the_first_tensor",
    ),
    # text
    (
        "text/batches.py",
        "if sentences * longest[bucket] > budget:",
        "if sentences * longest[bucket] >= budget:",
        f"{BATCHES}the_draw_is_the_one_of_every_other_machine",
    ),
    (
        "text/batches.py",
        "middle = (cuts[fullest] + cuts[fullest + 1] + 1) // 2",
        "middle = cuts[fullest]",
        f"{BATCHES}only_one_step_shares_out_empty_batches_and_only_among_single_sentences",
    ),
    (
        "text/batches.py",
        'f"{self.seed}/{epoch}"',
        'f"{self.seed}"',
        f"{BATCHES}epochs_and_seeds_differ_and_batches_do_not_come_in_the_order_of_length",
    ),
    (
        "text/batches.py",
        'padding + ids if side == "left" else ids + padding',
        'padding + ids if side == "right" else ids + padding',
        f"{BATCHES}pad_fills_on_the_side_asked_for",
    ),
    (
        "text/seen_words.py",
        "if part and is_unspaced and not is_mark:",
        "if part and is_unspaced:",
        f"{SEEN}a_mark_stays_with_its_letter_in_a_script_without_spaces",
    ),
    (
        "text/seen_words.py",
        "key=lambda word: (-counts[word], word)",
        "key=lambda word: (counts[word], word)",
        f"{SEEN}only_the_most_frequent_words_are_stored_the_rest_is_counted_and_all_is_read_back_from_json",
    ),
    (
        "text/scores.py",
        "exact_match=matches / len(outputs)",
        "exact_match=matches / len({*outputs})",
        "text/test_scores.py::test_perfect_is_a_hundred_nothing_is_zero_and_a_match_overlooks_typography_and_white_space_only",
    ),
    # models
    (
        "models/layers.py",
        "return x if norm_first else norm(x)",
        "return x",
        "models/test_translation_transformer.py::test_post_norm_is_the_papers_order",
    ),
    (
        "models/encoder.py",
        "without_padding = x.masked_fill(~is_text[:, :, None], 0.0)",
        "without_padding = x",
        f"{ENCODERS}a_text_alone_is_a_text_in_a_batch_padded_on_either_side",
    ),
    (
        "models/encoder.py",
        "pooled = x[:, 0]  # (batch, dim)",
        "pooled = x[:, -1]",
        f"{ENCODERS}pooling_takes_the_mean_or_the_first_place_of_the_text",
    ),
    (
        "models/encoder.py",
        "self.norm(F.gelu(self.dense(x)))",
        "F.gelu(self.norm(self.dense(x)))",
        f"{ENCODERS}the_head_of_words_is_its_formula",
    ),
    # conversion
    (
        "conversion/heads.py",
        "heads.repeat_interleave(after // before, 0).flatten(0, 1)",
        "heads.repeat(after // before, *[1] * (heads.dim() - 1)).flatten(0, 1)",
        f"{HEADS}each_new_head_is_what_its_query_heads_read_before {HEADS}more_heads_change_nothing",
    ),
    (
        "conversion/heads.py",
        "groups = heads.unflatten(0, (after, -1)).double()",
        "groups = heads.unflatten(0, (after, -1))",
        f"{HEADS}a_mean_is_rounded_once",
    ),
    (
        "conversion/alignment.py",
        "return learned[self._readers(members)] @ keys_read.mT",
        "return learned[self._readers(members)] @ keys_read",
        f"{ALIGNMENT}keys_of_another_size_than_their_queries_are_rotated_with_the_matrix_between",
    ),
    (
        "conversion/alignment.py",
        "members = grouped(match, members)",
        "pass",
        f"{ALIGNMENT}copies_in_other_bases_are_merged_without_loss",
    ),
    # seeing
    (
        "seeing/looks.py",
        "best_right > best_wrong)",
        "best_right >= best_wrong)",
        "seeing/test_relations.py::test_a_right_key_with_the_weight_of_a_wrong_one_is_no_hit",
    ),
    (
        "seeing/looks.py",
        "stop = query if causal else length",
        "stop = length",
        "seeing/test_relations.py::test_keys_on_both_sides_are_for_maps_that_are_not_causal",
    ),
    (
        "seeing/maps.py",
        "range(ids.start + 1, ids.stop + 1)",
        "range(ids.start, ids.stop)",
        "seeing/test_maps.py::test_merging_sums_over_what_is_read_and_averages_over_what_reads",
    ),
    (
        "seeing/lenses/erasing.py",
        "odds.append(run(model, batch.rows(rows), changed))",
        "odds.append(run(model, batch.rows(rows)))",
        "seeing/test_lens_erasing_and_attention.py::test_the_score_of_an_erased_word_is_the_fall_without_it",
    ),
    (
        "seeing/heads/effects.py",
        "key=lambda head: -self.effects[head].effect",
        "key=lambda head: self.effects[head].effect",
        "seeing/test_heads.py::test_planted_heads_are_found_before_any_other",
    ),
    # walkthrough
    (
        "walkthrough/layer.py",
        "torch.cat({swapped}, -1) * {angles}.sin()",
        "torch.cat({swapped}, -1) * {angles}.cos()",
        "walkthrough/test_walk_lines.py::test_rotary_positions_turn_complex_numbers",
    ),
    (
        "walkthrough/stacks.py",
        "/ ({spread} + {norm.eps!r}).sqrt()",
        "/ {spread}.sqrt()",
        "walkthrough/test_walk_whole.py::test_lines_give_every_step_and_every_layer_is_compared_with_the_model",
    ),
    (
        "walkthrough/inputs.py",
        "10000 ** (-torch.arange(0, {dim}, 2).double() / {dim})",
        "10000 ** (-torch.arange(0, {dim}, 2).double() / {dim - 1})",
        "walkthrough/test_walk_lines.py::test_waves_are_those_of_the_paper",
    ),
    # cli
    (
        "cli/running.py",
        "words < FAR * self.longest",
        "words > FAR * self.longest",
        "cli/test_using.py::test_a_sentence_far_longer_than_those_of_the_test_is_remarked_before_it_is_translated",
    ),
    (
        "cli/running.py",
        "state.without_improvement >= patience",
        "state.without_improvement > patience",
        "cli/test_using.py::test_a_training_has_ended_when_its_patience_or_its_minutes_are_used_up",
    ),
    (
        "cli/running.py",
        "if block is None or ids <= block:",
        "if block is None or ids < block:",
        "cli/test_using.py::test_a_text_beyond_the_trained_length_is_remarked_once",
    ),
    (
        "cli/interrupts.py",
        "signal.signal(signal.SIGINT, signal.default_int_handler)",
        "pass",
        "cli/test_interrupts.py::test_ctrl_c_ends_the_program_only_while_nothing_is_to_be_saved_and_only_in_the_main_thread",
    ),
)
