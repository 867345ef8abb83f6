"""graphviz's language, drawn where `dot` is installed."""

from __future__ import annotations

from pathlib import Path

from leakscope.errors import LeakscopeError

_TEXT = (".dot", ".gv")


def drawn(dot: str) -> str | None:
    """As SVG; None where `dot` is not installed."""
    import graphviz

    try:
        svg: str = graphviz.Source(dot).pipe("svg", encoding="utf-8", quiet=True)
    except (graphviz.ExecutableNotFound, graphviz.CalledProcessError):
        return None
    return svg[svg.find("<svg") :]


def draw_to(dot: str, path: str | Path) -> Path:
    """Write a picture; its name's ending says how.

    Raises LeakscopeError where graphviz's `dot` is not installed or cannot draw that.
    """
    import graphviz

    path = Path(path)
    if path.suffix in _TEXT:
        path.write_text(dot, encoding="utf-8")
        return path
    kind = path.suffix.removeprefix(".")
    if kind not in graphviz.FORMATS:
        raise LeakscopeError(f"{path} is no picture that graphviz draws: end its name in .svg, .png, .pdf or .dot")
    try:
        path.write_bytes(graphviz.Source(dot).pipe(kind, quiet=True))
    except graphviz.ExecutableNotFound:
        raise LeakscopeError(
            f"graphviz's `dot` is not installed, so {path} cannot be drawn: install graphviz, or write a .dot file"
        ) from None
    except graphviz.CalledProcessError as error:
        raise LeakscopeError(f"graphviz could not draw {path}: {error}") from None
    return path
