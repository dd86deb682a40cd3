"""German agreement, sentence by sentence: every frame with nouns of every gender, read and corrected by hand."""

from pathlib import Path

import pytest

from regard_lab.text.pronouns import (
    ATTRIBUTES,
    DRAWBACKS,
    FRAMES,
    GENDERS,
    LINKS,
    NOUN_BY_ENGLISH,
    TIMES,
    Degree,
    Derivation,
    write,
)

# Each line: the choices, the English, the German. The choices read
# subject / frame / object / link / degree and drawback [/ "no", "short" for n't, "link first", a time]
GOLDENS = [
    line.split("\t")
    for line in Path(__file__).with_name("test_pronouns_goldens.tsv").read_text(encoding="utf-8").splitlines()
]
DEGREES: dict[str, Degree] = {"": "", "too": "too", "very": "very", "still": "still"}


def derive(choices: str) -> Derivation:
    """Read the choices of a golden sentence."""
    subject, frame, object_, link, quality, *extras = choices.split(" / ")
    wanted = set(extras[0].split(", ")) if extras else set()
    times = {time.english: time for time in TIMES}
    attributes = {attribute.english: attribute for attribute in ATTRIBUTES}
    subject_attribute, _, subject_noun = subject.rpartition(" ")
    object_attribute, _, object_noun = object_.rpartition(" ")
    degree, _, drawback_word = quality.rpartition(" ")
    drawback = next(drawback for drawback in DRAWBACKS if drawback.english == drawback_word)
    return Derivation(
        frame=next(known for known in FRAMES if known.name == frame),
        subject=NOUN_BY_ENGLISH[subject_noun],
        object=NOUN_BY_ENGLISH[object_noun],
        refers_to_subject=NOUN_BY_ENGLISH[subject_noun].sense == drawback.sense,
        drawback=drawback,
        degree=DEGREES[degree],
        link=next(known for known in LINKS if known.english == link),
        link_first="link first" in wanted,
        time=next((times[word] for word in wanted if word in times), None),
        subject_attribute=attributes.get(subject_attribute),
        object_attribute=attributes.get(object_attribute),
        subject_has_no="no" in wanted,
        apostrophe="'" if "short" in wanted else "",
    )


@pytest.mark.parametrize(("choices", "source", "target"), GOLDENS, ids=[choices for choices, *_ in GOLDENS])
def test_a_golden_sentence_is_written_exactly(choices, source, target):
    sentence = write(derive(choices))
    assert (sentence.source, sentence.target) == (source, target)


def test_the_goldens_show_every_frame_with_objects_and_subjects_of_every_gender():
    shown = [derive(choices) for choices, *_ in GOLDENS]
    objects = {(derivation.frame.name, derivation.object.gender) for derivation in shown}
    subjects = {(derivation.frame.name, derivation.subject.gender) for derivation in shown}
    every = {(frame.name, gender) for frame in FRAMES for gender in GENDERS}
    assert objects == every
    assert subjects == every


def test_the_goldens_show_an_attribute_in_every_case_and_gender():
    shown = [derive(choices) for choices, *_ in GOLDENS]
    nominative = {("nominative", d.subject.gender) for d in shown if d.subject_attribute and not d.subject_has_no}
    after_no = {("no", d.subject.gender) for d in shown if d.subject_attribute and d.subject_has_no}
    oblique = {(d.frame.case, d.object.gender) for d in shown if d.object_attribute}
    cases = ("nominative", "no", "accusative", "dative")
    missing = {(case, gender) for case in cases for gender in GENDERS} - nominative - after_no - oblique
    assert not missing
