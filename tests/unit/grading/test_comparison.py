import itertools
import re
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_sagc.grading import comparison
from openrlhf_sagc.grading.comparison import equal, same
from openrlhf_sagc.grading.reading import read

RIGHT = r"""
5:7:6 ~ 5:7:6   DEF ~ F, D, E   (2,5] ~ ]2,5]   (2,5) ~ ]2,5[   [2,5) ~ [2,5[   0,1 ~ 1 \text{ and } 0
0,1 ~ \{1,0\}   (1,4)\cup(6,\infty) ~ 1<x<4 \text{ or } x>6   (-\infty,2)\cup(5,\infty) ~ (-\infty,2),(5,\infty)
\{x:-1\le x<7\} ~ [-1,7)   x>2 ~ 2<x   5 ~ 5\text{ m}   0.05 ~ 5\%   12 ~ = 12   7 ~ x+y=7   y=2x+3 ~ f(x)=2x+3
BD ~ D, B   14 ~ (B) 14   \frac{1}{2^{74}} ~ \frac{2}{2^{75}}
\sqrt{2}+\sqrt{3} ~ \sqrt{5+2\sqrt{6}}   \infty ~ \infty   -1 ~ i^2   \tan^2 x+1 ~ \sec^2 x
x+y<2 ~ -x-y>-2   (0,\sqrt2) ~ 0<x<\frac{2}{\sqrt2}
20 ~ 4(5)   (1,2),(3,4) ~ (1,2)\text{ or }(3,4)   (x,y)=(1,2) ~ x=1, y=2   (1,2) ~ (x,y)=(1,2)   3,\pm 1 ~ -1,3,1   AB=5 ~ 5   20 ~ 2\binom{5}{2}
\frac{x^2}{9}+\frac{y^2}{4}=1 ~ 4x^2+9y^2=36   x+y<2 ~ 2x+2y<4   x=5\text{ cm},y=3\text{ cm} ~ 5\text{ cm},3\text{ cm}   x=1,y=2\text{ or }x=2,y=1 ~ (1,2),(2,1)   x=\pm 2 ~ x=2\text{ or }x=-2   e^{\pi i/3} ~ \frac12+\frac{\sqrt3}{2}i   (2,-1) ~ \begin{cases}x&=2\\y&=-1\end{cases}
\begin{cases}x+1&x>0\\x-1&x<0\end{cases} ~ \begin{cases}x-1&x<0\\1+x&x>0\end{cases}
"""
WRONG = r"""
5:7:6 ~ 7:5:6   5:7:6 ~ 5,7,6   1:2 ~ \frac{1}{2}   DEF ~ DFE   DFE ~ DEF   17 ~ --17   -17 ~ --17   -17 ~ +-17
[2,5] ~ ]2,5]   2,5 ~ ]2,5[   0,1 ~ (1,0)   0,1 ~ (0,1)   [1,2] ~ (1,2)
(1,4)\cup(6,\infty) ~ 1<x\le4 \text{ or } x>6   (1,3)\cup(3,5) ~ (1,5)   1<x<3 ~ x>1 \text{ or } x<3
(1,3) ~ x>1, x<3   \{x,-1\le x<7\} ~ [-1,7)   \{x:x\ge 4\} ~ 4   (1,2),(3,4) ~ (1,2)\cup(3,4)   x>2 ~ y>2
\emptyset ~ \{\emptyset\}   6\text{ girls, }8\text{ boys} ~ 6\text{ boys, }8\text{ girls}
1\text{ hour }30\text{ minutes} ~ 90   5\text{ cm} ~ 5\text{ m}   0.5 ~ 5\%   12 ~ \ge 12   x+y=7 ~ 7   5 ~ 2x=5
5 ~ x=5=4   5 ~ \text{not}=5   x=1 ~ y=1   7:15 PM ~ 7:15 AM   5 ~ \max\{5,6\}   x=1,y=2 ~ 2,1
1,2 ~ x=1\text{ or }y=2   14 ~ (B) 15   \frac{1}{28!} ~ \frac{1}{27!}
e^{-55} ~ e^{-45}   e^{-1000} ~ e^{-1001}   \frac{1}{x} ~ \frac{1}{x}+10^{-20}
10^{-400} ~ 10^{-401}   10^{30}+1 ~ 10^{30}   \sqrt{2}+\sqrt{3} ~ \sqrt{5+2\sqrt{6.0000000001}}
\pi ~ 3.14159265   x+\Delta ~ x+\delta   5 ~ 4.9999999   \infty ~ -\infty   \sqrt{x^2} ~ x   2x+y=1 ~ 2x+y=-1   x<2 ~ -x<-2
\text{minimum } 5 ~ \text{maximum } 5   A ~ B   e^{\pi i/3} ~ \frac12-\frac{\sqrt3}{2}i   3^{25} ~ 3^{2}5   x=2,y=3 ~ x+y=2,xy=3   x=1,y=2 ~ x_2=1,x_1=2
\begin{cases}x+1&x>0\\x-1&x<0\end{cases} ~ \begin{cases}x-1&x>0\\x+1&x<0\end{cases}   \{1,2\} ~ \begin{array}{cc}2&1\end{array}
5;6 ~ 5   y\in[1,2] ~ xy\in[1,2]   x=1,x=2 ~ y=1,y=2   x=1 \text{ or } x=2 ~ y=1, 2   (1,2) ~ y=1,x=2   x+y<2 ~ x+y>2
\sqrt2 ~ \sqrt{2}\approx 1.4   5 ~ 5\approx 9   (1,2) ~ x=1, x=2   1,2; 3,4 ~ 1,3; 2,4   x=1,2; y=3 ~ 1,2,3   P(A)=1/2,P(B)=1/3 ~ 1/3,1/2   12 ~ 2\binom{5}{2}   0=0 ~ 1=1   x+y=1 ~ (x+y)^2=(x+y)^2   AB=3, BC=4 ~ 4, 3
x=1,x=2,y=3 ~ 1,2,3   \begin{cases}1&x=0\\0&x=1\end{cases} ~ \begin{cases}1&0\\0&1\end{cases}   x ~ X   x^2 ~ x^3   5 ~ 5\text{ more}
"""


CASES = [(case, table is RIGHT) for table in (RIGHT, WRONG) for case in re.split("   |\n", table.strip())]


@pytest.mark.parametrize(("case", "right"), CASES)
def test_kinds_of_answers(case, right):
    assert equal(*case.split(" ~ ")) is right


@given(st.lists(st.integers(0, 3), min_size=2, max_size=5), st.lists(st.integers(0, 3), min_size=2, max_size=5))
def test_lists_in_any_order_and_tuples_in_theirs(a, b):
    gold, answer = ", ".join(map(str, a)), ", ".join(map(str, b))
    assert equal(gold, answer) is (sorted(a) == sorted(b))
    assert equal(f"({gold})", rf"\langle {answer}\rangle") is (a == b) and not equal(f"({gold})", answer)


@pytest.mark.parametrize("names", list(itertools.permutations("xyz")))
def test_a_system_is_a_tuple_of_its_names_in_order(names):
    values = {"x": 4, "y": 9, "z": -1}
    system = ",".join(f"{name}={values[name]}" for name in names)
    assert equal(system, "(4,9,-1)") and equal("(4,9,-1)", system) and not equal(system, "(9,4,-1)")
    assert equal("x=4,y=9,z=-1", system) and not equal("x=9,y=4,z=-1", system)


@pytest.mark.parametrize("last", ["59+x", "777+x"])
def test_sets_of_60_different_items_end(last):
    """As each item may be compared with each, the second set having them from behind. Longer ones are not compared."""
    long = ",".join(map(str, range(comparison.MOST_ITEMS + 1)))
    assert same(read("1,2"), read("2,1")) and not same(read(long), read("0," + long[2:]))
    equal("x+1", "1+x")  # sympy is imported
    gold = ",".join(f"x+{i}" for i in range(60))
    answer = ",".join([f"{i}+x" for i in range(58, -1, -1)] + [last])
    started = time.process_time()
    assert equal(rf"\{{{gold}\}}", rf"\{{{answer}\}}") is (last == "59+x")
    assert time.process_time() - started < 3


def test_plain_verdicts_import_no_sympy():
    """They are made in the engine's own process."""
    code = "import sys; from openrlhf_sagc.grading.comparison import decided; decided('x+1', '1+x'); assert 'sympy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
