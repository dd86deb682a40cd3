"""Words that describe: drawbacks, which tell by their sense what is meant, and attributes, which fit anything.

Every drawback belongs to one class of nouns; `also` lists the other classes it could sensibly be said of,
beside which it is never used, so that of the two nouns of a sentence exactly one can be meant. All are
drawbacks because then each explains why something was not done, and makes it remarkable that it was.
"""

from dataclasses import dataclass
from functools import cache

from regard.text.pronouns.nouns import Sense


@dataclass(frozen=True, kw_only=True)
class Drawback:
    """A predicative adjective; a gradable one takes "too" and "very", any other takes "still"."""

    english: str
    german: str
    sense: Sense
    also: tuple[Sense, ...] = ()
    gradable: bool = True


@dataclass(frozen=True, kw_only=True)
class Attribute:
    """An adjective in front of a noun of any class; `stem` is the German without its ending."""

    english: str
    stem: str


def _drawbacks(sense: Sense, *also: Sense, graded: str = "", absolute: str = "") -> list[Drawback]:
    """Read "tired müde, hungry hungrig" for adjectives that could be said of the same classes."""
    return [
        Drawback(english=english, german=german, sense=sense, also=also, gradable=gradable)
        for entries, gradable in ((graded, True), (absolute, False))
        for english, german in (entry.split() for entry in entries.split(",") if entry)
    ]


DRAWBACKS: tuple[Drawback, ...] = (
    *_drawbacks("animal", graded="tired müde, hungry hungrig, thirsty durstig, sick krank, nervous nervös"),
    *_drawbacks("animal", graded="shy scheu, stubborn stur, frightened verängstigt"),
    *_drawbacks("vehicle", absolute="delayed verspätet, driverless fahrerlos"),
    *_drawbacks("vehicle", "furniture", "container", absolute="overloaded überladen"),
    *_drawbacks("vehicle", "furniture", "road", graded="rickety klapprig"),
    *_drawbacks("vehicle", "animal", "device", graded="slow langsam, fast schnell"),
    *_drawbacks("vehicle", "device", absolute="defective defekt"),
    *_drawbacks("vehicle", "animal", "furniture", "container", "device", "food", graded="heavy schwer"),
    *_drawbacks("road", graded="slippery rutschig, bumpy holprig, steep steil"),
    *_drawbacks("road", absolute="congested verstopft, flooded überflutet, impassable unpassierbar"),
    *_drawbacks("road", "vehicle", graded="wide breit, icy vereist"),
    *_drawbacks("building", "road", graded="dilapidated baufällig, spooky gespenstisch", absolute="guarded bewacht"),
    *_drawbacks("building", "vehicle", graded="draughty zugig", absolute="unheated unbeheizt"),
    *_drawbacks("building", "road", "container", "furniture", absolute="closed geschlossen"),
    *_drawbacks("building", "vehicle", "container", "furniture", absolute="locked abgeschlossen"),
    *_drawbacks("building", "vehicle", "road", "container", "furniture", absolute="overcrowded überfüllt"),
    *_drawbacks("furniture", graded="wobbly wackelig"),
    *_drawbacks("furniture", "food", "tool", graded="worm-eaten wurmstichig"),
    *_drawbacks("furniture", "building", graded="crooked schief"),
    *_drawbacks("furniture", "building", "vehicle", graded="low niedrig, high hoch, unstable instabil"),
    *_drawbacks("furniture", "garment", "vehicle", graded="uncomfortable unbequem"),
    *_drawbacks("container", absolute="bottomless bodenlos"),
    *_drawbacks("container", "text", "building", absolute="sealed versiegelt"),
    *_drawbacks("container", "text", "device", "food", absolute="unlabelled unbeschriftet"),
    *_drawbacks("container", "road", graded="porous porös"),
    *_drawbacks("container", "vehicle", "device", graded="dented verbeult"),
    *_drawbacks("container", "vehicle", "building", graded="leaky undicht"),
    *_drawbacks("container", "vehicle", "building", "furniture", "animal", graded="full voll"),
    *_drawbacks("device", absolute="incompatible inkompatibel, deactivated deaktiviert"),
    *_drawbacks("device", "text", "tool", graded="complicated kompliziert, inaccurate ungenau"),
    *_drawbacks("device", "text", "vehicle", "garment", "tool", graded="outdated veraltet"),
    *_drawbacks("device", "vehicle", "animal", "road", "building", "tool", graded="noisy laut"),
    *_drawbacks("device", "vehicle", "animal", "building", "tool", "food", graded="overheated überhitzt"),
    *_drawbacks("food", graded="salty salzig, sour sauer, overcooked verkocht"),
    *_drawbacks("food", "text", graded="bitter bitter, raw roh"),
    *_drawbacks("food", "animal", "garment", graded="sweet süß"),
    *_drawbacks("food", "text", "building", graded="bland fade"),
    *_drawbacks("text", graded="illegible unleserlich, misleading irreführend, contradictory widersprüchlich"),
    *_drawbacks("text", graded="wordy langatmig, confidential vertraulich"),
    *_drawbacks("text", "device", absolute="encrypted verschlüsselt"),
    *_drawbacks("text", "building", "animal", "device", graded="boring langweilig"),
    *_drawbacks("garment", graded="shapeless formlos", absolute="unironed ungebügelt"),
    *_drawbacks("garment", "container", "furniture", "text", graded="frayed ausgefranst"),
    *_drawbacks("garment", "building", "furniture", "device", graded="unfashionable unmodisch"),
    *_drawbacks("garment", "text", "animal", graded="wrinkled zerknittert"),
    *_drawbacks("garment", "animal", graded="sweaty verschwitzt"),
    *_drawbacks("garment", "container", "building", graded="tight eng"),
    *_drawbacks("tool", graded="blunt stumpf, sharp scharf, jagged gezackt"),
    *_drawbacks("tool", "garment", graded="pointed spitz"),
    *_drawbacks("tool", "device", "container", "furniture", graded="unwieldy unhandlich"),
    *_drawbacks("tool", "device", "container", "furniture", "vehicle", graded="bent verbogen"),
    *_drawbacks("tool", "device", "container", "furniture", "vehicle", "building", graded="rusty rostig"),
)

DRAWBACK_BY_ENGLISH: dict[str, Drawback] = {drawback.english: drawback for drawback in DRAWBACKS}

ATTRIBUTES: tuple[Attribute, ...] = (
    Attribute(english="old", stem="alt"),
    Attribute(english="new", stem="neu"),
    Attribute(english="small", stem="klein"),
    Attribute(english="red", stem="rot"),
    Attribute(english="white", stem="weiß"),
    Attribute(english="black", stem="schwarz"),
    Attribute(english="beautiful", stem="schön"),
    Attribute(english="strange", stem="seltsam"),
    Attribute(english="second", stem="zweit"),
    Attribute(english="third", stem="dritt"),
)


@cache
def telling_drawbacks(referent: Sense, other: Sense) -> tuple[Drawback, ...]:
    """The drawbacks that one of two nouns can have and the other cannot.

    Args:
        referent: class of the noun that is meant.
        other: class of the sentence's other noun.

    Returns:
        The drawbacks of the first class that could not be said of the second.

    Example:
        >>> [drawback.english for drawback in telling_drawbacks("road", "vehicle")]
        ['slippery', 'bumpy', 'steep', 'congested', 'flooded', 'impassable']
    """
    return tuple(drawback for drawback in DRAWBACKS if drawback.sense == referent and other not in drawback.also)
