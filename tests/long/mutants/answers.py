"""Mutants that survived: the test that kills them now, or why they change nothing that is promised."""

from __future__ import annotations

UNANSWERED = "not answered yet"
LEAST = "killed now by test_the_least_number_of_an_option_is_the_least_that_python_takes"
# ruff: noqa: E501
ANSWERS: dict[str, str] = {
    "regard/patterns/tiles.py: -(-keys.stop // tile)": "equal results: a tile that is not known to be full is evaluated",
    "regard/layers/caches/entries.py: planes": "killed now by test_planes_that_no_cache_has_are_refused",
    "regard/patterns/documents.py: (ids": "killed now by test_one_document_is_found_only_where_all_queries_and_keys_are_of_one",
    "regard/patterns/documents.py: same_serial": "equal results: the comparison is symmetric",
    "regard/storage/files.py: aside.unlink": "equal results: the file is made before, when its name is taken",
    "regard/storage/tensors.py: -(len(text)": "killed now by test_tensors_begin_at_a_multiple_of_eight_bytes",
    "regard/patterns/counts.py: budget.spend()": "only the limit of time for counting changes, by one unit a residue",
    "regard/backends/linear/backend.py": "a cost estimate; it decides which backend is chosen, not what it returns",
    "regard/backends/native/steps.py: self._products": "a cost estimate",
    "regard/core/problem.py: self.batch *": "a cost estimate: bytes",
    "regard/backends/fused.py: problem.batch *": "a cost estimate",
    "regard/backends/scores/blocking.py": "the number of heads in a block: memory, not results",
    "regard/backends/tiled/backend.py: 8 -> 9": "a threshold of cost",
    "regard/core/plan.py: share >= 0.001": "how a share of exactly 0.001 is printed",
    "regard/core/plan.py: problem.sink": "the precision of half-precision gradients with a sink; a gap, no test measures it",
    "regard/bias.py: raise ShapeError": "killed now by test_another_number_of_slopes_than_heads_is_refused",
    "regard/bias.py: (-distances)": "equal results: max(-d, 0) is -min(d, 0)",
    "regard/layers/mechanism.py: 0 -> 1": "equal results: only the last axis of the shape is read",
    "regard/layers/caches/state.py: live is not None": "equal results: both are None, or neither",
    "regard/conversion/own_models.py: (output": "killed now by test_a_difference_is_relative_to_outputs_larger_than_1",
    "regard/conversion/own_models.py: 11 -> 12": "equal results: the probe has one id more",
    "regard/conversion/own_models.py: 2 -> 3": "the indentation of a JSON file",
    "regard/training/recipes/masked_words.py: ids != PAD": "killed now by "
    "test_a_sample_shows_the_ids_that_the_model_reads_without_padding_and_the_words_asked_for",
    "regard/training/workers.py: full is tensor": "equal results on a CPU",
    "regard/training/recipes/translation.py: min": "equal results: min is symmetric",
    "regard/layers/caches/state.py: 1 -> 2": "killed now by test_continuing_equals_computing_at_once, which adds 2 positions too",
    "regard/backends/fused.py: any -> all": "equal results: its row blocks have one run, or none and nothing to compute",
    "regard/backends/flash.py: rows - q.shape[2]": "killed now by "
    "test_the_backward_pass_pads_the_log_sum_exp_to_a_multiple_of_32_with_infinity",
    "regard/training/recipes/translation.py: 1 -> 2": LEAST,
    "regard/training/recipes/translation.py: setting(TrainingConfig.weight_decay": LEAST,
    "regard/training/recipes/settings.py: 1 -> 2": LEAST,
    "regard/conversion/uptraining.py: config.block or": "killed now by "
    "test_rows_of_a_language_model_have_as_many_ids_as_asked",
    "regard/training/checkpoint.py: _remove_unneeded": "old folders are removed after the save too; before it only room is made",
    "regard/cli/show.py: 1 -> 2": "killed by test_the_reach_of_a_stack_is_said_and_drawn",
    "regard/cli/plan.py: device ==": "killed by test_a_plan_for_a_device_does_not_depend_on_what_is_installed_here",
    "regard/cli/lesson.py: as_json": "killed by test_without_a_name_the_questions_are_listed",
    "regard/cli/commands.py: self.source.place": "killed by test_the_help_of_every_command_answers_without_torch",
    "regard/cli/view.py: out(server.url)": "killed by test_the_page_is_served_until_it_is_interrupted",
    "regard/cli/demo.py: draw_heads": "killed by test_the_demo_ends_with_one_line_of_json_and_pictures_that_exist",
    "regard/decoding/generator.py: max -> min": "killed now by test_more_than_the_model_has_places_for_is_refused_before_any_work",
    "regard/mechanisms/linformer.py: 1 -> 2": "killed now by test_the_least_length_and_rank_are_1",
    "regard/training/config.py: 0.0 -> 1.0": "killed now by test_what_is_not_chosen_changes_nothing",
    "regard/positions.py: base <=": "killed now by test_waves_need_a_base_above_0",
    "regard/mechanisms/scores/published.py: replace": "killed now by test_a_predicted_centre_compares_keys_that_its_score_projects_once",
    "regard/core/hidden.py: at + 1": "a gap until the example in its docstring was written, which fails",
    "regard/patterns/tiles.py: -keys.start": "equal results: a tile that is not known to be full is evaluated",
    "regard/decoding/translator.py: perplexity": "equal results: each process scores all pairs instead of its share",
    "regard/core/call.py": "equal results: whether the plan of a decoding step is kept",
    "regard/cli/plan.py: TYPE_CHECKING": "equal results: what is imported for annotations alone",
    "regard/patterns/grid.py: 1 -> 2": "equal results: how many rows are evaluated at once",
    "regard/backends/linformer.py: torch.ones": "equal results on a CPU",
    "regard/core/problem.py: 1 -> 2": "equal results: without key/value heads nothing is computed",
    "regard/backends/linear/function.py: -1 -> (1)": "equal results: the tensor has two axes",
    "regard/decoding/sampling.py: -1 -> (1)": "equal results: the tensor has two axes",
    "regard/cli/demo.py": "a number or a line of the demo, whose test has smaller settings",
    "regard/cli/commands.py: 2 -> 3": "how a number above 2**53 is quoted in an error",
    "regard/training/recipes/translation_samples.py": "the longest sentence that is a sample, by one character",
    "regard/training/recipes/choosing.py: 1_000": "a threshold between two sizes, by one",
    "regard/storage/tensors.py: -tensors": "the order of the tensors in a file",
    "regard/core/plan.py: \", \".join": "the words of a report",
    "regard/conversion/calibration.py: raise": "a gap: a folder without a tokeniser has no test",
    "regard/conversion/uptraining.py: not isinstance": "a gap: whether the report has speeds of two language models has no test",
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
