"""The closed word lists that names of both generated worlds are put together from.

No word stands in two lists, so a word tells which kind of entity it names, and no entity of one world can be an
entity of the other. None of the words is used, capitalised, in a sentence or question template.
"""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# The in-domain world.
PERSON_FIRST = _words("""
    Ada Boris Carla Dario Elena Felix Greta Hugo Irene Jonas Karin Leo Marta Nils Olga Pavel Quinn Rosa Stefan Tilda
    Umberto Vera Walter Xenia Yusuf Zelda Anton Bianca Cyrus Delia Emil Flora Gustav Hanna Igor Julia Kaspar Lydia
    Milo Nora""")
PERSON_LAST = _words("""
    Abbott Barlow Carver Dalton Ellison Fenwick Garrick Holloway Ibsen Jarvis Kessler Langley Merrick Norwood Osborne
    Pickett Quimby Rourke Sutter Thorne Underhill Vance Whitlock Yardley Zimmer Ashdown Bramwell Colburn Draper
    Eastman Farrow Gresham Hartley Ingram Jessop Kendrick Lockhart Mercer Nesbitt Orwell Prescott Radley Sheldon
    Talbot Upton Varley Wexler Yates Zeller Alcott Birch Corbin Dunmore Everett Forsyth Granger Hobbs Kirby Lambert
    Morrow""")
FILM_FIRST = _words("""
    Silent Golden Broken Hidden Crimson Distant Frozen Gentle Hollow Iron Jagged Lonely Midnight Narrow Painted Quiet
    Restless Scarlet Tender Velvet Wandering Bitter Copper Dusty Electric Fading Glass Humble Ivory Lost Marble
    Northern Paper Roaming Silver Twisted Vanishing Wooden Amber Burning""")
FILM_LAST = _words("""
    Harbor River Garden Mirror Lantern Orchard Canyon Castle Circus Compass Desert Engine Feather Forest Fountain
    Horizon Island Journey Kingdom Ladder Meadow Monsoon Mountain Ocean Parade Pilgrim Prairie Promise Rainbow Shadow
    Staircase Summer Sunrise Theater Thunder Tiger Valley Voyage Whisper Window""")
COMPANY_FIRST = _words("""
    Acorn Beacon Cobalt Delta Ember Falcon Granite Helix Indigo Jasper Keystone Lotus Magnet Nimbus Orbit Pioneer
    Quartz Raven Summit Titan Umbra Vertex Willow Zenith Anchor Bison Cedar Dynamo Eclipse Fusion Glacier Harvest
    Impulse Juniper Kinetic Lumen Meteor Nova Onyx Pixel""")
COMPANY_LAST = _words("Works Group Labs Systems Industries Partners Motors Foods")
CITY = _words("""
    Aldermoor Brackford Calverton Dunhaven Eastmere Farrowby Glenrock Harwick Inverdale Jorvale Kelbrook Lindmere
    Marlow Northgate Oakham Penrith Quayside Ravensby Stonebury Thornfield Ulverton Wexcombe Yarrowdale Zedwick
    Ashbourne Bellport Crofton Dovecliff Elmsworth Foxley Gravenport Hillcrest Ironbridge Junewood Kingsmere Larkhill
    Millbrook Newhaven Otterburn Pinehurst Redwater Saltmarsh Tidewell Umberley Vinefield Westbrook Yewdale Cresthill
    Drayport Evenlode Fairholm Goldcrest Heatherby Islemoor Kirkwall Longford""")
COUNTRY = _words("""
    Arvania Belmark Corvia Dravonia Estoria Feronia Galdova Hestria Ilvaria Jundland Kaldor Lorenia Morvath
    Nordavia""")

# The out-of-domain world.
ARTIST_FIRST = _words("""
    Aurelio Brigitte Casimir Dagmar Eamon Fiona Giorgio Heloise Isadora Joaquin Katya Lorenzo Mireille Nikolai Ottilie
    Priya Rafael Saskia Tobias Ursula Vikram Wilhelmina Yolanda Zoltan""")
ARTIST_LAST = _words("""
    Achterberg Bonaventure Castellano Dragomir Escobar Fitzgerald Guillaume Hashimoto Ivanovich Johansson Kowalczyk
    Lindqvist Montgomery Nakamura Oyelaran Papadakis Quintero Rasmussen Santorini Takahashi Urquhart Villanueva Wojcik
    Yamamoto Zapatero Andersen Belmonte Cordova Delacroix Eriksen Fontaine Gallagher""")
NOVEL_FIRST = _words("""
    Ancient Blind Clever Drowned Eternal Faithful Guilty Hungry Invisible Jealous Kindled Loyal Merciful Nameless
    Obscure Patient Rebel Secret Timid Unwritten""")
NOVEL_LAST = _words("""
    Alphabet Beekeeper Chronicle Daughter Emperor Fisherman Gambler Heiress Inventor Jester Keeper Librarian Merchant
    Navigator Orphan Puppeteer Riddle Scholar Tailor Watchmaker""")
SONG_FIRST = _words("""
    Dancing Dreaming Drifting Falling Flying Growing Howling Laughing Leaving Running Sailing Singing Sleeping Turning
    Waiting Walking""")
SONG_LAST = _words("""
    Ashore Backwards Barefoot Downtown Forever Homeward Indoors Overnight Sideways Slowly Moonward Southbound Tomorrow
    Eastward Underwater Upstream""")
PRESS_FIRST = _words("""
    Argus Bodkin Calliope Doric Elzevir Folio Gazelle Hermes Inkwell Janus Kestrel Lyceum Minerva Nautilus Octavo
    Pegasus""")
PRESS_LAST = _words("Press Books Editions Publishing")
ACADEMY_FIRST = _words("""
    Ambrose Benedict Cuthbert Dunstan Edmund Ferrer Godric Hildegard Ignatius Jerome Kenelm Leander""")
ACADEMY_LAST = _words("Academy Conservatory College Institute")
TOWN_FIRST = _words("Upper Lower Saint Fort Port Grand")
TOWN_LAST = _words("""
    Alvington Borrowdale Chesham Dunwich Elkstone Fulbeck Grantham Hexham Ilminster Kelso Ludlow Malvern Nairn Oundle
    Paisley Romsey""")
WATERWAY = _words("""
    Ardwen Brenock Caldrel Derwash Eskmoor Fynn Garonde Hestle Islay Jorrun Kelvar Lunewash Maddock Nevis Orwash
    Pellorn Quoile Rothay Severil Tamarisk""")
CROSSING_FIRST = _words("""
    Chancellor Dragon Foundry Governor Jubilee Lighthouse Monarch Regent Sentinel Tollgate Viaduct Wharf""")
CROSSING_LAST = _words("Crossing Span Arches Causeway")
