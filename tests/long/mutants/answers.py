"""Mutants that survived: the test that kills them now, or why they change nothing that is promised."""

from __future__ import annotations

UNANSWERED = "not answered yet"
LEAST = "killed now by test_the_least_number_of_an_option_is_the_least_that_python_takes"
COSTS = "killed now by test_twice_the_rows_or_heads_or_bytes_of_a_number_cost_twice_as_much"
# ruff: noqa: E501
ANSWERS: dict[str, str] = {
    "regard/patterns/tiles.py: -(-keys.stop // tile)": "equal results: a tile that is not known to be full is evaluated",
    "regard/layers/caches/entries.py: planes": "killed now by test_planes_that_no_cache_has_are_refused",
    "regard/patterns/documents.py: (ids": "killed now by test_one_document_is_found_only_where_all_queries_and_keys_are_of_one",
    "regard/patterns/documents.py: same_serial": "equal results: the comparison is symmetric",
    "regard/storage/files.py: aside.unlink": "equal results: the file is made before, when its name is taken",
    "regard/storage/tensors.py: -(len(text)": "killed now by test_tensors_begin_at_a_multiple_of_eight_bytes",
    "regard/patterns/counts.py: looks.spend()": "only the limit of time for counting changes, by one unit a residue",
    "regard/core/plan.py: problem.sink": "killed now by "
    "test_half_precision_gradients_of_a_call_with_a_sink_are_rounded_once",
    "regard/bias.py: raise ShapeError": "killed now by test_another_number_of_slopes_than_heads_is_refused",
    "regard/bias.py: (-distances)": "equal results: max(-d, 0) is -min(d, 0)",
    "regard/layers/mechanism.py: 0 -> 1": "equal results: only the last axis of the shape is read",
    "regard/layers/caches/state.py: live is not None": "equal results: both are None, or neither",
    "regard_lab/conversion/own_models.py: (output": "killed now by test_a_difference_is_relative_to_outputs_larger_than_1",
    "regard_lab/conversion/own_models.py: 11 -> 12": "equal results: the probe has one id more",
    "regard_lab/training/recipes/masked_words.py: ids != PAD": "killed now by "
    "test_a_sample_shows_the_ids_that_the_model_reads_without_padding_and_the_words_asked_for",
    "regard_lab/training/workers.py: full is tensor": "equal results on a CPU",
    "regard_lab/training/recipes/translation.py: min": "equal results: min is symmetric",
    "regard/layers/caches/state.py: 1 -> 2": "killed now by test_continuing_equals_computing_at_once, which adds 2 positions too",
    "regard/backends/composed.py: any -> all": "equal results: its row blocks have one run, or none and nothing to compute",
    "regard/backends/flash.py: rows - q.shape[2]": "killed now by "
    "test_the_backward_pass_pads_the_log_sum_exp_to_a_multiple_of_32_with_infinity",
    "regard_lab/training/recipes/translation.py: 1 -> 2": LEAST,
    "regard_lab/training/recipes/translation.py: setting(TrainingConfig.weight_decay": LEAST,
    "regard_lab/training/recipes/settings.py: 1 -> 2": LEAST,
    "regard_lab/conversion/uptraining.py: config.block or": "killed now by "
    "test_rows_of_a_language_model_have_as_many_ids_as_asked",
    "regard_lab/cli/show.py: 1 -> 2": "killed by test_the_reach_of_a_stack_is_said_and_drawn",
    "regard_lab/cli/plan.py: device ==": "killed by test_a_plan_for_a_device_does_not_depend_on_what_is_installed_here",
    "regard_lab/cli/lesson.py: as_json": "killed by test_without_a_name_the_questions_are_listed",
    "regard_lab/cli/commands.py: self.source.place": "killed by test_the_help_of_every_command_answers_without_torch",
    "regard_lab/cli/view.py: out(server.url)": "killed by test_the_page_is_served_until_it_is_interrupted",
    "regard_lab/cli/demo.py: draw_heads": "killed by test_the_demo_ends_with_one_line_of_json_and_pictures_that_exist",
    "regard_lab/decoding/generator.py: max -> min": "killed now by test_more_than_the_model_has_places_for_is_refused_before_any_work",
    "regard/mechanisms/linformer.py: 1 -> 2": "killed now by test_the_least_length_and_rank_are_1",
    "regard_lab/training/config.py: 0.0 -> 1.0": "killed now by test_what_is_not_chosen_changes_nothing",
    "regard/positions.py: base <=": "killed now by test_waves_need_a_base_above_0",
    "regard/mechanisms/scores/published.py: replace": "killed now by test_a_predicted_centre_compares_keys_that_its_score_projects_once",
    "regard/patterns/tiles.py: -keys.start": "equal results: a tile that is not known to be full is evaluated",
    "regard_lab/decoding/translator.py: perplexity": "equal results: each process scores all pairs instead of its share",
    "regard/core/call.py": "equal results: whether the plan of a decoding step is kept",
    "regard_lab/cli/plan.py: TYPE_CHECKING": "equal results: what is imported for annotations alone",
    "regard/patterns/grid.py: 1 -> 2": "equal results: how many rows are evaluated at once",
    "regard/backends/linformer.py: torch.ones": "equal results on a CPU",
    "regard/core/problem.py: 1 -> 2": "equal results: without key/value heads nothing is computed",
    "regard/backends/linear/function.py: -1 -> (1)": "equal results: the tensor had two axes; another formula is there now",
    "regard_lab/decoding/sampling.py: -1 -> (1)": "equal results: the tensor has two axes",
    "regard_lab/cli/demo.py": "a number or a line of the demo, whose test has smaller settings",
    "regard/backends/linear/backend.py": COSTS,
    "regard/core/problem.py: self.batch *": "killed now by test_the_bytes_of_a_problem_are_those_of_its_tensors_and_the_output",
    "regard/core/problem.py: of_queries + of_keys": "killed now by "
    "test_the_bytes_of_a_problem_are_those_of_its_tensors_and_the_output",
    "regard/backends/composed.py: problem.batch *": COSTS,
    "regard/backends/tiled/backend.py: 8 -> 9": COSTS,
    "regard/backends/scores/blocking.py": "killed now by test_as_many_lots_are_counted_as_there_are",
    "regard_lab/training/checkpoint.py: _remove_unneeded": "killed now by "
    "test_what_is_not_needed_is_removed_before_there_is_need_of_room",
    "regard_lab/conversion/own_models.py: 2 -> 3": "equal results: the white space of a JSON file",
    "regard/core/plan.py: share >= 0.001": "equal results: 0.1% either way",
    "regard/backends/native/steps.py: self._products": "equal results: how many threads compute them",
    "regard/backends/native/steps.py: True -> False": "equal results: both lists have one entry for each band",
    "regard_lab/models/storage.py: False -> True": "equal results: one fsync more",
    "regard_lab/decoding/generator.py: True -> False": "equal results: there are as many texts as rows",
    "regard_lab/decoding/search.py: 2 * count": "equal results: which of two ways finds the same ids",
    "regard/mechanisms/base.py: False -> True": "equal results: a method that changes nothing is called",
    "regard_lab/training/recipes/translation_samples.py": "killed now by "
    "test_samples_are_the_first_few_sentences_that_are_not_long",
    "regard/storage/tensors.py: -tensors": "killed now by "
    "test_every_tensor_begins_at_a_multiple_of_the_bytes_of_its_numbers",
    "regard/storage/tensors.py: any": "a later check refuses such a header too",
    "regard/core/hidden.py: at + 1": "a gap until the example in its docstring was written, which fails",
    "regard/core/plan.py: \", \".join": "killed now by test_what_was_not_asked_for_is_answered_with_what_was",
    "regard_lab/conversion/uptraining.py: not isinstance": "killed now by "
    "test_two_language_models_are_timed_and_others_are_not",
    "regard_lab/conversion/uptraining.py: check_out": "killed now by "
    "test_a_folder_that_holds_something_else_is_refused_before_any_work",
    "regard_lab/conversion/crossings.py: 0.1": "killed now by "
    "test_what_a_config_does_not_say_has_the_default_of_its_family",
    "regard_lab/conversion/alignment.py: closeness": "killed now by "
    "test_rounds_of_rotating_heads_end_when_nothing_comes_closer",
    "regard_lab/cli/view.py: 0 -> 1": "killed now by test_the_steps_are_those_before_the_only_pronoun",
    "regard_lab/cli/interrupts.py: threading": "killed now by test_ctrl_c_ends_the_program_only_while_nothing_is_to_be_saved",
    "regard_lab/cli/translate.py: check_picture_name": "killed now by "
    "test_the_name_of_a_picture_is_checked_before_any_work",
    "regard/mechanisms/scores/base.py: object": "killed now by "
    "test_sizes_of_numpy_are_kept_as_whole_numbers_of_python",
    "regard/mechanisms/random_features.py: 128": "killed now by "
    "test_sizes_that_are_not_given_are_those_of_the_documentation",
    "regard/positions.py: positions in": "killed now by "
    "test_positions_that_no_layer_takes_are_refused_with_their_place",
    "regard_lab/decoding/search.py: total": "killed now by test_scores_that_are_no_numbers_are_said_and_not_searched",
    "regard/layers/caches/base.py: 0 -> 1": "killed now by test_a_new_one_holds_no_memory",
    "regard/patterns/key_mask.py: name not in": "killed now by "
    "test_positions_at_a_stride_are_masked_by_every_so_many_keys",
    "regard/backends/tiled/kernels.py: 0 -> 1": "killed now by "
    "test_a_program_has_a_kernel_for_each_number_of_rows_and_heads",
    "regard/core/tensors.py: found == 2": "killed now by test_where_axes_are_too_many_none_is_proposed",
    "regard/storage/ownership.py: True -> False": "what only two writers of one file at the same moment meet",
    "regard/patterns/fixed.py: not self.serial": "killed now by "
    "test_blocks_by_a_number_are_values_and_by_a_tensor_are_not",
}  # fmt: skip


EQUAL, NOW = "equal results", ("killed now by ", "killed by ")  # by a new test, or by one that was not chosen


def is_equal(sentence: str) -> bool:
    """Whether no test can kill a survivor: what it computes is the same, or the same on every machine there is here."""
    return answer(sentence).startswith(EQUAL)


def killer(sentence: str) -> str | None:
    """The name of the test that kills a survivor.

    >>> killer("mutant 7, regard/bias.py:89: raise ShapeError(x) -> pass (survived: 1 tests passed)")
    'test_another_number_of_slopes_than_heads_is_refused'
    """
    said = answer(sentence)
    return next((said.removeprefix(start).partition(",")[0] for start in NOW if said.startswith(start)), None)


def answer(sentence: str) -> str:
    """What was done about a survivor, by the place and the beginning of the change that its sentence names.

    >>> answer("mutant 7, regard/bias.py:166: (-distances).clamp_min -> x (survived: 1 tests passed)")
    'equal results: max(-d, 0) is -min(d, 0)'
    """
    place, _, change = sentence.partition(", ")[2].partition(": ")
    text = f"{place.rpartition(':')[0]}: {change}"
    return next((said for start, said in ANSWERS.items() if text.startswith(start)), UNANSWERED)
