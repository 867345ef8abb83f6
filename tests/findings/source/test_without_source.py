"""A traceback without source keeps its places and its words."""

from __future__ import annotations

from leakscope.process.user_code import without_source

TRACEBACK = """\
  + Exception Group Traceback (most recent call last):
  |   File "/home/me/train.py", line 3, in main
  |     step(token)
  |     ~~~~^^^^^^^
  |   [Previous line repeated 3 more times]
  | ExceptionGroup: two (2 sub-exceptions)
Traceback (most recent call last):
  File "/home/me/train.py", line 12, in <module>
    main(
    ^^^^^
  File "/home/me/engine.py", line 9, in main
    raise ValueError(
        "in two lines")
ValueError: no such layer
    said the script, indented
  File "/home/me/train.py", line 2
    def f(:
          ^
SyntaxError: invalid syntax"""


def test_a_traceback_without_source_keeps_its_places_and_its_words() -> None:
    assert without_source(TRACEBACK.splitlines()) == (
        "  + Exception Group Traceback (most recent call last):",
        '  |   File "/home/me/train.py", line 3, in main',
        "  |   [Previous line repeated 3 more times]",
        "  | ExceptionGroup: two (2 sub-exceptions)",
        "Traceback (most recent call last):",
        '  File "/home/me/train.py", line 12, in <module>',
        '  File "/home/me/engine.py", line 9, in main',
        "ValueError: no such layer",
        "    said the script, indented",
        '  File "/home/me/train.py", line 2',
        "SyntaxError: invalid syntax",
    )
