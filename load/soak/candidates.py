"""Makes what might be sent to each task: bodies from which the canaries are chosen. The same for the same seed.

image_classification   crops of the examples' photographs, turned, mirrored and with their colours changed over
sentence_embedding     texts about three things each, of 3 to 80 words
language_id            sentences of many languages, and the beginning of one before the end of another
"""

import io
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations, islice, permutations

from PIL import Image, ImageOps

from deploy.models import ROOT
from load.generate.inputs import Input

PHOTOGRAPHS = ("examples/resnet-152/cat.jpg", "examples/mobilenet-v2/espresso.jpg")
NOUNS = (
    *("river", "engine", "violin", "bread", "market", "volcano", "library", "carpet", "penguin", "vaccine"),
    *("harbour", "guitar", "desert", "planet", "kitchen", "painter", "tunnel", "orchid", "chess", "glacier"),
)
SENTENCES = (
    "The ferry leaves at seven and reaches the island before noon.",
    "Le train de nuit arrive toujours avec quelques minutes de retard.",
    "Der Nachbar hat gestern seinen alten Schuppen neu gestrichen.",
    "Mañana por la tarde iremos al mercado con mis abuelos.",
    "Ieri sera abbiamo mangiato una zuppa di pesce sul porto.",
    "Vanmorgen stond er een dikke laag ijs op de sloot.",
    "Jutro rano pojedziemy nad jezioro na ryby.",
    "Zítra ráno pojedeme vlakem na hory za babičkou.",
    "Igår kväll såg vi en film om en gammal fiskare.",
    "Huomenna menemme järvelle uimaan ja kalastamaan.",
    "Holnap reggel elmegyünk a piacra friss kenyérért.",
    "Yarın sabah denize girmek için erken kalkacağız.",
    "Завтра утром мы поедем на дачу собирать яблоки.",
    "Завтра вранці ми підемо до лісу по гриби.",
    "Αύριο το πρωί θα πάμε στη θάλασσα με το λεωφορείο.",
    "غدا صباحا سنذهب إلى السوق لشراء الخبز والفاكهة.",
    "מחר בבוקר ניסע לים עם כל המשפחה.",
    "कल सुबह हम बाज़ार से ताज़ी सब्ज़ियाँ लाएँगे।",
    "พรุ่งนี้เช้าเราจะไปตลาดซื้อผลไม้",
    "明日の朝、友達と一緒に海へ行きます。",
    "明天早上我们坐火车去看望爷爷奶奶。",
    "내일 아침 우리는 기차를 타고 바다에 갑니다.",
    "Ngày mai chúng tôi sẽ đi chợ mua cá tươi.",
    "Besok pagi kami akan pergi ke pasar membeli ikan.",
)


@dataclass(frozen=True, slots=True)
class Tuning:
    """The size of what is sent, chosen so that a canary costs little and the tasks cost unlike amounts."""

    # Candidates of a task: a few times the canaries that are kept, since some are too like each other.
    count: int = 160
    # Pixels of an image's side, and its quality of 1..95: some 20 KB.
    side: int = 320
    quality: int = 85
    # Share of a photograph's shorter side that a crop may have, at least.
    smallest_crop: float = 0.4
    # Words of a text, which is as many tokens.
    fewest_words: int = 3
    most_words: int = 80


TUNING = Tuning()


def candidates(task: str, seed: int) -> list[Input]:
    """Make the candidates of a task, one of TASKS.

    Args:
        task: name of the handler in the list of models.
        seed: decides on crops, lengths and order.
    """
    return list(islice(TASKS[task](random.Random(f"{task}/{seed}")), TUNING.count))


def _images(chance: random.Random) -> Iterator[Input]:
    pictures = [Image.open(ROOT / path).convert("RGB") for path in PHOTOGRAPHS]
    channels = list(permutations(range(3)))
    while True:
        picture = chance.choice(pictures)
        width, height = picture.size
        side = int(min(width, height) * chance.uniform(TUNING.smallest_crop, 1))
        left, top = chance.randrange(width - side + 1), chance.randrange(height - side + 1)
        crop = picture.crop((left, top, left + side, top + side)).resize((TUNING.side, TUNING.side))
        crop = crop.rotate(chance.choice((0, 90, 180, 270)))
        if chance.random() < 0.5:
            crop = ImageOps.mirror(crop)
        bands = crop.split()
        crop = Image.merge("RGB", [bands[channel] for channel in chance.choice(channels)])
        with io.BytesIO() as body:
            crop.save(body, "JPEG", quality=TUNING.quality)
            yield Input(body.getvalue(), "image/jpeg")


def _texts(chance: random.Random) -> Iterator[Input]:
    subjects = list(combinations(NOUNS, 3))
    chance.shuffle(subjects)
    for subject in subjects:
        words = chance.choices(subject, k=chance.randint(TUNING.fewest_words, TUNING.most_words))
        yield _json({"text": " ".join(words)})


def _sentences(chance: random.Random) -> Iterator[Input]:
    yield from (_json({"text": sentence}) for sentence in SENTENCES)
    pairs = list(permutations(SENTENCES, 2))
    chance.shuffle(pairs)
    for one, other in pairs:
        first, last = one.split(), other.split()
        yield _json({"text": " ".join([*first[: (len(first) + 1) // 2], *last[len(last) // 2 :]])})


def _json(payload: dict[str, str]) -> Input:
    return Input(json.dumps(payload).encode(), "application/json")


TASKS: dict[str, Callable[[random.Random], Iterator[Input]]] = {
    "image_classification": _images,
    "sentence_embedding": _texts,
    "language_id": _sentences,
}
