"""The codec: dataclasses written to plain data and read back as hostile input."""

import enum
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import pytest

from autotune.codec import COUNT, LOCAL, SLUG, Bounds, Items, Node, Null, read, write
from autotune.errors import TableError
from autotune.lookup.json_table import read_device
from autotune.model.device import Device, DeviceLimits


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, kw_only=True)
class Inner:
    is_sparse: ClassVar[bool] = True
    name: Annotated[str, SLUG]
    size: Annotated[int, COUNT] = 3
    value: int | str = 0


@dataclass(frozen=True, kw_only=True)
class Outer:
    colour: Colour
    inner: Inner | None = None
    speeds: Annotated[tuple[Annotated[float, Bounds(0, 10, excludes_least=True)], ...], Items(3)] = ()
    share: Annotated[float, Bounds(0, 1)] = 0.5
    limit: Annotated[float, Bounds(0, math.inf), Null(math.inf)] = math.inf
    clock: Annotated[float | None, Bounds(0, 10)] = None
    is_on: bool = True
    place: str = field(default="here", metadata=LOCAL)


@dataclass(frozen=True, kw_only=True)
class Circle:
    omits_defaults: ClassVar[bool] = True
    radius: float
    turns: Annotated[tuple[int, ...], Items(3, least=2)] = (1, 2)


@dataclass(frozen=True, kw_only=True)
class Drawing:
    shapes: Mapping[str, Circle]


FULL = Outer(colour=Colour.BLUE, inner=Inner(name="a-b", value="x"), speeds=(1.0, 2.5), share=1.0, clock=3.0)


def read_back(plain: Any) -> Outer:
    return read(Outer, Node(json.loads(json.dumps(plain)), "it"))


@pytest.mark.parametrize("value", [FULL, Outer(colour=Colour.RED), Outer(colour=Colour.RED, limit=2.0, is_on=False)])
def test_what_is_written_is_read_back(value: Outer) -> None:
    assert read_back(write(value)) == value


def test_numbers_that_json_lacks_and_fields_of_one_machine_are_left_out() -> None:
    plain = write(Outer(colour=Colour.RED, place="elsewhere"))
    assert plain["limit"] is None and "place" not in plain
    assert read_back(plain).place == "here" and read_back(plain).limit == math.inf


def test_given_fields_are_not_read_and_others_beside_are_passed_over() -> None:
    plain = write(FULL, without=("colour",))
    assert read(Outer, Node(plain, ""), given={"colour": Colour.BLUE}) == FULL
    assert read(Outer, Node({**write(FULL), "extra": 1}, ""), ignored=("extra",)) == FULL


def test_a_type_may_have_a_reader_of_its_own() -> None:
    found = read(Outer, Node(write(FULL), ""), readers={Inner: lambda node: Inner(name=node.path)})
    assert found.inner == Inner(name="inner")


def test_texts_are_written_as_they_can_be_read() -> None:
    assert write("a\nb") == "a b"
    limits = DeviceLimits(extensions=("cl_khr_fp16\x00", "cl_\u202ekhr"))
    assert write(limits)["extensions"] == ["cl_khr_fp16 ", "cl_ khr"]
    device = Device(slug="a", family="cpu", vendor="v\n", model="", limits=limits)
    assert read_device(Node(json.loads(json.dumps({**write(device), "entries": []})), "")).vendor == "v "


def test_members_named_by_data_come_back_and_defaults_may_be_omitted() -> None:
    drawing = Drawing(shapes={"a": Circle(radius=1.5), "b": Circle(radius=1.0, turns=(3, 4))})
    plain = write(drawing)
    assert plain == {"shapes": {"a": {"radius": 1.5}, "b": {"radius": 1.0, "turns": [3, 4]}}}
    assert read(Drawing, Node(plain)) == drawing


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"a\n": {}}, r"shapes\.a name: has a control character"),
        ({str(number): {} for number in range(1025)}, "shapes: has more than 1024 members"),
        ({"a": {}}, r"shapes\.a: radius is missing"),
        ({"a": {"kind": "circle"}}, r"shapes\.a: has an unknown member 'kind'"),
        ({"a": {"radius": 1, "turns": [1]}}, r"shapes\.a\.turns: needs at least 2 items"),
        ({"a": {"radius": 1, "turns": [1, "x"]}}, r"shapes\.a\.turns\[1\]: must be a whole number"),
        ({"a": 1}, r"shapes\.a: must be an object"),
    ],
)
def test_what_stands_under_names_is_bounded_data(shapes: Any, message: str) -> None:
    with pytest.raises(TableError, match=f"^{message}"):
        read(Drawing, Node({"shapes": shapes}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": "green"}, r"it\.colour: must be one of red, blue"),
        ({"colour": 1}, r"it\.colour: must be a string, not a number"),
        ({"inner": {"name": "A"}}, r"it\.inner\.name: must be up to 64 lowercase letters"),
        ({"inner": {"name": "a" * 65}}, r"it\.inner\.name: must be up to 64"),
        ({"inner": {"name": "a", "size": -1}}, r"it\.inner\.size: must be from 0 to 2147483647, not -1"),
        ({"inner": {"name": "a", "value": 1.5}}, r"it\.inner\.value: must be a whole number"),
        ({"inner": {"name": "a", "value": True}}, r"it\.inner\.value: must be a whole number"),
        ({"inner": {"size": 1}}, r"it\.inner: name is missing"),
        ({"inner": {"name": "a", "colour": 1}}, r"it\.inner: has an unknown member 'colour'"),
        ({"speeds": [1, 2, 3, 4]}, r"it\.speeds: has more than 3 items"),
        ({"speeds": [0]}, r"it\.speeds\[0\]: must be above 0 and at most 10, not 0"),
        ({"speeds": 1}, r"it\.speeds: must be a list"),
        ({"share": 1.01}, r"it\.share: must be from 0 to 1, not 1.01"),
        ({"share": True}, r"it\.share: must be a number, not a boolean"),
        ({"share": None}, r"it\.share: must be a number, not null"),
        ({"share": 10**400}, r"it\.share: is too large"),
        ({"clock": "fast"}, r"it\.clock: must be a number, not a string"),
        ({"is_on": 1}, r"it\.is_on: must be true or false"),
        ({"place": "there"}, r"it: has an unknown member 'place'"),
        ({"other": 1}, r"it: has an unknown member 'other'"),
    ],
)
def test_errors_name_the_path(change: dict[str, Any], message: str) -> None:
    with pytest.raises(TableError, match=f"^{message}"):
        read_back({**write(FULL), **change})


@pytest.mark.parametrize("name", ["colour", "speeds", "share", "is_on"])
def test_a_member_that_is_missing_is_refused(name: str) -> None:
    plain = write(FULL)
    del plain[name]
    with pytest.raises(TableError, match=f"^it: {name} is missing"):
        read_back(plain)


def test_a_type_that_the_codec_does_not_know_is_an_error_of_the_program() -> None:
    @dataclass(frozen=True)
    class Odd:
        data: bytes

    with pytest.raises(TypeError, match="cannot be read"):
        read(Odd, Node({"data": "x"}, ""))
