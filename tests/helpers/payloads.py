r"""Answers that carry Python: what latex2sympy2 takes for a name below an accent, sympy executes when it sums the series."""

from pathlib import Path

from hypothesis import strategies as st

ACCENTS = ("dot", "ddot", "hat", "vec", "tilde", "bar", "overline", "widetilde", "mathrm", "mathbf", "text", "mbox")
SERIES = (
    r"\sum_{n=0}^{\infty} \frac{X^{n}}{n!}",
    r"\sum_{n=1}^{\infty} \frac{X^{n}}{n}",
    r"\sum_{k=0}^{\infty} X^{k}",
)
PLACES = (
    "X", r"\{X\}", r"\{X, 2\}", "[0,X]", r"(X,\infty)", r"(-\infty,X)\cup(5,6)", "(1,X)", r"\begin{pmatrix}X\\1\end{pmatrix}",
    r"\begin{bmatrix}1 & X\end{bmatrix}", "x=X", r"X \le x", r"\frac{X}{2}", r"\sqrt{X}", r"\int_0^1 X \, dx", r"\lfloor X \rfloor",
    r"\lim_{n\to\infty} X", "f(X)", "2+X i",
)  # fmt: skip
GOLDS = ("34", r"\{34\}", r"\sqrt2", r"2\pi", "x=5", "(1,2)", r"\begin{pmatrix}1\\2\end{pmatrix}", r"[0,\infty)")


def code_that_marks(marker: Path) -> str:
    """Python without quotes, braces, spaces and capital letters, all of which the parser changes, that makes the file."""
    source = f"open({str(marker)!r}, 'w').close()".encode()
    return f"exec(bytes([{','.join(map(str, source))}]))"


def payload(code: str, accents: tuple[str, ...] = ("dot",), series: str = SERIES[0], place: str = r"\{X\}") -> str:
    """An answer with the code below accents, in a series, at a place."""
    name = f"({code})"
    for accent in accents:
        name = rf"\{accent}{{{name}}}"
    return place.replace("X", series.replace("X", name))


def payloads(code: str) -> st.SearchStrategy[str]:
    accents = st.lists(st.sampled_from(ACCENTS), min_size=1, max_size=3).map(tuple)
    names = [rf"\operatorname{{{code}}}(2)", f"x_{{{code}}}", rf"\mathbf{{{code}}}(3)", code, f"d({code})"]
    odd = st.builds(lambda place, name: place.replace("X", name), st.sampled_from(PLACES), st.sampled_from(names))
    return st.builds(payload, st.just(code), accents, st.sampled_from(SERIES), st.sampled_from(PLACES)) | odd
