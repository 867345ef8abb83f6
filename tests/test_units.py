"""Sizes and shares: how they are written, and how they are read."""

from __future__ import annotations

from itertools import pairwise

import pytest

from leakscope.units import bytes_text, parse_bytes, parse_share

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@pytest.mark.unit
@pytest.mark.parametrize(("power", "units"), list(enumerate(pairwise(UNITS), 1)))
@pytest.mark.parametrize("sign", [1, -1])
def test_a_size_just_below_a_unit_is_written_in_that_unit(power: int, units: tuple[str, str], sign: int) -> None:
    border = 1024**power
    written = "1.00" if sign > 0 else "-1.00"
    rounding = 0.4 if power == 1 else 0.004 * border / 1024
    assert bytes_text(sign * border) == f"{written} {units[1]}"
    assert bytes_text(sign * (border - rounding)) == f"{written} {units[1]}"
    assert bytes_text(sign * (border - 3 * rounding)).endswith(f" {units[0]}")
    assert abs(float(bytes_text(sign * (border - 3 * rounding)).split()[0])) < 1024


@pytest.mark.unit
def test_no_size_is_written_as_1024_of_a_unit_below_the_largest() -> None:
    for power in range(1, 5):
        for off in (1, 2, 5, 2**8, 2**16):
            assert not bytes_text(1024**power - off).startswith("1024")
    assert bytes_text(1024**5) == "1024.00 TiB"


@pytest.mark.unit
def test_a_share_means_the_same_typed_and_in_python() -> None:
    assert parse_share("2%") == parse_share("0.02") == parse_share(" 2 % ") == parse_share(0.02) == parse_share(".02")
    assert parse_share("100%") == parse_share(1.0) == 1 and parse_share("0") == 0
    for wrong in ("2", "1", "101%", "nan", "-1%", "inf", "2 percent", ""):
        with pytest.raises(ValueError, match=r"%"):
            parse_share(wrong)


@pytest.mark.unit
def test_a_size_that_was_written_is_read_back() -> None:
    assert parse_bytes("64KiB") == parse_bytes("64 KB") == parse_bytes(65536) == 65536
    assert parse_bytes(bytes_text(5 << 20)) == 5 << 20
