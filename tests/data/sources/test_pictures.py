"""What each kind of picture becomes, alike from every source; the right values are those of Pillow and torchvision."""

import io
import struct
import zlib
from contextlib import nullcontext
from types import SimpleNamespace

import datasets
import numpy as np
import pyarrow as pa
import pytest
from PIL import Image, ImageOps
from torchvision.datasets import ImageFolder

import flray
from flray.core.schema.errors import DataError
from flray.data import DataConfig, LabelWarning, load_dataset
from flray.data.sources.pictures import kind_of
from tests.support.data_files import LABEL, Wrapper, images, write

datasets.disable_progress_bars()
COLOUR = images(1, (6, 5, 3), 1)[0]
LEVELS = (np.arange(30, dtype=np.uint16).reshape(6, 5) * 2000 + 7).astype(np.uint16)


def encoded(image, kind="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def palette():
    return Image.fromarray(COLOUR).convert("P", palette=Image.Palette.ADAPTIVE)


def see_through(image):
    alpha = Image.fromarray(np.arange(30, dtype=np.uint8).reshape(6, 5) * 8)
    image.putalpha(alpha)
    return image


# a name -> (an encoded picture, its right pixels [H, W, C])
GREY = Image.fromarray(COLOUR[..., 0])
RIGHT = {
    "RGB": (encoded(Image.fromarray(COLOUR)), COLOUR),
    "L": (encoded(GREY), COLOUR[..., :1]),
    "1": (encoded(Image.fromarray(COLOUR[..., 0] > 99)), np.where(COLOUR[..., :1] > 99, 255, 0)),
    "LA": (encoded(see_through(GREY.copy())), COLOUR[..., :1]),
    "P": (encoded(palette()), np.asarray(palette().convert("RGB"))),
    "P, transparent": (encoded(palette(), transparency=3), np.asarray(palette().convert("RGB"))),
    "RGBA": (encoded(see_through(Image.fromarray(COLOUR))), COLOUR),
    "CMYK": (
        encoded(Image.fromarray(COLOUR).convert("CMYK"), "TIFF"),
        np.asarray(Image.fromarray(COLOUR).convert("CMYK").convert("RGB")),
    ),
    "YCbCr": (
        encoded(Image.fromarray(COLOUR).convert("YCbCr"), "TIFF"),
        np.asarray(Image.fromarray(COLOUR).convert("YCbCr").convert("RGB")),
    ),
    "LAB grey of 16 bits": (encoded(Image.fromarray(LEVELS)), LEVELS[..., None]),
    "I;16 TIFF": (encoded(Image.fromarray(LEVELS), "TIFF"), LEVELS[..., None]),
    "I;16B TIFF": (encoded(Image.fromarray(LEVELS.astype(">u2")), "TIFF"), LEVELS[..., None]),
    "PGM of 16 bits": (encoded(Image.fromarray(LEVELS), "PPM"), LEVELS[..., None]),
    "I TIFF": (encoded(Image.fromarray(LEVELS.astype(np.int32) * 100), "TIFF"), LEVELS[..., None] * 100.0),
    "F TIFF": (encoded(Image.fromarray(LEVELS / np.float32(65535)), "TIFF"), LEVELS[..., None] / np.float32(65535)),
}


def table(root, blobs, name="set", test=None, **options):
    """The samples of a Parquet file with these encoded pictures."""
    for split, rows in {"train": blobs, **({} if test is None else {"test": test})}.items():
        column = pa.array([{"bytes": blob, "path": None} for blob in rows], pa.struct({"bytes": pa.binary()}))
        write(root / name, split, {"image": column, "label": pa.array(np.arange(len(rows)) % 2)}, LABEL)
    fraction = {"test_fraction": 0} if test is None else {}
    return load_dataset(DataConfig(source=name, root=str(root), leak_check=False, **fraction, **options))


@pytest.mark.parametrize("mode", RIGHT)
def test_every_source_gives_the_right_pixels(tmp_path, mode):
    """Parquet bytes, an `imagefolder` by path and as an object of `datasets`, Pillow objects of a torch data set."""
    blob, right = RIGHT[mode]
    found = {"parquet": table(tmp_path, [blob, blob]).train.x}
    (tmp_path / "folder/train/a").mkdir(parents=True)
    ending = {b"II": "tif", b"MM": "tif", b"P5": "pgm"}.get(blob[:2], "png")
    for name in ("a", "b"):
        (tmp_path / f"folder/train/{name}").mkdir(exist_ok=True)
        (tmp_path / f"folder/train/{name}/0.{ending}").write_bytes(blob)
    loaded = datasets.load_dataset("imagefolder", data_dir=str(tmp_path / "folder"))
    for name, section in (
        ("folder", {"source": f"hf:{tmp_path / 'folder'}"}),
        ("from_hf", flray.data.from_hf(loaded)),
        ("from_torch", flray.data.from_torch([(Image.open(io.BytesIO(blob)), label) for label in (0, 1)])),
    ):
        found[name] = load_dataset(DataConfig(**section, test_fraction=0)).train.x
    for name, x in found.items():
        assert x.dtype == (np.uint8 if np.asarray(right).dtype != np.float32 and right.max() < 256 else np.float32), (
            name
        )
        np.testing.assert_array_equal(x, np.stack([right, right]), err_msg=name)


def test_grey_beside_colour_is_colour_whatever_comes_first_and_channels_decide(tmp_path):
    grey, colour = RIGHT["L"][0], RIGHT["RGB"][0]
    wide = np.repeat(COLOUR[..., :1], 3, axis=2)
    for blobs, right in (([grey, colour], [wide, COLOUR]), ([colour, grey], [COLOUR, wide])):
        with pytest.warns(LabelWarning, match=r"of mode (L|RGB) \(1\), (L|RGB) \(1\) are all read in colour"):
            dataset = table(tmp_path, blobs, f"first-{len(blobs[0])}")
        np.testing.assert_array_equal(dataset.train.x, right)
        said = " ".join(dataset.reading)
        assert "pictures: 2 of mode" in said and "3 channels, 5x6, uint8" in said
    luma = np.rint(COLOUR @ np.array([0.299, 0.587, 0.114]))
    with pytest.warns(LabelWarning):
        made = table(tmp_path, [grey, colour], "grey", channels=1).train.x
    np.testing.assert_array_equal(made[0, ..., 0], COLOUR[..., 0])
    assert np.abs(made[1, ..., 0].astype(float) - luma).max() <= 1
    with pytest.warns(LabelWarning):  # the splits differ, each of one mode
        both = table(tmp_path, [colour, colour], "splits", test=[grey])
    np.testing.assert_array_equal(both.test.x[0], wide)


def png_16(kind, channels):
    """A PNG of 2 x 2 pixels with 16 bits a channel, which Pillow does not write."""

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    rows = b"".join(b"\0" + (np.arange(2 * channels) * 700).astype(">u2").tobytes() for _ in range(2))
    head = struct.pack(">IIBBBBB", 2, 2, 16, kind, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def deeper(kind, mark, place, byte):
    """A file that Pillow wrote with 8 bits, whose header says more: its byte at a place after a mark."""
    blob = bytearray(encoded(Image.fromarray(COLOUR), kind))
    blob[blob.index(mark) + len(mark) + place] = byte
    return bytes(blob)


def frames(kind):
    first, second = Image.fromarray(COLOUR[..., 0]), Image.fromarray(255 - COLOUR[..., 0])
    return encoded(first, kind, save_all=True, append_images=[second])


def only_alpha():
    return encoded(see_through(Image.new("RGB", (5, 6))))


BOMB = b"P5 20000 20000 255\n"
NAN = encoded(Image.fromarray(np.full((6, 5), np.nan, np.float32)), "TIFF")


@pytest.mark.parametrize(
    ("blob", "says"),
    [
        (b"", "is not a readable image (no known format); replace it"),
        (b"these are words", "is not a readable image (no known format); replace it"),
        (RIGHT["RGB"][0][:-30], "is not a readable image ("),
        (encoded(Image.fromarray(images(1, (64, 64, 3))[0]), "JPEG")[:900], "is not a readable image (image file is"),
        (frames("GIF"), "has 2 frames (GIF); write the one that counts"),
        (frames("TIFF"), "has 2 frames (TIFF); write the one that counts"),
        (png_16(2, 3), "has 16 bits a channel in colour or with transparency, of which Pillow reads 8"),
        (png_16(6, 4), "has 16 bits a channel in colour or with transparency, of which Pillow reads 8"),
        (png_16(4, 2), "has 16 bits a channel in colour or with transparency, of which Pillow reads 8"),
        (b"P6 2 2 65535\n" + bytes(24), "has 16 bits a channel in colour or with transparency"),
        (deeper("JPEG2000", b"\xff\x4f\xff\x51", 38, 15), "has 16 bits a channel in colour"),
        (encoded(GREY, "TIFF", tiffinfo={339: 2}), "has signed levels of 8 bits, whose negative ones Pillow reads as"),
        (BOMB, "is not a readable image (Image size (400000000 pixels) exceeds limit"),
        (only_alpha(), "has one colour, and its shapes are in its transparency"),
        (RIGHT["I;16 TIFF"][0], "is a 16-bit grey picture and "),
        (RIGHT["F TIFF"][0], "is a float grey picture and "),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_a_picture_that_cannot_be_read_with_certainty_is_named(tmp_path, blob, says):
    """Second of three, by bytes, by file and as an object: the row, the file or the sample is in the one line."""
    good = RIGHT["RGB"][0]
    for name, content in (("a/0", good), ("a/1", blob), ("b/2", good)):
        (tmp_path / f"folder/{name[0]}").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"folder/{name}.png").write_bytes(content)
    by_file = DataConfig(source=f"hf:{tmp_path / 'folder'}", label="label", test_fraction=0)
    embedded = DataConfig(**flray.data.from_hf(load_again(tmp_path / "folder")))
    for place, load in (
        ("row 1", lambda: table(tmp_path, [good, blob, good])),
        ("1.png", lambda: load_dataset(by_file)),
        ("1.png", lambda: load_dataset(embedded)),
    ):
        with pytest.raises(DataError) as caught:
            load()
            load()
        text = str(caught.value)
        assert place in text and says in text


def test_levels_that_floats_do_not_hold_and_pixels_that_are_not_finite_are_named(tmp_path):
    for name, blob, says in (
        ("wide", encoded(Image.fromarray(np.full((6, 5), 2**24 + 1, np.int32)), "TIFF"), "levels beyond 16,777,216"),
        ("nan", NAN, "has 30 pixels that are not finite numbers"),
    ):
        with pytest.raises(DataError, match=rf"train.parquet row 0 .*{says}"):
            table(tmp_path, [blob, blob], name)


def test_a_file_is_upright_and_an_object_stays_as_it_is(tmp_path):
    """A camera noted a quarter turn (EXIF 6). `datasets` turns the file; torchvision's loader does not."""
    exif = Image.Exif()
    exif[0x0112] = 6
    blob = encoded(Image.fromarray(COLOUR), "PNG", exif=exif)
    turned = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(blob))))
    assert turned.shape == (5, 6, 3)
    np.testing.assert_array_equal(table(tmp_path, [blob, blob]).train.x[0], turned)
    section = flray.data.from_torch([(Image.open(io.BytesIO(blob)), label) for label in (0, 1)])
    np.testing.assert_array_equal(load_dataset(DataConfig(**section, test_fraction=0)).train.x[0], COLOUR)


def test_the_mode_of_the_feature_is_that_of_the_pictures(tmp_path):
    """`Image(mode="L")` of `datasets`: its own decoder gives the right pixels; 16 bits would be clipped."""
    rows = datasets.Dataset.from_dict({"image": [Image.fromarray(COLOUR), GREY], "label": [0, 1]})
    rows = rows.cast_column("image", datasets.Image(mode="L"))
    read = load_dataset(DataConfig(**flray.data.from_hf(rows), label="label", test_fraction=0)).train.x
    np.testing.assert_array_equal(read[..., 0], [np.asarray(row["image"]) for row in rows])
    deep = datasets.Dataset.from_dict({"image": [Image.fromarray(LEVELS)] * 2, "label": [0, 1]})
    deep = deep.cast_column("image", datasets.Image(mode="RGB"))
    with pytest.raises(DataError, match=r"row 0.* has the mode I;16, whose levels the mode RGB would clip"):
        load_dataset(DataConfig(**flray.data.from_hf(deep), label="label", test_fraction=0))


# objects of `datasets` -----------------------------------------------------------------------------
@pytest.fixture
def folder(tmp_path):
    """Six pictures of each of two classes in `train`, two in `test`, and files that are no pictures."""
    for split, count in (("train", 6), ("test", 2)):
        for number, name in enumerate(("cat", "dog")):
            place = tmp_path / f"images/{split}/{name}"
            place.mkdir(parents=True)
            for i in range(count):
                pixels = images(1, (8, 8, 3), 100 * number + 10 * i + (split == "test"))[0]
                Image.fromarray(pixels).save(place / f"{i}.png")
            for other in (".DS_Store", "._0.png", "Thumbs.db"):
                (place / other).write_bytes(b"x")
    return tmp_path / "images"


def read(section, **options):
    return load_dataset(DataConfig(**section, leak_check=False, **options)).train


def test_imagefolder_objects_hold_their_pictures(folder, tmp_path):
    """As a DatasetDict, selected, shuffled, filtered, concatenated, a torch Subset, a stream: torchvision's pixels."""
    from torch.utils.data import Subset

    want = ImageFolder(str(folder / "train"), is_valid_file=lambda path: "/._" not in path and path.endswith("png"))
    right = np.stack([np.asarray(image) for image, _ in want])
    loaded = datasets.load_dataset("imagefolder", data_dir=str(folder))
    train, none = loaded["train"], {"test_fraction": 0}
    shuffled = train.shuffle(seed=1)
    order = [right.tolist().index(np.asarray(row["image"]).tolist()) for row in shuffled]
    cases = {
        "dict": (flray.data.from_hf(loaded), {}, range(12)),
        "split": (flray.data.from_hf(train), none, range(12)),
        "select": (flray.data.from_hf(train.select([7, 0, 11])), none, [7, 0, 11]),
        "shuffle": (flray.data.from_hf(shuffled), none, order),
        "filter": (
            flray.data.from_hf(train.filter(lambda label: label == 1, input_columns="label")),
            none,
            range(6, 12),
        ),
        "two": (flray.data.from_hf(datasets.concatenate_datasets([train.select([1]), train])), none, [1, *range(12)]),
        "subset": (flray.data.from_hf(Subset(Subset(train, [9, 3, 4]), [2, 0])), none, [4, 9]),
        "format": (flray.data.from_hf(train.with_format("torch")), none, range(12)),
    }
    stream = datasets.load_dataset("imagefolder", data_dir=str(folder), split="train", streaming=True)
    cases["stream"] = (flray.data.from_hf(stream), none, range(12))
    for name, (section, options, rows) in cases.items():
        found = read(section, **options)
        np.testing.assert_array_equal(found.x, right[list(rows)], err_msg=name)
        assert found.y.tolist() == [want.targets[row] for row in rows], name
    moved = flray.data.from_hf(loaded)
    folder.rename(tmp_path / "moved")
    assert flray.data.from_hf(load_again(tmp_path / "moved")) == moved, "the name is that of the contents"


def load_again(place):
    return datasets.load_dataset("imagefolder", data_dir=str(place))


def test_a_transform_that_runs_when_a_row_is_read_is_refused_and_missing_files_are_named(folder):
    train = datasets.load_dataset("imagefolder", data_dir=str(folder), split="train")
    with pytest.raises(DataError, match=r"^from_hf: train has a transform \(set_transform\), which would be left out"):
        flray.data.from_hf(train.with_transform(lambda rows: rows))
    columns = train.add_column("extra", list(range(12))).with_format("numpy", columns=["image", "label"])
    assert read(flray.data.from_hf(columns), test_fraction=0).x.shape == (12, 8, 8, 3)
    (folder / "train/cat/3.png").unlink()
    with pytest.raises(DataError, match=r"^from_hf: train: the file .*train/cat/3.png.* of a picture is missing"):
        flray.data.from_hf(train)


# pictures of a torch data set ----------------------------------------------------------------------
def test_pictures_of_a_torch_data_set_have_one_mode_or_are_named():
    grey, colour = GREY, Image.fromarray(COLOUR)
    with pytest.raises(
        DataError, match=r"sample 1 is uint8 \[6, 5, 3\] and an earlier one uint8 \[6, 5, 1\].*one mode"
    ):
        flray.data.from_torch([(grey, 0), (colour, 1)])
    with pytest.raises(DataError, match=r"sample 1 is a ndarray, unlike those before it; give one type"):
        flray.data.from_torch([(colour, 0), (COLOUR, 1)])
    with pytest.raises(DataError, match=r"from_arrays: train is a list of Pillow pictures; give flray.data.from_torch"):
        flray.data.from_arrays(([palette(), palette()], [0, 1]))


def test_a_torch_data_set_that_fails_is_one_line_that_names_the_sample(folder):
    (folder / "train/cat/3.png").write_bytes(b"words")
    data = ImageFolder(str(folder / "train"), is_valid_file=lambda path: "/._" not in path and path.endswith("png"))
    with pytest.raises(DataError, match=r"^from_torch: train file .*cat/3.png is not a readable image"):
        flray.data.from_torch(data)
    with pytest.raises(
        DataError, match=r"^from_torch: train sample 3 cannot be read \(UnidentifiedImageError: .*3.png"
    ):
        flray.data.from_torch(Wrapper(data))


def test_an_avif_of_10_bits_is_refused_by_its_header():
    """Pillow writes none, and its library opens no file whose header alone says it."""
    for depth in (8, 10):
        blob = encoded(Image.fromarray(COLOUR), "AVIF") if depth == 8 else deeper("AVIF", b"av1C", 2, 0x4C)
        image = SimpleNamespace(mode="RGB", tile=(), format="AVIF", fp=io.BytesIO(blob))
        with pytest.raises(DataError, match="has 10 bits a channel in colour") if depth == 10 else nullcontext():
            assert kind_of(image) == "colour"


def test_torchvisions_loader_clips_16_bits_and_is_refused(tmp_path):
    """`ImageFolder` converts to RGB, in which levels above 255 are 255; with `loader=Image.open` they stay."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Image.fromarray(LEVELS).save(tmp_path / name / "0.png")
    assert np.unique(np.asarray(ImageFolder(str(tmp_path))[0][0])).tolist() == [7, 255]
    with pytest.raises(
        DataError, match=r"^from_torch: train file .*a/0.png is a 16-bit grey picture, which torchvision"
    ):
        flray.data.from_torch(ImageFolder(str(tmp_path)))
    section = flray.data.from_torch(ImageFolder(str(tmp_path), loader=Image.open))
    train = load_dataset(DataConfig(**section, test_fraction=0, leak_check=False)).train
    np.testing.assert_array_equal(train.x, np.stack([LEVELS[..., None]] * 2))


def test_doctor_and_environment_say_how_the_pictures_were_read(folder, tmp_path):
    """`flray doctor` prints the lines; environment.json of a run keeps them."""
    from flray.config.loader import load_config
    from flray.doctor import examine

    Image.fromarray(images(1, (8, 8), 9)[0]).save(folder / "train/cat/1.png")
    config = {
        "name": "read",
        "seed": 0,
        "rounds": 1,
        "data": {"source": f"hf:{folder}", "leak_check": False},
        "partition": {"name": "iid", "clients": 2},
        "cohort": {"size": 2},
        "model": "small_cnn",
        "algorithm": {"name": "fedavg", "lr": 0.1},
        "resources": {"executor": "local"},
    }
    with pytest.warns(LabelWarning, match="are all read in colour"):
        lines = [row["result"] for row in examine(load_config(config)[0]).checks if row["check"] == "read"]
    want = "pictures: 16 of mode RGB (15), L (1) -> 3 channels, 8x8, uint8 [H, W, C]"
    assert want in lines and any("2 classes: cat, dog" in line for line in lines)
    with pytest.warns(LabelWarning, match="are all read in colour"):
        run = flray.run(config, out=tmp_path / "run", progress=False)
    assert flray.load(run.folder).environment["reading"] == lines
