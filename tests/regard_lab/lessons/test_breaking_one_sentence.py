"""Claims of the first lesson fail when what they are about is broken."""

from teaching import failing, starting


def test_one_sentence():
    numbers = (
        "The scores of the second word",
        "The weights of the second word",
        "The context vector of the second word",
    )
    assert starting(failing("one_sentence", ("sorted(words).index(word)", "words.index(word)")), "The ids of", *numbers)
    unscaled = failing("one_sentence", ("(omega / math.sqrt(24)).softmax(-1)", "omega.softmax(-1)"))
    assert starting(unscaled, "The weights of the second", "The context vector of")
    other = failing("one_sentence", ("rg.attention(q", "rg.attention(2 * q"))
    assert starting(other, "One call of rg.attention", "With words as columns")
