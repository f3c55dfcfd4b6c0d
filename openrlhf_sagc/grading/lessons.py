"""Answers of many forms, from which the comparing process learns before and between comparisons.

sympy imports and caches, and latex2sympy2's parser learns, what each form needs. A child that begins without it takes several
times as long. The first FORMS are compared before the process is ready; the rest while it has nothing to do.
"""

FORMS = 12
_TEXT = r"""
\frac{1}{2} & 0.5
\sqrt{8} & 2\sqrt2
x^2+2x+1 & (x+1)^2
(1,2] & (1,\infty)
\{1,2\} & \{2,1\}
x=5 & x=6
2\pi & 6.28
\begin{pmatrix}1 \\ 2\end{pmatrix} & \begin{pmatrix}1 \\ 3\end{pmatrix}
\sin x & \cos x
x \ge 3 & x > 3
3+4i & 4i+3
10^{-20} & 2^{-70}
\frac{a+2b}{3} & \frac{2b+a}{3}
\frac{11+9a}{20} & \frac{9a}{20}+\frac{11}{20}
y=2x+3 & y=3+2x
(x,y) & (y,x)
(3,-4) & (-3,4)
(\frac{1}{2},\sqrt{3}) & (0.5,\sqrt3)
\left(\frac{3}{5},\frac{8}{3}\right] & (3/5,8/3)
(-\infty,2)\cup(5,\infty) & (-\infty,2)\cup[5,\infty)
\log_2 8 & \ln 20
\log 100 & \ln(e^2)
e^{x} & \exp(x)
e^{2\pi i} & e^{-i}
\tan 30^\circ & \frac{\sqrt{3}}{3}
\arcsin\frac{1}{2} & \frac{\pi}{6}
\sin^2 x + \cos^2 x & 1
\binom{7}{2} & 21
5! & 120
\sum_{n=1}^{10} n & 55
\prod_{k=1}^{3} k & 6
\int_0^1 x \, dx & \frac{1}{2}
\lim_{x\to 0}\frac{\sin x}{x} & 1
\lfloor 3.7 \rfloor & \lceil 2.2 \rceil
|x-1| & |1-x|
\sqrt[3]{27} & 27^{1/3}
1\pm\sqrt{5} & 1-\sqrt5
50\% & 0.5
\frac{\pi}{4} & \frac{180}{4}
2^{10} & 1024
2^{x+1} & 2\cdot 2^x
3\times 10^{8} & 300000000
x_1+x_2 & x_2+x_1
a_{n+1}=2a_n & a_{n+1}=3a_n
\alpha+\beta & \beta+\alpha
f(x)=x^2 & f(x)=x^3
x^2+y^2=1 & x^2+y^2=4
5x-7y+11z+4=0 & 11z+5x-7y=-4
x<2 & x\le 2
-1<x\le 4 & -1\le x<4
x\in[-2,7] & -2\le x\le 7
x\neq 3 & x=3
\begin{bmatrix}1 & 0 \\ 0 & 1\end{bmatrix} @ \begin{bmatrix}1 & 0 \\ 0 & -1\end{bmatrix}
\{x \mid x>3\} & \{x : x>4\}
\emptyset & \{\}
A\cap B & A\cup B
\frac{x^2-1}{x-1} & x+1
\frac{1}{x}+\frac{1}{y} & \frac{x+y}{xy}
(a+5)(b+2) & ab+2a+5b+10
x^5-x^4+x^3-x^2+x-1 & (x-1)(x^4+x^2+1)
\cot x & \frac{\cos x}{\sin x}
\sinh x & \frac{e^x-e^{-x}}{2}
-\frac{\sqrt{2}+\sqrt{6}}{4} & \frac{-\sqrt2-\sqrt6}{4}
\frac{20000}{\pi} & 20000/\pi
1.5 & \frac{3}{2}
12.3456789 & 12.3456788
n^2+n & n(n+1)
\vec{a}+\vec{b} & \vec{b}+\vec{a}
3\sqrt{5}\,i & 3i\sqrt5
"""
LESSONS = [tuple(line.split(" @ " if " @ " in line else " & ")) for line in _TEXT.strip().splitlines()]
