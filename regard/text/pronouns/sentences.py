"""The records of the grammar: a derivation, which is every choice made, and the sentence it became."""

from dataclasses import dataclass, field
from typing import Literal

from regard.text.pronouns.adjectives import Attribute, Drawback
from regard.text.pronouns.frames import Frame
from regard.text.pronouns.german import PRONOUN_OF_GENDER, Pronoun
from regard.text.pronouns.links import Link
from regard.text.pronouns.nouns import Noun
from regard.text.pronouns.times import Time

Degree = Literal["", "too", "very", "still"]


@dataclass(frozen=True, kw_only=True)
class Derivation:
    """Every choice behind one sentence; `write` turns it into words, `dataclasses.replace` varies it.

    `link_first` puts the subordinate clause at the head, `subject_has_no` negates by "no" instead of "not",
    and `apostrophe` is the character of a contracted "not" ("didn't"), or empty for the full word.
    """

    frame: Frame
    subject: Noun
    object: Noun
    refers_to_subject: bool
    drawback: Drawback
    degree: Degree
    link: Link
    link_first: bool = False
    time: Time | None = None
    subject_attribute: Attribute | None = None
    object_attribute: Attribute | None = None
    subject_has_no: bool = False
    apostrophe: Literal["", "'", "’"] = ""

    @property
    def referent(self) -> Noun:
        """The noun that *it* means."""
        return self.subject if self.refers_to_subject else self.object

    @property
    def other(self) -> Noun:
        """The noun that *it* does not mean."""
        return self.object if self.refers_to_subject else self.subject

    @property
    def pronoun(self) -> Pronoun:
        """What *it* becomes in German, by the gender of the referent."""
        return PRONOUN_OF_GENDER[self.referent.gender]


@dataclass(frozen=True, kw_only=True)
class PronounSentence:
    """An English sentence with *it*, its German translation, and what the pronoun truly refers to.

    Args:
        source: the English sentence.
        target: its German translation.
        pronoun: the German pronoun, "es", "er" or "sie".
        referent: the English noun that *it* means, as it stands in the source.
        other: the sentence's other noun.
        it_index: position of *it* among `source.split()`; punctuation may cling to words there.
        referent_index: position of the referent among the same words.
        other_index: position of the other noun among the same words.
        target_pronoun_index: position of the pronoun among `target.split()`.
        frame: the name of the sentence frame, its plain English verb.
        derivation: the choices the sentence was written from.
    """

    source: str
    target: str
    pronoun: Pronoun
    referent: str
    other: str
    it_index: int
    referent_index: int
    other_index: int
    target_pronoun_index: int
    frame: str
    derivation: Derivation = field(repr=False)
