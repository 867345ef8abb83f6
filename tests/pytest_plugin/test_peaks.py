"""A test with a limit fails where tensor memory rises above it, whatever kind of test it is, and is told why not."""

from __future__ import annotations

import pytest

TESTS = """
import asyncio, unittest
import pytest, torch

@pytest.fixture
def there():
    return torch.zeros(8 << 20)

@pytest.mark.limit_tensor_peak("1 MB")
def test_what_a_fixture_made_does_not_count(there):
    there.add_(1)

@pytest.mark.limit_tensor_peak("8 MB")
@pytest.mark.no_tensor_leaks(repeats=3)
def test_rises():
    made = torch.zeros(4 << 20)

@pytest.mark.limit_tensor_peak("8 MB")
@pytest.mark.anyio
async def test_rises_in_a_coroutine():
    first = torch.zeros(1 << 20)
    await asyncio.sleep(0)
    second = torch.zeros(2 << 20)

@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.mark.limit_tensor_peak("1 MB")
class TestCase(unittest.TestCase):
    def setUp(self):
        self.made = torch.zeros(1 << 20)

    def test_rises_in_its_set_up(self):
        pass

    def test_fails(self):
        self.fail("of itself")

@pytest.mark.limit_tensor_peak("1 MB")
def test_compiles():
    torch.compile(lambda tensor: tensor + 1, backend="eager")(torch.zeros(4 << 20))
"""


def test_a_limit_fails_each_kind_of_test_in_one_line_and_then_at_length(pytester: pytest.Pytester) -> None:
    pytest.importorskip("anyio")
    pytester.makepyfile(test_limits=TESTS)
    result = pytester.runpytest_subprocess("-p", "no:asyncio", "--leakscope")
    result.assert_outcomes(passed=2, failed=4, warnings=1)
    result.stdout.fnmatch_lines_random(
        [
            "tensor memory rose by 16.00 MiB, 8.00 MiB allowed: test_limits.py:15 test_rises (aten::zeros) *",
            "tensor memory rose by 12.00 MiB, 8.00 MiB allowed: test_limits.py:22 test_rises_in_a_coroutine *",
            "  4.00 MiB in 1 storage: first in test_rises_in_a_coroutine(), test_limits.py:20",
            "tensor memory rose by 4.00 MiB, 1.00 MiB allowed: test_limits.py:31 setUp (aten::zeros) *",
            "*AssertionError: of itself*",
            "*limit_tensor_peak: the peak was not watched: the script uses torch.compile*",
            "FAILED test_limits.py::test_rises - tensor memory rose by 16.00 MiB*",
        ]
    )


@pytest.mark.parametrize(
    ("marker", "said"), [("'lots'", "write it like 4096"), ("", "missing"), ("1, 2", "positional")]
)
def test_a_wrong_limit_is_a_usage_error(pytester: pytest.Pytester, marker: str, said: str) -> None:
    pytester.makepyfile(f"import pytest\n@pytest.mark.limit_tensor_peak({marker})\ndef test_it(): pass\n")
    result = pytester.runpytest_inprocess()
    told = result.stdout.str() + result.stderr.str()
    assert result.ret == pytest.ExitCode.USAGE_ERROR and said in told and "limit_tensor_peak" in told
