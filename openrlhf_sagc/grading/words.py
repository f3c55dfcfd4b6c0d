"""The closed list of words that change no value: units, things that are counted, and what stands in front of an answer.

A word that is not here is part of the answer. So is one that makes another number of its neighbour (dozen, half, not,
less, more, squared), even if it stands beside a number like a unit.
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

# name: size in the first unit of its line. Several names of one size are separated by blanks.
_SIZES: dict[str, dict[str, int | Fraction]] = {
    "time": {
        "s sec secs second seconds 秒 秒钟 сек секунд секунды секунда sekunden secondes segundos 초": 1,
        "ms millisecond milliseconds 毫秒": Fraction(1, 1000),
        "min mins minute minutes 分钟 分 мин минут минуты минута minuten minutos 분": 60,
        "h hr hrs hour hours 小时 时 時間 ч час часа часов stunde stunden heure heures hora horas 시간": 3600,
        "day days 天 日 день дня дней tag tage tagen jour jours día días dia dias 일": 86400,
        "week weeks wk wks 周 星期 週間 неделя недели недель woche wochen semaine semaines semana semanas 주": 604800,
    },
    "months": {
        "month months 月 个月 ヶ月 месяц месяца месяцев monat monate mois mes meses 개월": 1,
        "yr yrs year years 年 岁 год года лет jahr jahre jahren an ans année années año años 년 살": 12,
    },
    "length": {
        "mm millimeter millimeters millimetre millimetres 毫米 мм": Fraction(1, 1000),
        "cm centimeter centimeters centimetre centimetres 厘米 公分 см сантиметр сантиметра сантиметров": Fraction(
            1, 100
        ),
        "dm decimeter decimeters decimetre decimetres 分米 дм": Fraction(1, 10),
        "m meter meters metre metres mtr 米 公尺 м метр метра метров mètre mètres metro metros 미터": 1,
        "Mm": 10**6,
        "km kilometer kilometers kilometre kilometres 千米 公里 км километр километра километров kilómetros 킬로미터": 1000,
        "in inch inches 英寸": Fraction(254, 10000),
        "ft foot feet 英尺": Fraction(3048, 10000),
        "yd yds yard yards 码": Fraction(9144, 10000),
        "mi mile miles 英里": Fraction(1609344, 1000),
    },
    "power": {"mW": Fraction(1, 1000), "W watt watts": 1, "kW kw kilowatt kilowatts": 1000, "MW": 10**6},
    "energy": {"mJ": Fraction(1, 1000), "J joule joules": 1, "kJ kj": 1000, "MJ": 10**6},
    "mass": {
        "mg milligram milligrams 毫克 мг": Fraction(1, 1000),
        "g gm gms gram grams 克 г грамм грамма граммов gramm gramme grammes gramos 그램": 1,
        "kg kgs kilo kilos kilogram kilograms 千克 公斤 кг килограмм килограмма килограммов kilogramm kilogrammes 킬로그램": 1000,
        "t tonne tonnes 吨 т тонн тонны tonnen": 10**6,
        "ton tons": Fraction(90718474, 100),
        "oz ounce ounces 盎司": Fraction(28349523125, 10**9),
        "lb lbs pound pounds 磅": Fraction(45359237, 100000),
    },
    "volume": {
        "mL ml cc milliliter milliliters millilitre millilitres 毫升 мл": Fraction(1, 1000),
        "cl": Fraction(1, 100),
        "dL dl": Fraction(1, 10),
        "L l liter liters litre litres 升 л литр литра литров litros": 1,
        "gal gallon gallons": Fraction(3785411784, 10**9),
        "qt quart quarts": Fraction(946352946, 10**9),
        "pt pint pints": Fraction(473176473, 10**9),
    },
    "money": {
        "cent cents ¢": Fraction(1, 100),
        "$ usd dollar dollars us$ a$ c$ hk$ aud cad nzd sgd 美元 美金 dólares доллар доллара долларов": 1,
    },
    "angle": {
        "° deg degs degree degrees 度 градус градуса градусов grad": 1,
    },
    "percent": {"% percent percentage pct 百分之 процент процента процентов prozent": Fraction(1, 100)},
}
# Each a thing of its own: only itself is the same.
_COUNTED = """
°C °F € eur euro euros £ gbp quid pence penny pennies ¥ jpy cny rmb yen yuan 元 块 块钱 円 圆 人民币 ₹ inr rs rs. rupee rupees ₩ krw won 원
₽ rub ruble rubles rouble roubles руб рублей рубля рубль ₱ peso pesos ₪ ₫ ฿ ₺ ₴ ₿ chf sek nok dkk pln brl mxn zar franc francs krona kronor kr real reais
zł złoty nickel nickels dime dimes coin coins bill bills
个 個 只 隻 条 本 人 名 位 件 张 枚 匹 棵 朵 台 辆 辆车 支 次 回 种 组 页 点 分之 根 块糖 颗 粒 袋 箱 瓶 杯 盒 双 套 班 間 間隔 冊 度角 개 명 마리 권 장 번
平方米 平方厘米 平方分米 平方千米 平方公里 立方米 立方厘米 立方分米 公顷 亩 千米每小时 公里每小时 米每秒 千米/时 平方单位 个单位 单位 元钱 岁了
шт штук штуки яблок яблока человек человека книг книги раз раза конфет детей учеников деталей
äpfel personen personas personnes stück stücke mal fois veces manzanas pommes élèves livres libros niños enfants kinder euros
acre acres hectare hectares ha N J W V K C F A hz khz mhz ghz kw kwh mw ev pa kpa mpa atm mol moles kj mj cal kcal calorie calories kilocalories
newton newtons joule joules watt watts kilowatt kilowatts volt volts ohm ohms amp amps ampere amperes kelvin celsius fahrenheit hertz pascal pascals
byte bytes bit bits kb gb mb tb mph kph kmh kmph kph rpm fps knots knot bps dpi bpm cup cups tablespoon tablespoons tbsp teaspoon teaspoons tsp
unit units point points pt pts digit digits item items piece pieces part parts number numbers integer integers value values solution solutions root roots
way ways time times case cases step steps term terms element elements object objects thing things set sets row rows column columns side sides edge
edges vertex vertices face faces corner corners diagonal diagonals angle angles triangle triangles square squares circle circles rectangle rectangles
cube cubes line lines segment segments arrangement arrangements permutation permutations combination combinations subset subsets pairing pairings
function functions polynomial polynomials prime primes factor factors divisor divisors multiple multiples outcome outcomes possibility possibilities
person people man men woman women boy boys girl girls child children kid kids baby babies student students pupil pupils teacher teachers adult adults
senior seniors player players member members team teams friend friends guest guests customer customers worker workers employee employees patient patients
passenger passengers voter voters vote votes neighbor neighbors family families class classes classroom classrooms group groups guide guides sibling siblings
soldier soldiers monkey monkeys dog dogs cat cats puppy puppies kitten kittens animal animals bird birds fish fishes cow cows goat goats sheep horse horses
chicken chickens duck ducks pig pigs rabbit rabbits bear bears bee bees ant ants spider spiders frog frogs snake snakes bug bugs insect insects mouse mice
leg legs head heads tooth teeth egg eggs apple apples orange oranges banana bananas pear pears peach peaches grape grapes cherry cherries melon melons
watermelon watermelons lemon lemons berry berries strawberry strawberries potato potatoes tomato tomatoes carrot carrots onion onions vegetable vegetables
fruit fruits cookie cookies cake cakes cupcake cupcakes pie pies slice slices pizza pizzas sandwich sandwiches bagel bagels muffin muffins brownie brownies
candy candies lollipop lollipops chocolate chocolates bar bars loaf loaves meal meals serving servings snack snacks drink drinks soda sodas burger burgers
tree trees flower flowers rose roses petal petals plant plants seed seeds leaf leaves branch branches acorn acorns
box boxes bag bags bottle bottles can cans jar jars carton cartons crate crates packet packets pack packs package packages bunch bunches basket baskets
bucket buckets barrel barrels tank tanks bowl bowls plate plates glass glasses spoon spoons fork forks container containers shelf shelves
book books page pages notebook notebooks pencil pencils pen pens eraser erasers crayon crayons sheet sheets paper papers card cards letter letters word
words stamp stamps sticker stickers photo photos picture pictures painting paintings poster posters magazine magazines story stories chapter chapters
poem poems question questions problem problems answer answers test tests paragraph paragraphs sentence sentences article articles lesson lessons
toy toys ball balls doll dolls marble marbles bead beads button buttons block blocks tile tiles brick bricks balloon balloons game games puzzle puzzles
shirt shirts shoe shoes sock socks hat hats dress dresses jacket jackets coat coats outfit outfits ribbon ribbons sweater sweaters mask masks
chair chairs table tables bed beds desk desks door doors window windows room rooms house houses apartment apartments floor floors building buildings
seat seats bench benches lamp lamps bulb bulbs candle candles towel towels blanket blankets pillow pillows
car cars bus buses truck trucks bike bikes bicycle bicycles train trains boat boats ship ships plane planes vehicle vehicles wheel wheels tire tires
ticket tickets trip trips ride rides lap laps round rounds stop stops street streets road roads city cities town towns country countries school schools
shop shops store stores farm farms garden gardens pool pools hole holes stone stones rock rocks shell shells star stars gift gifts present presents
phone phones computer computers robot robots machine machines tool tools part parts screw screws nail nails battery batteries song songs movie movies
video videos show shows episode episodes app apps message messages email emails call calls post posts photo photos share shares goal goals run runs
shot shots match matches medal medals push-ups pushup pushups sit-ups jump jumps hit hits loss win wins night nights session sessions visit visits
shift shifts order orders batch batches load loads layer layers stack stacks pile piles string strings strand strands color colors colour colours
type types kind kinds style styles flavor flavors topping toppings ingredient ingredients recipe recipes
"""
# Words that choose among things.
_WHICH = """
red blue green yellow white black pink purple orange brown gray grey golden silver small large big little short young full empty male female
chocolate vanilla regular adult
"""
# Words beside a thing that say nothing of it.
FILLERS = frozenset(
    "total different distinct possible whole extra additional remaining left altogether overall together old tall long positive".split()
)
SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "hundred": 100, "万": 10**4}
SCALES |= {
    "lakh": 10**5,
    "lac": 10**5,
    "crore": 10**7,
    "dozen": 12,
    "亿": 10**8,
    "gross": 144,
    "萬": 10**4,
    "億": 10**8,
}
SCALES |= {word + "s": size for word, size in SCALES.items() if word.isascii()} | {"mln": 10**6, "тыс": 10**3}
PHRASES = {  # what says the same, each to its first form
    same.strip(): group.split(";")[0].strip()
    for group in (
        "no solution; no solutions; none; there is no solution; there are no solutions; empty set; the empty set; ∅; null set; "
        "no such solution; there is no such solution; has no solution; has no solutions; 无解; нет решений",
        "no real solution; no real solutions; no real roots; there are no real solutions; no real root",
        "does not exist; dne; doesn't exist; doesn’t exist; do not exist; limit does not exist; undefined limit",
        "infinitely many; infinitely many solutions; there are infinitely many solutions; infinite solutions; "
        "infinite number of solutions; an infinite number of solutions; infinite many solutions; infinitely many values",
        "all real numbers; all reals; the real numbers; the set of all real numbers; the set of real numbers; "
        "set of all real numbers; set of real numbers; real numbers; any real number; every real number",
        "infinity; inf; ∞; positive infinity; plus infinity; +infinity",
        "negative infinity; minus infinity",
        "impossible; not possible; it is impossible",
    )
    for same in group.split(";")
}
_LEAD = """
the a an so thus hence therefore then we get have find obtain that is are equals equal to it its this our my final correct answer answers result value values solution
solutions total sum product difference quotient number of ways minimum maximum smallest largest least greatest possible probability area volume
perimeter length width height radius distance speed average mean median cost price amount remainder ratio angle measure sum exact there numeric
simplified expression required desired minimal maximal unique only positive integer integers must be will in all altogether sum real root roots
答案 答案是 答案为 答 是 为 所以 因此 结果 结果是 ответ réponse respuesta antwort option choice
"""
LEAD_WORDS = frozenset(_LEAD.split())
TAILS = re.compile(
    r"(?:\.?(?:⟦I |I⟦)hope (?:it|this|that) is correct⟧|⟦is (?:the|our|my) (?:final |correct )?(?:answer|solution|result)⟧)\.?$",
    re.IGNORECASE,
)
GREEK = (
    "alpha beta gamma delta epsilon zeta eta theta kappa lambda mu nu xi pi rho sigma tau phi chi psi omega "
    "Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega"
).split()
MONTHS = "january february march april may june july august september october november december".split()


@dataclass(frozen=True)
class Unit:
    """What a number counts: `kinds` with their exponents, and how many of the first unit of its kind it is."""

    kinds: tuple[tuple[str, int], ...]
    size: Fraction = Fraction(1)


def _simple_units() -> dict[str, Unit]:
    units = {word: Unit(((word, 1),)) for word in _COUNTED.split()}
    units |= {word: Unit(((word.removesuffix("s"), 1),)) for word in units if word.isascii() and len(word) > 3}
    units = {word: counted for word, counted in units.items() if word not in ("square", "cube", "root")}
    for kind, sizes in _SIZES.items():
        units |= {name: Unit(((kind, 1),), Fraction(size)) for names, size in sizes.items() for name in names.split()}
    return units


UNITS = _simple_units()
WHICH = frozenset(_WHICH.split())
BEHIND_A_BLANK = frozenset("m g L".split())  # units that may be, without \text, behind a blank
ONE_LETTER = frozenset("m g s h L l N J W V K C F t A".split())
VOCABULARY = frozenset(
    {word for word in [*UNITS, *WHICH, *FILLERS, *SCALES, *LEAD_WORDS, *MONTHS] if len(word) > 1}
    | {word for phrase in PHRASES for word in phrase.split()}
    | set("or and yes no not true false odd even per sq cu square cubic st nd rd th usd".split())
)
_SUBSTANCES = frozenset(
    "water beef milk juice flour sugar rice meat coffee tea oil gas gasoline fuel paint sand soil dirt wood butter cheese bread salt soup "
    "food lemonade honey fish chicken pork wheat corn hay fabric ribbon rope wire ice wine gold fertilizer concrete cement soda work".split()
)
_SPLIT_UNIT = re.compile(r"\s*(?:/|\bper\b|\bpro\b|每)\s*")
_POWER = re.compile(r"(.+?)\^\{?(-?\d)\}?")


@lru_cache(maxsize=10_000)
def unit(text: str) -> Unit | None:
    """The unit or counted thing that the text names wholly; None if it is none of the closed list.

    km/h, square feet, cm^2, red apples, 平方米 and % are such texts.
    """
    over, *under = _SPLIT_UNIT.split(text.strip().strip(".").replace("per cent", "percent"))
    kinds: dict[str, int] = {}
    size = Fraction(1)
    for part, sign in [(over, 1)] + [(part, -1) for part in under]:
        words = [word for word in re.split(r"[\s·*]+|\\cdot ?", part) if word]
        if not words or len(words) > 6:
            return None
        power, which = 1, []
        for i, word in enumerate(words):
            lower = word.casefold()
            if lower in ("square", "sq", "sq.", "cubic", "cu") and i + 1 < len(words):
                power = 2 if lower[0] == "s" else 3
                continue
            match = _POWER.fullmatch(word)
            name, exponent = (match[1], int(match[2])) if match else (word, power)
            known = UNITS.get(name) or UNITS.get(name.casefold().rstrip(".")) if len(name) > 1 else UNITS.get(name)
            if lower in WHICH and (known is None or i + 1 < len(words)):
                which.append(lower)
            elif lower in FILLERS or lower in ("more", "of") and i + 1 < len(words):
                continue
            elif lower in _SUBSTANCES and i > 1 and words[i - 1].casefold() == "of" and kinds:
                continue
            elif known:
                ((kind, _),) = known.kinds
                kinds[kind] = kinds.get(kind, 0) + sign * exponent
                size *= known.size ** (sign * exponent) if known.size else 1
            else:
                return None
        if which:
            kinds[" ".join(sorted(which))] = 1
    return Unit(tuple(sorted(kinds.items())), size)
