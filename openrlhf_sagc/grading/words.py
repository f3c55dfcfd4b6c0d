"""The closed list of words that change no value: units, things that are counted, and what stands in front of an answer.

A word that is not here is part of the answer. So is one that makes another number of its neighbour (half, not, less, squared).
"""

import re

# Names of one unit or thing stand together. Plurals that end with s, es and ies are known by their singulars.
_COUNTED = """
s=sec=second=秒=秒钟=сек=секунд min=minute=分钟=分=мин=минут h=hr=hour=小时=时=時間=ч=час=часа=часов=stunden=heure=hora
day=天=日=день=дня=дней=tag=tage=jour=día=dia week=wk=周=星期=недели=wochen=semaine month=月=个月=месяцев=monate=mois
yr=year=年=岁=года=лет=jahre=an=année=año mm=millimeter=millimetre=毫米=мм cm=centimeter=centimetre=厘米=см dm=分米=дм
m=meter=metre=米=м=метр=метров=mètre=metro km=kilometer=kilometre=千米=公里=км=километров in=inch ft=foot=feet yd=yard
mi=mile mg=milligram=毫克 g=gm=gram=gramme=克=г=граммов kg=kilo=kilogram=千克=公斤=кг t=tonne=吨=т=тонн oz=ounce lb=pound
ml=mL=milliliter=cc=毫升=мл l=L=liter=litre=升=л=литров cent=¢ $=usd=dollar=us$=美元=美金=dólar=доллар=долларов
°=deg=degree=度=градусов=grad %=percent=percentage=pct=百分之=процентов=prozent €=eur=euro £=gbp=quid
¥=jpy=cny=rmb=yen=yuan=元=块=块钱=円=圆=人民币=元钱 ₹=inr=rs=rupee ₩=krw=won=원 ₽=rub=ruble=rouble=руб=рублей=рубля W=watt
kW=kilowatt MW mW J=joule kJ MJ mJ
°C °F pence penny ₱ peso ₪ ₫ ฿ ₺ ₴ ₿ chf sek nok dkk pln brl mxn zar franc krona kronor real zł nickel dime coin
bill 个 個 只 隻 条 本 人 名 位 件 张 枚 匹 棵 朵 台 辆 支 次 回 种 组 页 点 根 颗 粒 袋 箱 瓶 杯 盒 双 套 班 冊 개 명 마리 권 장 번 平方米 平方厘米 平方千米 立方米 立方厘米 公顷
亩 千米每小时 公里每小时 米每秒 千米/时 平方单位 个单位 单位 шт штук яблок человек человека книг раз конфет детей учеников äpfel personen
personas personnes stück mal fois veces manzanas pommes élèves livres libros niños enfants kinder acre hectare ha N
V K C F A hz khz mhz ghz kwh ev pa kpa mpa atm mol mole cal kcal calorie newton volt ohm amp ampere kelvin celsius
fahrenheit hertz pascal byte bit kb gb mb tb mph kph rpm fps knot bps dpi cup tablespoon tbsp teaspoon tsp gal
gallon qt quart pt pint ton unit point pts digit item piece part number integer value solution roots way time case
step term element object thing set row column side edge vertex vertices face corner diagonal angle triangle squares
circle rectangle cubes line segment arrangement permutation combination subset function polynomial primes factors
divisors multiples outcome possibility person people man men woman women boy girl child children kid baby student
pupil teacher adult senior player member team friend guest customer worker employee patient passenger voter vote
neighbor family class group guide sibling soldier monkey dog cat puppy kitten animal bird fish cow goat sheep horse
chicken duck pig rabbit bear bee ant spider frog snake bug insect mouse mice leg head tooth teeth egg apple orange
banana pear peach grape cherry melon watermelon lemon berry strawberry potato tomato carrot onion vegetable fruit
cookie cake cupcake pie slice pizza sandwich bagel muffin candy lollipop chocolate bar loaf loaves meal serving
snack drink soda burger tree flower rose petal plant seed leaf leaves branch box bag bottle can jar carton crate
packet pack package bunch basket bucket barrel tank bowl plate glass spoon fork container shelf shelves book page
notebook pencil pen eraser crayon sheet paper card letter word stamp sticker photo picture painting poster magazine
story chapter poem question problem answer test paragraph sentence article lesson toy ball doll marble bead button
block tile brick balloon game puzzle shirt shoe sock hat dress jacket coat outfit ribbon sweater mask chair table
bed desk door window room house apartment floor building seat bench lamp bulb candle towel blanket pillow car bus
truck bike bicycle train boat ship plane vehicle wheel tire ticket trip ride lap round stop street road city town
country school shop store farm garden pool hole stone rock shell star gift present phone computer robot machine tool
screw nail battery song movie video show episode app message email call post share goal run shot match medal pushup
push-up sit-up jump hit win night session visit shift order batch load layer stack pile string strand color
colour type kind style flavor topping ingredient recipe
"""
_BESIDE = "total different distinct possible whole extra additional remaining left altogether overall old tall long more of".split()
_WHICH = (
    "red blue green yellow white black pink purple brown gray golden silver small large full empty male female".split()
)
_LEAD = """
the a an so thus hence therefore then we get have find obtain that is are equals equal to it its our my final correct answer result value
solution values solutions answers total sum product difference quotient number of ways minimum maximum smallest largest least greatest
probability area volume perimeter length width height radius distance speed average mean median cost price remainder ratio angle exact there
simplified expression required desired unique only integer must be will in all root roots 答案 答案是 答案为 答 是 为 所以 因此 结果是 ответ
réponse respuesta antwort option choice
"""
LEAD = frozenset(_LEAD.split())
SAYS = frozenset(
    "is are be equals answer result value get have so thus hence therefore that 答案 答案是 答案为 是 为 结果是 ответ réponse".split()
)
_PHRASES = """
no solution; no solutions; none; there is no solution; there are no solutions; empty set; null set; has no solution; 无解; нет решений
no real solution; no real solutions; no real roots; there are no real solutions
does not exist; dne; doesn't exist; do not exist; limit does not exist
infinitely many; infinitely many solutions; there are infinitely many solutions; infinite solutions; infinite number of solutions
all real numbers; all reals; real numbers; set of all real numbers; set of real numbers; any real number; every real number
infinity; inf; positive infinity
negative infinity; minus infinity
impossible; not possible; it is impossible
"""
PHRASES = {same: line.split("; ")[0] for line in _PHRASES.strip().splitlines() for same in line.split("; ")}
SCALES = dict(
    hundred=100,
    thousand=10**3,
    million=10**6,
    billion=10**9,
    trillion=10**12,
    dozen=12,
    lakh=10**5,
    crore=10**7,
    gross=144,
)
SCALES |= {"万": 10**4, "萬": 10**4, "亿": 10**8, "億": 10**8, "тыс": 10**3}
CURRENCY = frozenset(
    "$ € £ ¥ ₹ ₩ ₽ ₱ ₪ ₫ ฿ ₺ ₴ ₿ us$ usd eur gbp jpy cny rmb inr rs krw rub chf brl mxn zar aud cad".split()
)
ENDS = tuple(
    re.compile(rf"\b(?:{words})\b", re.IGNORECASE)
    for words in (r"minim[au]\w*|smallest|lowest|least", r"maxim[au]\w*|largest|highest|greatest")
)
_UNITS = {name: names.split("=")[0] for names in _COUNTED.split() for name in names.split("=")}
_WORDS = {
    *LEAD,
    *SAYS,
    *_BESIDE,
    *_WHICH,
    *"or and yes no not true odd even per st nd rd th am pm a.m p.m dne inf".split(),
}


def _known(word: str) -> str | None:
    forms = [word]
    if len(word) > 2 or word in ("KG", "CM", "KM"):  # W is no w, nor MW mW
        forms += [word.lower(), re.sub("ies$", "y", word.lower())]
    if len(word) > 3:
        forms += [word.lower().removesuffix("s"), word.lower().removesuffix("es")]
    return next((_UNITS[form] for form in forms if form in _UNITS), None)


def unit(text: str) -> str | None:
    """The unit or counted thing that the text names wholly (km/h, square feet, cm^2, red apples, %), in one spelling; else None."""
    parts = []
    for part in re.split(r"\s*(?:/|\bper\b|每)\s*", text.strip(" .").replace("per cent", "percent")):
        names, known, power = [], False, ""
        for word in re.split(r"[\s·]+|\\cdot ?", part):
            name, _, raised = word.rstrip(".").partition("^")
            lower, found = name.lower(), _known(name)
            if lower in ("square", "sq", "cubic", "cu") and name != part:
                power = "^2" if lower[0] == "s" else "^3"
            elif lower in _WHICH:
                names.append(lower)
            elif found and re.fullmatch(r"\{?-?\d\}?|", raised):
                names, known = [*names, found + ("^" + raised.strip("{}") if raised else power)], True
            elif lower not in _BESIDE or lower == "more" and known:  # 5 more hours, not 5 times more
                return None
        if not known:
            return None
        parts.append(" ".join(sorted(names)))
    return "/".join(parts)


def is_word(run: str) -> bool:
    """Whether a run of letters in mathematics is a word and no product of symbols."""
    looks = len(run) > 3 or not run.isascii() or re.fullmatch("[A-Z][a-z]{2}|[IVX]{2,}", run)
    return bool(looks) or len(run) > 1 and (run.lower() in _WORDS or _known(run) is not None)
