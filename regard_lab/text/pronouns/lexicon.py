"""The lexicon: nouns with their German, gender and class, and the adjectives that fit each class."""

from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

Gender = Literal["neuter", "masculine", "feminine"]
Sense = Literal[
    "animal",
    "vehicle",
    "road",
    "building",
    "furniture",
    "container",
    "device",
    "food",
    "text",
    "garment",
    "tool",
]

GENDERS: tuple[Gender, ...] = get_args(Gender)
SENSES: tuple[Sense, ...] = get_args(Sense)


@dataclass(frozen=True, kw_only=True)
class Noun:
    """An English noun and its German translation; `oblique` is the German form outside the nominative."""

    english: str
    german: str
    oblique: str
    gender: Gender
    sense: Sense


def _nouns(sense: Sense, *, neuter: str, masculine: str, feminine: str) -> list[Noun]:
    """Parse "bear Bär/Bären, dog Hund"; the form after the slash is the oblique one of the n-declension."""
    nouns = []
    written: tuple[tuple[Gender, str], ...] = (
        ("neuter", neuter),
        ("masculine", masculine),
        ("feminine", feminine),
    )
    for gender, entries in written:
        for entry in entries.split(","):
            english, forms = entry.split()
            german, _, oblique = forms.partition("/")
            nouns.append(
                Noun(
                    english=english,
                    german=german,
                    oblique=oblique or german,
                    gender=gender,
                    sense=sense,
                )
            )
    return nouns


NOUNS: tuple[Noun, ...] = (
    *_nouns(
        "animal",
        neuter="""animal Tier, horse Pferd, sheep Schaf, pig Schwein, camel Kamel, lamb Lamm,
            rabbit Kaninchen, squirrel Eichhörnchen, rhinoceros Nashorn, deer Reh, zebra Zebra,
            crocodile Krokodil""",
        masculine="""dog Hund, wolf Wolf, fox Fuchs, donkey Esel, hedgehog Igel, tiger Tiger, eagle Adler,
            bear Bär/Bären, lion Löwe/Löwen, monkey Affe/Affen, elephant Elefant/Elefanten,
            raven Rabe/Raben""",
        feminine="""cat Katze, cow Kuh, goat Ziege, mouse Maus, rat Ratte, duck Ente, goose Gans,
            snake Schlange, tortoise Schildkröte, giraffe Giraffe, owl Eule, hyena Hyäne""",
    ),
    *_nouns(
        "vehicle",
        neuter="""car Auto, bicycle Fahrrad, motorcycle Motorrad, taxi Taxi, moped Moped, tricycle Dreirad,
            vehicle Fahrzeug, camper Wohnmobil, convertible Cabrio, tandem Tandem""",
        masculine="""bus Bus, train Zug, lorry Lastwagen, tractor Traktor, trailer Anhänger, sledge Schlitten,
            cart Karren, scooter Roller, ambulance Krankenwagen, van Lieferwagen""",
        feminine="""tram Straßenbahn, carriage Kutsche, locomotive Lokomotive, limousine Limousine,
            rickshaw Rikscha, bulldozer Planierraupe, wheelbarrow Schubkarre, steamroller Dampfwalze,
            sweeper Kehrmaschine, harvester Erntemaschine""",
    ),
    *_nouns(
        "road",
        neuter="""field Feld, track Gleis, interchange Autobahnkreuz, tarmac Rollfeld, lane Gässchen,
            pavement Trottoir, site Gelände, weir Wehr, riverbed Flussbett, pitch Spielfeld""",
        masculine="""path Weg, square Platz, trail Pfad, courtyard Hof, boulevard Boulevard, cycleway Radweg,
            roundabout Kreisverkehr, marketplace Marktplatz, footbridge Steg, causeway Damm""",
        feminine="""street Straße, bridge Brücke, motorway Autobahn, junction Kreuzung, alley Gasse,
            avenue Allee, carriageway Fahrbahn, ramp Rampe, driveway Einfahrt, promenade Promenade""",
    ),
    *_nouns(
        "building",
        neuter="""house Haus, castle Schloss, hotel Hotel, museum Museum, theatre Theater,
            hospital Krankenhaus, prison Gefängnis, monastery Kloster, restaurant Restaurant,
            warehouse Lagerhaus""",
        masculine="""tower Turm, palace Palast, station Bahnhof, shop Laden, supermarket Supermarkt,
            stable Stall, shed Schuppen, temple Tempel, pavilion Pavillon, skyscraper Wolkenkratzer""",
        feminine="""church Kirche, school Schule, factory Fabrik, library Bibliothek, barn Scheune, hut Hütte,
            garage Garage, villa Villa, mosque Moschee, bakery Bäckerei""",
    ),
    *_nouns(
        "furniture",
        neuter="""bed Bett, sofa Sofa, shelf Regal, lectern Pult, bookcase Bücherregal, rack Gestell,
            bedstead Bettgestell, crib Gitterbett, podium Podium""",
        masculine="""table Tisch, chair Stuhl, cupboard Schrank, armchair Sessel, desk Schreibtisch,
            stool Hocker, throne Thron, divan Diwan, counter Tresen""",
        feminine="""couch Couch, bench Bank, dresser Kommode, cabinet Vitrine, cradle Wiege, lounger Liege,
            ladder Leiter, sideboard Anrichte, workbench Werkbank""",
    ),
    *_nouns(
        "container",
        neuter="""jar Glas, barrel Fass, parcel Paket, case Etui, locker Schließfach, vessel Gefäß,
            casket Kästchen, basin Becken, compartment Fach, purse Portemonnaie""",
        masculine="""suitcase Koffer, basket Korb, bucket Eimer, sack Sack, backpack Rucksack, pot Topf,
            pouch Beutel, carton Karton, cauldron Kessel, jug Krug""",
        feminine="""crate Kiste, bag Tasche, box Schachtel, bottle Flasche, drawer Schublade, tin Dose,
            chest Truhe, bowl Schüssel, tub Wanne, bin Tonne""",
    ),
    *_nouns(
        "device",
        neuter="""telephone Telefon, radio Radio, device Gerät, microscope Mikroskop, telescope Teleskop,
            microphone Mikrofon, thermometer Thermometer, treadmill Laufband, charger Ladegerät,
            megaphone Megafon""",
        masculine="""computer Computer, printer Drucker, fridge Kühlschrank, oven Ofen, robot Roboter,
            generator Generator, projector Projektor, loudspeaker Lautsprecher, toaster Toaster,
            television Fernseher""",
        feminine="""camera Kamera, pump Pumpe, machine Maschine, lamp Lampe, turbine Turbine, drone Drohne,
            dishwasher Spülmaschine, siren Sirene, scale Waage, antenna Antenne""",
    ),
    *_nouns(
        "food",
        neuter="""bread Brot, egg Ei, meat Fleisch, roll Brötchen, steak Steak, schnitzel Schnitzel,
            omelette Omelett, croissant Croissant, radish Radieschen, chop Kotelett""",
        masculine="""cake Kuchen, apple Apfel, cheese Käse, salad Salat, pudding Pudding, ham Schinken,
            peach Pfirsich, pumpkin Kürbis, stew Eintopf, pancake Pfannkuchen""",
        feminine="""soup Suppe, pizza Pizza, sausage Wurst, potato Kartoffel, tomato Tomate, pear Birne,
            banana Banane, carrot Karotte, lemon Zitrone, tart Torte""",
    ),
    *_nouns(
        "text",
        neuter="""book Buch, poem Gedicht, notebook Heft, manuscript Manuskript, diary Tagebuch,
            dictionary Wörterbuch, document Dokument, form Formular, recipe Rezept, poster Plakat""",
        masculine="""letter Brief, novel Roman, article Artikel, contract Vertrag, report Bericht,
            essay Aufsatz, catalogue Katalog, calendar Kalender, draft Entwurf, timetable Fahrplan""",
        feminine="""newspaper Zeitung, map Landkarte, invoice Rechnung, message Nachricht, list Liste,
            brochure Broschüre, manual Anleitung, postcard Postkarte, magazine Zeitschrift,
            invitation Einladung""",
    ),
    *_nouns(
        "garment",
        neuter="""dress Kleid, shirt Hemd, costume Kostüm, blazer Jackett, nightgown Nachthemd,
            corset Korsett, jersey Trikot, headscarf Kopftuch, headband Stirnband, gown Gewand""",
        masculine="""coat Mantel, hat Hut, scarf Schal, skirt Rock, jumper Pullover, glove Handschuh,
            suit Anzug, belt Gürtel, bathrobe Bademantel, cloak Umhang""",
        feminine="""jacket Jacke, cap Mütze, blouse Bluse, tie Krawatte, waistcoat Weste, sock Socke,
            apron Schürze, uniform Uniform, robe Robe, tunic Tunika""",
    ),
    *_nouns(
        "tool",
        neuter="""knife Messer, hatchet Beil, sword Schwert, scalpel Skalpell, razor Rasiermesser,
            penknife Taschenmesser, crowbar Brecheisen, bayonet Bajonett, tool Werkzeug,
            cleaver Hackmesser""",
        masculine="""spade Spaten, chisel Meißel, drill Bohrer, dagger Dolch, spear Speer, hook Haken,
            nail Nagel, rake Rechen, skewer Spieß, arrow Pfeil""",
        feminine="""saw Säge, axe Axt, sickle Sichel, scythe Sense, fork Gabel, needle Nadel, hoe Hacke,
            shovel Schaufel, trowel Kelle, lance Lanze""",
    ),
)

NOUN_BY_ENGLISH: dict[str, Noun] = {noun.english: noun for noun in NOUNS}


@dataclass(frozen=True, kw_only=True)
class Drawback:
    """A predicative adjective that explains why something was not done.

    It belongs to one class of nouns. `also` lists other classes it could describe; it is never used with a noun of
    these, so that exactly one noun of a sentence can be the referent. Gradable ones take "too" and "very", others
    "still".
    """

    english: str
    german: str
    sense: Sense
    also: tuple[Sense, ...] = ()
    gradable: bool = True


@dataclass(frozen=True, kw_only=True)
class Attribute:
    """An adjective before a noun of any class; `stem` is the German without its ending."""

    english: str
    stem: str


def _drawbacks(sense: Sense, *also: Sense, graded: str = "", absolute: str = "") -> list[Drawback]:
    """Parse "tired müde, hungry hungrig", adjectives that fit the same classes."""
    drawbacks = []
    for entries, gradable in ((graded, True), (absolute, False)):
        for entry in filter(None, entries.split(",")):
            english, german = entry.split()
            drawback = Drawback(
                english=english, german=german, sense=sense, also=also, gradable=gradable
            )
            drawbacks.append(drawback)
    return drawbacks


DRAWBACKS: tuple[Drawback, ...] = (
    *_drawbacks(
        "animal", graded="tired müde, hungry hungrig, thirsty durstig, sick krank, nervous nervös"
    ),
    *_drawbacks("animal", graded="shy scheu, stubborn stur, frightened verängstigt"),
    *_drawbacks("vehicle", absolute="delayed verspätet, driverless fahrerlos"),
    *_drawbacks("vehicle", "furniture", "container", absolute="overloaded überladen"),
    *_drawbacks("vehicle", "furniture", "road", graded="rickety klapprig"),
    *_drawbacks("vehicle", "animal", "device", graded="slow langsam, fast schnell"),
    *_drawbacks("vehicle", "device", absolute="defective defekt"),
    *_drawbacks(
        "vehicle", "animal", "furniture", "container", "device", "food", graded="heavy schwer"
    ),
    *_drawbacks("road", graded="slippery rutschig, bumpy holprig, steep steil"),
    *_drawbacks(
        "road", absolute="congested verstopft, flooded überflutet, impassable unpassierbar"
    ),
    *_drawbacks("road", "vehicle", graded="wide breit, icy vereist"),
    *_drawbacks(
        "building",
        "road",
        graded="dilapidated baufällig, spooky gespenstisch",
        absolute="guarded bewacht",
    ),
    *_drawbacks("building", "vehicle", graded="draughty zugig", absolute="unheated unbeheizt"),
    *_drawbacks("building", "road", "container", "furniture", absolute="closed geschlossen"),
    *_drawbacks("building", "vehicle", "container", "furniture", absolute="locked abgeschlossen"),
    *_drawbacks(
        "building", "vehicle", "road", "container", "furniture", absolute="overcrowded überfüllt"
    ),
    *_drawbacks("furniture", graded="wobbly wackelig"),
    *_drawbacks("furniture", "food", "tool", graded="worm-eaten wurmstichig"),
    *_drawbacks("furniture", "building", graded="crooked schief"),
    *_drawbacks(
        "furniture", "building", "vehicle", graded="low niedrig, high hoch, unstable instabil"
    ),
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
    *_drawbacks(
        "device", "vehicle", "animal", "building", "tool", "food", graded="overheated überhitzt"
    ),
    *_drawbacks("food", graded="salty salzig, sour sauer, overcooked verkocht"),
    *_drawbacks("food", "text", graded="bitter bitter, raw roh"),
    *_drawbacks("food", "animal", "garment", graded="sweet süß"),
    *_drawbacks("food", "text", "building", graded="bland fade"),
    *_drawbacks(
        "text",
        graded="illegible unleserlich, misleading irreführend, contradictory widersprüchlich",
    ),
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
    *_drawbacks(
        "tool", "device", "container", "furniture", "vehicle", "building", graded="rusty rostig"
    ),
)

DRAWBACK_BY_ENGLISH: dict[str, Drawback] = {drawback.english: drawback for drawback in DRAWBACKS}

_STEMS = """old alt, new neu, small klein, red rot, white weiß, black schwarz, beautiful schön, strange seltsam,
    second zweit, third dritt"""
ATTRIBUTES = tuple(
    Attribute(english=english, stem=stem) for english, stem in map(str.split, _STEMS.split(","))
)


@cache
def words_of_a_kind() -> tuple[tuple[str, ...], ...]:
    """English words that can stand in the place of each other: the adjectives of each class of nouns, then its nouns.

    >>> words_of_a_kind()[2][:3]
    ('slippery', 'bumpy', 'steep')
    """
    kinds: list[tuple[str, ...]] = []
    for words in (DRAWBACKS, NOUNS):
        of_sense: dict[str, list[str]] = {}
        for word in words:
            of_sense.setdefault(word.sense, []).append(word.english)
        kinds += map(tuple, of_sense.values())
    return tuple(kinds)


@cache
def telling_drawbacks(referent: Sense, other: Sense) -> tuple[Drawback, ...]:
    """The drawbacks that fit the class of one noun and not that of the other.

    Args:
        referent: class of the noun that *it* refers to.
        other: class of the other noun.

    Returns:
        The drawbacks of the first class that do not fit the second.

    >>> [drawback.english for drawback in telling_drawbacks("road", "vehicle")]
    ['slippery', 'bumpy', 'steep', 'congested', 'flooded', 'impassable']
    """
    return tuple(
        drawback
        for drawback in DRAWBACKS
        if drawback.sense == referent and other not in drawback.also
    )
