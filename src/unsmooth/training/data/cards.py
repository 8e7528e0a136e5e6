"""What is known of each public data set before any of it is on disk: address, sizes, checksums, class names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from unsmooth.errors import unknown_name

# The five classes of each of CIFAR-100's twenty superclasses, in the order of the official coarse labels.
_SUPERCLASSES = (
    "beaver dolphin otter seal whale",
    "aquarium_fish flatfish ray shark trout",
    "orchid poppy rose sunflower tulip",
    "bottle bowl can cup plate",
    "apple mushroom orange pear sweet_pepper",
    "clock keyboard lamp telephone television",
    "bed chair couch table wardrobe",
    "bee beetle butterfly caterpillar cockroach",
    "bear leopard lion tiger wolf",
    "bridge castle house road skyscraper",
    "cloud forest mountain plain sea",
    "camel cattle chimpanzee elephant kangaroo",
    "fox porcupine possum raccoon skunk",
    "crab lobster snail spider worm",
    "baby boy girl man woman",
    "crocodile dinosaur lizard snake turtle",
    "hamster mouse rabbit shrew squirrel",
    "maple_tree oak_tree palm_tree pine_tree willow_tree",
    "bicycle bus motorcycle pickup_truck train",
    "lawn_mower rocket streetcar tank tractor",
)
_COARSE = {name: coarse for coarse, names in enumerate(_SUPERCLASSES) for name in names.split()}


@dataclass(frozen=True)
class Card:
    """A public data set.

    Args:
        name: As `unsmooth data get` takes it; its folder is named so.
        url: The official archive.
        md5: Of that archive, None where nobody published one.
        hub: A copy on the Hugging Face hub, for hints.
    """

    name: str
    url: str
    md5: str | None
    hub: str | None

    @property
    def archive(self) -> str:
        """The file name of the official archive.

        >>> CARDS["cifar100"].archive
        'cifar-100-binary.tar.gz'
        """
        return self.url.rsplit("/", 1)[1]

    @property
    def most(self) -> int:
        """Bytes that an archive of it may come to; the largest of SuperGLUE's files have a tenth of it."""
        return 1 << 30

    @property
    def files(self) -> int:
        """Files and folders that an archive of it may have."""
        return 2_000


@dataclass(frozen=True)
class CifarCard(Card):
    """CIFAR (Krizhevsky 2009): 32 × 32 images in binary records of labels, then red, green and blue planes.

    Args:
        classes: Names in the order of the labels, which is alphabetical.
        coarse: The superclass of each label; empty where records have one label.
        sizes: Images in each split.
        digests: `records_digest` of each split.
        parts: The official names of the files of each split.
        pickles: The same for the archive of Python pickles.
    """

    classes: tuple[str, ...]
    coarse: tuple[int, ...]
    sizes: Mapping[str, int]
    digests: Mapping[str, str]
    parts: Mapping[str, tuple[str, ...]]
    pickles: Mapping[str, tuple[str, ...]]

    pixels = 3 * 32 * 32

    @property
    def most(self) -> int:
        """Twice the records: the archive of pickles has other files beside them.

        >>> CARDS["cifar100"].most
        368880000
        """
        return 2 * sum(self.sizes.values()) * self.record

    @property
    def files(self) -> int:
        """Twice the images: each may be a file."""
        return 2 * sum(self.sizes.values())

    @property
    def labels(self) -> int:
        """Label bytes at the start of a record; the last of them is the class."""
        return 2 if self.coarse else 1

    @property
    def record(self) -> int:
        """Bytes of a record.

        >>> CARDS["cifar100"].record, CARDS["cifar10"].record
        (3074, 3073)
        """
        return self.labels + self.pixels


_CIFAR100 = CifarCard(
    name="cifar100",
    url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
    md5="03b5dce01913d631647c71ecec9e9cb8",
    hub="uoft-cs/cifar100",
    classes=tuple(sorted(_COARSE)),
    coarse=tuple(_COARSE[name] for name in sorted(_COARSE)),
    sizes={"train": 50_000, "test": 10_000},
    digests={
        "train": "6d2a03c47c105e4c34d3a2ff16c2803e8df0e5d6fa0c631e46663a327aeac573",
        "test": "381b7d98ce1e9b98232a8df0db0a22992654c39ff2433270656ab8ace5a45e65",
    },
    parts={"train": ("train.bin",), "test": ("test.bin",)},
    pickles={"train": ("train",), "test": ("test",)},
)

_CIFAR10 = CifarCard(
    name="cifar10",
    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    md5="c32a1d4ab5d03f1284b67883e8d87530",
    hub="uoft-cs/cifar10",
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    coarse=(),
    sizes={"train": 50_000, "test": 10_000},
    digests={
        "train": "55a61f79a40ece2ceda9fb5f9f7078f6ea2fc4952489cef56682bcf92cfcc260",
        "test": "325704b01eb92e1e2a6215ae6a916bb7db7de054af0c496be1c7be2e0fcfbf5f",
    },
    parts={"train": tuple(f"data_batch_{part}.bin" for part in range(1, 6)), "test": ("test_batch.bin",)},
    pickles={"train": tuple(f"data_batch_{part}" for part in range(1, 6)), "test": ("test_batch",)},
)


@dataclass(frozen=True)
class TextCard(Card):
    """A text in one file.

    Args:
        bytes: Its size.
        content_md5: Of the text itself.
    """

    bytes: int
    content_md5: str

    @property
    def most(self) -> int:
        """Twice the text, which may be packed once more inside."""
        return 2 * self.bytes


_ENWIK8 = TextCard(
    name="enwik8",
    url="http://mattmahoney.net/dc/enwik8.zip",
    md5=None,
    hub=None,
    bytes=100_000_000,
    content_md5="a1fa5ffddb56f4953e226637dabbb36a",
)

_SUPERGLUE = Card(
    name="superglue",
    url="https://dl.fbaipublicfiles.com/glue/superglue/data/v2/combined.zip",
    md5=None,
    hub="aps/super_glue",
)

CARDS: Mapping[str, Card] = {card.name: card for card in (_CIFAR100, _CIFAR10, _SUPERGLUE, _ENWIK8)}


def card(name: str) -> Card:
    """The card of a data set.

    >>> card("enwik8").archive
    'enwik8.zip'
    >>> card("cifar-100")
    Traceback (most recent call last):
    unsmooth.errors.UnsmoothError: Expected a known data set but got 'cifar-100'. Did you mean 'cifar100'? ...
    """
    if name not in CARDS:
        raise unknown_name("data set", name, CARDS)
    return CARDS[name]


def cifar_card(name: str) -> CifarCard:
    """The card of a CIFAR.

    >>> cifar_card("cifar100").classes[0], cifar_card("cifar100").coarse[0]
    ('apple', 4)
    """
    found = card(name)
    if not isinstance(found, CifarCard):
        known = [each.name for each in CARDS.values() if isinstance(each, CifarCard)]
        raise unknown_name("data set of images", name, known)
    return found
